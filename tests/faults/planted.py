"""Faults to plant: slips of one or two lines, each of which a user would come to feel.

A fault is a patch of the text, and not of a running process, so that processes which a test starts
have it as well. ``python -m tests.faults`` plants them and says which tests find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.faults.planted_in_calls import CALLS


class Fault(NamedTuple):
    """What is wrong, and how it comes to be."""

    of: str
    """Which part has it."""
    name: str
    file: str
    old: str
    """There exactly once in the file."""
    new: str


_Slip = tuple[str, str, str, str]
"""A fault's name, its file below ``spotmpi/``, and both texts."""

SESSION: list[_Slip] = [
    (
        "a_checkpoint_is_not_flushed_to_the_disk",
        "training/keeping/checkpoint_file.py",
        "    os.fsync(fd)\n",
        "",
    ),
    (
        "a_checkpoint_has_its_name_before_it_is_written",
        "training/keeping/checkpoint_file.py",
        "            _write(fd, step, entries)\n            temporary.replace(path)\n",
        "            temporary.replace(path)\n            _write(fd, step, entries)\n",
    ),
    (
        "only_one_checkpoint_stays",
        "training/keeping/checkpoint_folder.py",
        "older[KEPT - 1 :]",
        "older[KEPT - 2 :]",
    ),
    (
        "what_was_written_of_the_last_checkpoint_confirms_the_next_one_too",
        "training/keeping/checkpoints.py",
        "self._due, self.published = number, False",
        "self._due = number",
    ),
    (
        "whoever_writes_late_confirms_the_next_one_too",
        "training/keeping/checkpoints.py",
        "self.published or written.due == self._due",
        "True",
    ),
    (
        "the_learning_rate_is_not_told_to_a_newcomer",
        "training/state/rate.py",
        "        if lr is not None:\n            self._lr.lr = unpack(lr)",
        "        if lr is None:\n            self._lr.lr = unpack(lr)",
    ),
    (
        "a_newcomer_is_not_told_since_when_a_strategy_is_followed",
        "training/state/training_state.py",
        "        self._training.sync.since = since\n",
        "",
    ),
    (
        "a_learning_rate_on_its_way_is_not_resumed",
        "training/state/rate.py",
        '{name: f"lr/factor/{name}" for',
        '{name: f"lr/{name}" for',
    ),
    (
        "who_leaves_keeps_its_parameters_where_the_others_write",
        "training/exchange.py",
        "            self.training.sync.leave()  # now: once it is sealed the others go on\n",
        "            pass\n",
    ),
    (
        "a_newcomer_trains_from_where_it_was_before_it_learnt",
        "training/exchange.py",
        "                self.training.model.settle()\n                self.keeper.joins(number)",
        "                self.keeper.joins(number)",
    ),
    (
        "once_runs_again_while_its_value_is_on_its_way",
        "training/session.py",
        "self._exchange.first == self.me and not owed:",
        "self._exchange.first == self.me:",
    ),
    (
        "a_checkpoint_that_could_not_be_asked_for_yet_is_forgotten",
        "training/exchange.py",
        "        if word.save:\n            self.keeper.asked = False",
        "        self.keeper.asked = False",
    ),
    (
        "micro_batches_of_a_step_count_again_in_the_next",
        "training/gradients/script_gradient.py",
        "        self.pieces.clear()\n        self.micro_batches.clear()",
        "        self.pieces.clear()",
    ),
    (
        "optimizers_remember_what_differs_after_a_switch",
        "training/state/training_state.py",
        "if before.local_models and not strategy.local_models:",
        "if strategy.local_models and not before.local_models:",
    ),
    (
        "the_last_words_of_a_page_are_brought_by_nobody",
        "rounds/state_transfer.py",
        "(rank + 1) * len(part) // many",
        "(rank + 1) * (len(part) // many)",
    ),
    (
        "the_memory_of_pages_is_never_given_back",
        "rounds/state_transfer.py",
        "            self._fabric.release(self._arena)\n            self._arena = None\n",
        "            pass\n",
    ),
    (
        "the_control_word_waits_for_the_last_step",
        "training/exchange.py",
        "        self.prepare(membership)\n        return None\n",
        "        return len(sync.arena.parts)\n",
    ),
    (
        "what_is_said_ahead_asks_for_nothing",
        "training/exchange.py",
        "level = self.turns.level or what.kind == control_word.STEP",
        "level = self.turns.level",
    ),
    (
        "tables_have_rows_for_those_who_are_there_now",
        "training/exchange.py",
        "lambda: len(self.driver.ledger.contributors)",
        "lambda: len(self.driver.membership)",
    ),
    (
        "the_plane_is_not_told_that_there_are_no_more_pages",
        "rounds/state_transfer.py",
        "            self._fabric.release(self._arena)\n",
        "",
    ),
    (
        "what_a_worker_has_once_not_brought_to_a_page_it_never_brings",
        "rounds/state_transfer.py",
        "            arena.weight = 1.0\n",
        "",
    ),
    (
        "a_loop_that_was_left_takes_its_steps_into_the_next",
        "training/steps/worker_steps.py",
        "        elif mine:\n            self.now.left = True",
        "        elif mine:\n            self.renew()",
    ),
    (
        "a_step_is_forgotten_before_the_leader_has_written_it",
        "training/journal.py",
        "while number - 1 > self._led_since and self._before(number - 1):",
        "while self._before(number):",
    ),
    (
        "a_folder_stays_locked_after_its_training",
        "training/elastic.py",
        "            finally:\n                this_process().let_go()",
        "            finally:\n                pass",
    ),
    (
        "the_last_average_is_given_again_where_nobody_brought_anything",
        "training/group.py",
        "fill(self._flats, 0)",
        "fill([], 0)",
    ),
]

