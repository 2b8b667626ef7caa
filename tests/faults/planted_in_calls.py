"""Faults to plant in what a script asks of all workers between its steps, as `planted` has them."""

from __future__ import annotations

CALLS: list[tuple[str, str, str, str]] = [
    (
        "what_the_last_round_asked_for_is_asked_for_again",
        "rounds/memory.py",
        "self.payload, self._along = payload, along",
        "self.payload, self._along = payload or self.payload, along",
    ),
    (
        "what_a_sum_is_of_does_not_count_after_a_round_in_which_nothing_did",
        "rounds/round.py",
        "            self.memory.alone.weight = 1.0\n",
        "",
    ),
    (
        "sums_of_other_arrays_are_made",
        "training/exchange.py",
        "            word.check_call(known, self.round.about, number)\n",
        "            pass\n",
    ),
    (
        "a_sum_is_in_the_memory_of_the_next_one",
        "rounds/summand.py",
        "        found = self.layout.views([total])\n",
        "        found = self.layout.views(parts[:1])\n",
    ),
    (
        "workers_leave_between_the_two_rounds_of_a_sum",
        "protocol/boundary.py",
        "payload is not None and payload.kind != MEAN)\n",
        "payload is not None and payload.kind not in (MEAN, *SUMS.values()))\n",
    ),
    (
        "a_newcomer_is_told_of_no_large_sum",
        "training/script/answers.py",
        "not self._large and ",
        "",
    ),
    (
        "a_call_is_answered_where_some_have_not_brought_anything",
        "protocol/control_word.py",
        "0 < self.values[_BROUGHT] == self.workers",
        "self.values[_BROUGHT] > 0",
    ),
    (
        "a_newcomer_does_not_know_what_goes_along_with_a_round",
        "rounds/memory.py",
        "not (after.changes or after.stops or after.over)",
        "not (after.stops or after.over)",
    ),
    (
        "an_answer_is_summed_again_before_the_script_has_read_it",
        "rounds/memory.py",
        "not (after.changes or after.stops or after.over)",
        "not after.changes",
    ),
    (
        "what_is_left_of_a_sum_is_summed_again",
        "rounds/memory.py",
        "            self.alone.bring_nothing()  # a step",
        "            pass  # a step",
    ),
    (
        "what_a_call_does_not_need_is_summed_again",
        "rounds/round.py",
        "        if self.memory.payload is None or not self._mine.brings:\n",
        "        if not (self.carries and self._mine.brings):\n",
    ),
    (
        "a_newcomer_has_not_heard_of_the_calls_before_it_came",
        "rounds/memory.py",
        "            self._calls.clear()\n",
        "            pass\n",
    ),
    (
        "the_first_part_of_a_sum_counts_as_all_of_it",
        "rounds/round.py",
        "        if self.memory.payload is None and isinstance(self._mine, GrowingSummand):\n",
        "        if False:\n",
    ),
    (
        "a_call_that_is_answered_is_not_the_last_one",
        "rounds/memory.py",
        "            self._calls.note(self.payload)\n",
        "            pass\n",
    ),
    (
        "a_step_with_a_call_that_is_answered_at_once_is_not_counted",
        "rounds/round.py",
        "        return int(self._step is not None and self.carries)\n",
        "        return int(self._step is not None and self.memory.payload is not None)\n",
    ),
    (
        "a_message_is_in_the_memory_of_one_that_is_still_read",
        "fabric/mpi/message_memory.py",
        "if not _in_use(one))",
        "if True)",
    ),
    (
        "a_group_is_given_memory_that_the_script_writes",
        "torch/part.py",
        "{rank: _copy(one) if rank == mine else one for",
        "{rank: one for",
    ),
    (
        "what_one_of_a_group_gives_is_memory_that_its_script_writes",
        "torch/part.py",
        "_copy(said[first]) if first == self._whole.rank else said[first]",
        "said[first]",
    ),
    (
        "the_sum_of_a_group_is_in_memory_of_what_one_brings",
        "torch/part.py",
        "            total = total + others.pop(0) if others else total.clone()\n",
        "            pass\n",
    ),
    (
        "all_get_the_first_part_of_a_sum",
        "torch/collectives.py",
        "        start = self.rank * out.numel()\n",
        "        start = 0\n",
    ),
    (
        "what_is_lent_comes_before_the_content",
        "fabric/mpi/mailbox.py",
        "for part in (mail, *lent)",
        "for part in (*lent, mail)",
    ),
]