DRIVER: list[_Slip] = [
    (
        "who_waits_for_a_message_gives_up_when_anybody_is_lost",
        "training/round_runner.py",
        (
            "                yield from self._meanwhile(self._driver.recover())\n"
            "                continue\n"
        ),
        "                raise\n",
    ),
    (
        "who_lets_others_leave_before_its_steps_opens_the_round_of_these_too",
        "training/session.py",
        "            yield from self._runner.change()",
        "            yield from self._runner.open_early(self._step_round(turn))",
    ),
    (
        "a_message_of_who_is_lost_is_waited_for",
        "training/round_runner.py",
        "lost = {*senders}.difference(self._driver.membership.ids)",
        "lost = {*senders}.difference(range(99))",
    ),
    (
        "what_was_under_way_is_not_cancelled",
        "rounds/driver.py",
        "        yield Cancel(broken)\n",
        "",
    ),
    (
        "a_contribution_that_a_sum_has_written_over_is_not_made_again",
        "rounds/driver.py",
        "        if self._exchange.memory.in_place:\n            self._exchange.bring()\n",
        "",
    ),
    (
        "a_loss_while_a_record_is_shared_is_told_to_nobody",
        "rounds/driver.py",
        "            broken = ()\n",
        "            broken = None\n",
    ),
    (
        "who_was_lost_before_an_interrupted_repair_is_forgotten",
        "rounds/driver.py",
        "            recovered.earlier |= recovered.verdict.lost\n",
        "",
    ),
    (
        "a_loss_before_the_gradient_is_whole_is_told_to_nobody",
        "rounds/driver.py",
        "            self._met_loss = True\n            yield Revoke()\n",
        "            self._met_loss = True\n",
    ),
    (
        "a_loss_that_was_met_early_is_met_for_ever",
        "rounds/driver.py",
        "started, self._started, self._met_loss = self._started, [], False",
        "started, self._started = self._started, []",
    ),
    (
        "nobody_asks_whether_the_lost_are_dead",
        "rounds/driver.py",
        "                            self._exchange.confirm(verdict.lost)\n",
        "                            pass\n",
    ),
    (
        "the_lost_are_to_write_the_last_words",
        "rounds/driver.py",
        "remaining = self.membership.all_but(verdict.lost)",
        "remaining = self.membership.ids",
    ),
    (
        "a_record_stays_where_the_contribution_was",
        "rounds/driver.py",
        "exchange.bring()  # the record",
        "pass  # the record",
    ),
    (
        "a_plan_is_carried_out_twice",
        "rounds/driver.py",
        "            if not self.ledger.ending:  # a",
        "            if self.ledger.ending:  # a",
    ),
    (
        "a_newcomer_is_told_of_the_time_before_it_was_admitted",
        "rounds/driver.py",
        "        me, change = self._recovery.me, verdict.change\n",
        (
            "        me, change = self._recovery.me, verdict.change\n"
            "        if change.sponsor == me:\n"
            "            yield Welcome(change.newcomer, exchange.admission())\n"
            "            change = NO_PLAN\n"
        ),
    ),
    (
        "whoever_is_through_goes_at_once",
        "rounds/driver.py",
        "                yield Depart()\n                return",
        "                return",
    ),
    (
        "whoever_leaves_goes_at_once",
        "rounds/driver.py",
        "            yield Depart()\n            raise",
        "            raise",
    ),
    (
        "who_ends_goes_though_others_go_on",
        "rounds/driver.py",
        "            if recovered.verdict.ended:\n                yield Depart()\n",
        "            if True:\n                yield Depart()\n",
    ),
    ("words_go_to_all_places", "fabric/planes/plane.py", "= 1.0, number", "= 1.0, None"),
    (
        "the_lost_are_counted_where_their_sum_is_tried_again",
        "training/steps/step_round.py",
        "if self._prepared_for == membership.generation:",
        "if self._prepared_for >= 0:",
    ),
    (
        "a_round_counts_the_steps_that_it_was_to_have",
        "training/steps/step_round.py",
        "self._known[:2] == (full, turn.whole)",
        "self._known[0] == full",
    ),
    (
        "a_warm_up_never_gets_on",
        "training/steps/step_round.py",
        "            training.rate.taken()\n",
        "",
    ),
    (
        "the_rate_jumps_when_the_optimizers_memory_begins_again",
        "training/state/training_state.py",
        "            self.rate.begin_again(self.model.optimizer.rises)\n",
        "            pass\n",
    ),
    (
        "newcomers_are_taught_what_was_registered_before_a_switch",
        "training/steps/switching.py",
        "        self._transfer.change(training.registry.words(), training.model.ends)\n",
        "",
    ),
    (
        "a_strategy_is_replaced_while_its_arrays_are_read",
        "training/session.py",
        "            exchange.compare.result()  # the arrays that it reads will go\n",
        "",
    ),
    (
        "a_quorums_patience_began_in_an_earlier_round",
        "training/steps/quorum_watch.py",
        "        self._since = None\n        if self._training",
        "        if self._training",
    ),
]

PLANES: list[_Slip] = [
    (
        "messages_go_by_a_communicator_that_is_revoked",
        "fabric/mpi/mailbox.py",
        "Path(duplicate(comm), workers)",
        "Path(comm, workers)",
    ),
    (
        "messages_take_another_way_when_somebody_comes",
        "fabric/mpi/mailbox.py",
        "dict.fromkeys(path.workers, path) | self._paths",
        "self._paths | dict.fromkeys(path.workers, path)",
    ),
    (
        "who_is_woken_all_the_time_finds_no_loss",
        "fabric/mpi/fabric.py",
        "            if not rang or time.monotonic() > next_check:\n",
        "            if not rang:\n",
    ),
    (
        "who_waits_for_a_neighbour_does_not_see_it_die",
        "fabric/planes/host_barrier.py",
        'raise PeersLost("a worker of this host is lost, or has met a loss")',
        "pass",
    ),
    (
        "who_waits_for_a_neighbour_hears_of_no_revocation",
        "fabric/planes/shared_memory_plane.py",
        "if self.neighbours.dead() or self._ways.broken():",
        "if self.neighbours.dead():",
    ),
    (
        "a_row_is_filled_while_others_read_it",
        "fabric/planes/unshared_sums.py",
        "self._rows[self._begun % 2]",
        "self._rows[0]",
    ),
    (
        "small_sums_go_on_by_the_rows_of_former_members",
        "fabric/planes/unshared_sums.py",
        "        self._begun, self._rows = 0, []\n",
        "        self._begun = 0\n",
    ),
    (
        "a_small_sum_of_one_host_stands_for_that_of_all_hosts",
        "fabric/planes/shared_memory_plane.py",
        "            if self.rings is None:\n                self._unshared.use_rows()",
        "            if True:\n                self._unshared.use_rows()",
    ),
    (
        "what_has_no_weight_comes_into_a_small_sum",
        "fabric/planes/unshared_sums.py",
        "    if not weight:\n        HOST.fill(room, 0)\n    elif weight != 1.0:",
        "    if weight != 1.0:",
    ),
    (
        "a_sum_is_taken_as_whole_before_all_have_added_their_slices",
        "fabric/planes/shared_memory_plane.py",
        "            self.barrier.all_done(last)\n",
        "",
    ),
    (
        "parts_are_counted_on_from_where_each_was_when_one_was_lost",
        "fabric/planes/shared_memory_plane.py",
        "        self._begun = 0\n        self.neighbours.bind",
        "        self.neighbours.bind",
    ),
    (
        "headers_of_the_lost_stay_open",
        "fabric/neighbours/neighbours.py",
        "for one, header in self._headers.items() if one in members}",
        "for one, header in self._headers.items()}",
    ),
    (
        "the_lost_are_waited_for_after_a_recovery",
        "fabric/planes/shared_memory_plane.py",
        "self.barrier.join(self.neighbours.present)",
        "self.barrier.join(self.barrier._present or self.neighbours.present)",
    ),
    (
        "a_small_sum_is_waited_for_by_those_who_share_it",
        "fabric/planes/shared_memory_plane.py",
        "return named.large or any(",
        "return isinstance(named.arena, SharedArena) or any(",
    ),
    (
        "an_update_is_fused_with_a_small_sum_by_those_who_share_it",
        "fabric/planes/shared_memory_plane.py",
        "            state = None  # Numba",
        "            pass  # Numba",
    ),
    (
        "whoever_waits_for_some_sums_waits_for_all",
        "fabric/planes/shared_memory_plane.py",
        "            if given > set(handles):\n",
        "            if not given:\n",
    ),
    (
        "an_arena_is_hidden_before_all_have_looked_for_it",
        "fabric/planes/shared_memory_plane.py",
        "            arena.keep_results()  # this worker alone writes to them\n",
        "            arena.unshare()\n",
    ),
    (
        "a_state_changes_its_place_while_scripts_run",
        "fabric/planes/shared_memory_plane.py",
        " or not arena.reaches_state(call.part):",
        ":",
    ),
    (
        "who_waits_waits_for_all_others_to_wait",
        "fabric/planes/shared_memory_plane.py",
        "            self.barrier.done(self._header, call.number)\n        return True",
        "            pass\n        return True",
    ),
    (
        "a_small_sum_that_was_made_ahead_is_not_taken",
        "fabric/planes/shared_memory_plane.py",
        "one: one.summed or self._sum(one,",
        "one: None if one.summed else self._sum(one,",
    ),
    (
        "an_arena_is_given_up_while_scripts_run",
        "fabric/planes/shared_memory_plane.py",
        "            return False\n        self._sum_of",
        "            return bool(arena.unshare())\n        self._sum_of",
    ),
    (
        "only_the_first_workers_hear_if_all_hosts_share_an_arena",
        "fabric/planes/rings.py",
        "            under_way = {self._line.receive(first, ring, sums)}\n",
        "            under_way = set()\n            sums[:] = len(self._hosts)\n",
    ),
    (
        "an_arena_that_is_released_stays_for_others_to_find",
        "fabric/planes/shared_memory_plane.py",
        "                arena.hide()\n\n    def _shared",
        "                pass\n\n    def _shared",
    ),
    (
        "messages_between_hosts_are_not_given_up",
        "fabric/planes/shared_memory_plane.py",
        "        if self._ways.line is not None:\n            self._ways.line.give_up()\n",
        "",
    ),
    (
        "an_arena_goes_on_with_the_neighbours_that_it_found_first",
        "fabric/planes/shared_arena.py",
        "        if self._bindings != node.neighbours.bindings:\n",
        "        if not self._bindings:\n",
    ),
    (
        "a_newcomer_finds_the_wrong_one_of_two_results",
        "fabric/planes/shared_results.py",
        "            own.write(OPEN, self._open)\n\n    def find",
        "            pass\n\n    def find",
    ),
    (
        "nan_of_a_contribution_that_does_not_count_gets_into_the_sum",
        "fabric/planes/shared_arena.py",
        "if not all(weights):  # what does not count may be anything, NaN too",
        "if False:",
    ),
    (
        "who_goes_on_by_itself_begins_with_zeros",
        "fabric/planes/double_buffer.py",
        "            self._spare.copy(self._live)\n",
        "",
    ),
    (
        "a_message_is_sent_on_before_it_has_come",
        "fabric/planes/travels.py",
        "            and self._sent < self._begun + self._here\n",
        "            and self._sent <= self._begun + self._here\n",
    ),
    (
        "a_model_that_is_being_written_over_is_taken_as_whole",
        "fabric/neighbours/published_model.py",
        "if self._loops.look(self._begun) < count + 2:",
        "if self._loops.look(self._begun) < count + 3:",
    ),
    (
        "what_was_in_the_last_common_sum_is_taken_out_of_the_next",
        "fabric/neighbours/common_sums.py",
        "            fill(self._within, 0)\n            used.begin",
        "            used.begin",
    ),
    (
        "whoever_gives_up_sums_goes_on_while_they_are_made",
        "fabric/planes/sum_thread.py",
        "        self.halted = True\n        self._given.put(None)\n        self._thread.join()\n",
        "        self.halted = True\n        self._given.put(None)\n",
    ),
    (
        "devices_go_on_with_the_neighbours_that_they_found_first",
        "fabric/planes/devices.py",
        "        for arena in self._arenas.values():\n            arena.near = None\n",
        "",
    ),
    (
        "a_device_has_not_copied_when_its_room_is_written_over",
        "fabric/planes/staging.py",
        "            room.done.synchronize()\n            room.bytes[:size]",
        "            room.bytes[:size]",
    ),
    (
        "the_plane_is_not_told_who_remains",
        "fabric/mpi/build.py",
        "data.go_on(Path(shrunk, alive))",
        "data.path = Path(shrunk, alive)",
    ),
    (
        "a_membership_is_sealed_that_not_all_know",
        "fabric/mpi/build.py",
        "control.agree(shrunk is not None and members == frozenset(alive))",
        "control.agree(shrunk is not None)",
    ),
    (
        "nobody_listens_after_a_build_that_failed",
        "fabric/mpi/control.py",
        "self.path = path\n        self._revocation_told = False\n",
        "self.path = path\n",
    ),
    (
        "a_newcomer_that_is_given_up_is_not_told",
        "fabric/mpi/guests.py",
        '(guest := self._guests.pop(worker)).let_go("it is to be given up")',
        "guest = self._guests.pop(worker)",
    ),
    (
        "a_newcomer_knocks_at_a_training_that_it_was_not_told_of",
        "fabric/mpi/guests.py",
        "                guest.stage = Stage.SPAWNED\n",
        "                pass\n",
    ),
    (
        "the_model_of_a_lost_worker_still_comes",
        "fabric/mpi/models.py",
        "if came is not None and came.worker in members:",
        "if came is not None:",
    ),
]


def _planted(of: str, slips: list[_Slip]) -> Iterator[Fault]:
    for name, file, old, new in slips:
        yield Fault(of, name, f"spotmpi/{file}", old, new)


FAULTS = [
    *_planted("session", SESSION),
    *_planted("calls", CALLS),
    *_planted("driver", DRIVER),
    *_planted("planes", PLANES),
]
