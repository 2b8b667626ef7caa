"""Campaigns of every strategy, and promises of theirs that are broken on purpose and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.backend import fill
from spotmpi.arrays.registry import Scope
from spotmpi.fabric import Fetch, Fetched, Publish
from spotmpi.operators import (
    Asking,
    ElasticAverage,
    OuterUpdate,
    PairAverage,
    PushSum,
    Step,
    StepPosition,
)
from spotmpi.protocol.dealer import Dealer
from spotmpi.protocol.paces import Pace, paces
from spotmpi.protocol.sampler import Sampler
from spotmpi.simulation.schedules import STRATEGIES, Campaign
from spotmpi.simulation.search import Outcome, length, search, shrink
from spotmpi.strategies import Strategy
from spotmpi.training.exchange import TrainingExchange
from spotmpi.training.keeping.checkpoints import Checkpoints
from spotmpi.training.model import Model
from spotmpi.training.state.progress import Progress
from spotmpi.training.steps.step_round import LearnRound
from spotmpi.training.steps.worker_steps import WorkerSteps
from spotmpi.training.steps.worker_tables import WorkerTables
from spotmpi.training.synchroniser import Result, Synchroniser
from tests.simulation.hunting import Mutation, hunt, set_odds

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
@pytest.mark.parametrize("runs", [6, pytest.param(100, marks=pytest.mark.matrix)])
def test_no_schedule_breaks_a_promise(strategy: str, runs: int) -> None:
    outcomes: list[Outcome] = []
    drawn = Campaign(2, 6, 11, strategies=(strategy,))
    failing = search(drawn, range(runs), lambda _, outcome: outcomes.append(outcome))
    assert failing is None, shrink(drawn.schedule(failing, length))
    assert len(outcomes) == runs
    assert sum(outcome.recoveries for outcome in outcomes) > runs / 2
    assert sum(outcome.graduates for outcome in outcomes) > runs / 20


def test_a_campaign_draws_every_strategy() -> None:
    drawn = Campaign(3, 3, 1, strategies=STRATEGIES)
    assert {drawn.schedule(number, length).strategy for number in range(60)} == {*STRATEGIES}
    one = Campaign(3, 3, 1)
    for number in range(20):  # all else is as it would be without the others
        assert replace(drawn.schedule(number, length), strategy="ssgd") == one.schedule(
            number, length
        )


# Each breaks one line. A search that did not find it would be worthless.


def a_newcomer_trains_from_what_its_script_gave_it(patch: Patch) -> None:
    commit = TrainingExchange.commit

    def wrong(self: TrainingExchange, *given: Any) -> None:
        with patch.context() as inner:
            inner.setattr(Model, "settle", lambda self: None)
            commit(self, *given)

    patch.setattr(TrainingExchange, "commit", wrong)


def what_the_outer_optimizer_remembers_is_each_worker_s_own(patch: Patch) -> None:
    init = OuterUpdate.init

    def wrong(self: OuterUpdate, layout: Any) -> Any:
        states = dict(init(self, layout))
        states["outer velocity"] = replace(states["outer velocity"], scope=Scope.LOCAL)
        return states

    patch.setattr(OuterUpdate, "init", wrong)


def a_job_stops_in_the_middle_of_a_round_s_steps(patch: Patch) -> None:
    patch.setattr(WorkerSteps, "level", True)


def a_worker_counts_as_its_last_step_alone(patch: Patch) -> None:
    position = WorkerSteps.position

    def wrong(self: WorkerSteps) -> StepPosition:
        now = position(self)
        return now._replace(share=now.samples)

    patch.setattr(WorkerSteps, "position", wrong)


def who_was_lost_pulls_as_well(patch: Patch) -> None:
    know = Synchroniser._know

    def wrong(step: Any, result: Result) -> None:
        know(step, result._replace(active=4))

    patch.setattr(Synchroniser, "_know", staticmethod(wrong))


def there_is_no_model_of_all(patch: Patch) -> None:
    patch.setattr(ElasticAverage, "centre", None)


def a_worker_forgets_its_velocity_with_each_round(patch: Patch) -> None:
    complete = Synchroniser.complete

    def wrong(self: Synchroniser[Any], result: Result) -> None:
        complete(self, result)
        self._model.forget()

    patch.setattr(Synchroniser, "complete", wrong)


def a_step_that_counts_for_nothing_moves_its_worker(patch: Patch) -> None:
    position = WorkerSteps.position

    def wrong(self: WorkerSteps) -> StepPosition:
        now = position(self)
        return now._replace(samples=now.samples or 1e-9)

    patch.setattr(WorkerSteps, "position", wrong)


def a_checkpoint_is_due_for_the_last_step_of_a_round_alone(patch: Patch) -> None:
    due = Checkpoints.due
    patch.setattr(Checkpoints, "due", lambda self, before, after: due(self, after - 1, after))


def what_is_sent_ahead_is_what_there_is_at_the_end(patch: Patch) -> None:
    patch.setattr(Strategy, "contribute", lambda self, step: self.meeting.contribute(step))


def a_part_is_sent_after_another_one(patch: Patch) -> None:
    def wrong(self: Progress, contributors: Any) -> Any:
        return [self.steps + bool(contributors), 0, None]

    patch.setattr(Progress, "snapshot", wrong)


def what_the_lost_were_to_take_after_their_part_is_not_dealt_again(patch: Patch) -> None:
    after = Sampler.after

    def wrong(self: Sampler, contributors: Any) -> Any:
        self._pending = ()
        return after(self, contributors)

    patch.setattr(Sampler, "after", wrong)


def what_was_taken_after_a_part_is_dealt_again(patch: Patch) -> None:
    after = Sampler.after

    def wrong(self: Sampler, contributors: Any) -> Any:
        lost = max(contributors)
        known = after(self, contributors)
        mine = [self._of(one) for one in self._pending if one.worker == lost]
        return {**known, "pool": np.concatenate([*mine, known["pool"]])}

    patch.setattr(Sampler, "after", wrong)


def the_last_part_of_a_pass_goes_ahead_of_its_last_steps(patch: Patch) -> None:
    deal = Sampler.deal

    def wrong(self: Sampler, *known: Any) -> Any:
        found = deal(self, *known)
        if found is not None:
            self._lease = found = replace(found, delay=min(known[-1], found.steps - 1))
        return found

    patch.setattr(Sampler, "deal", wrong)


def a_newcomer_does_not_know_what_others_took_after_their_parts(patch: Patch) -> None:
    restore = Sampler.restore
    patch.setattr(Sampler, "restore", lambda self, known: restore(self, {**known, "pending": ()}))


def a_lease_is_dealt_by_what_each_worker_knows_of_itself(patch: Patch) -> None:
    def wrong(self: WorkerSteps, workers: Any) -> Any:
        known = self._training.sync.paces
        mine = [one._replace(seconds=one.seconds / 9) for one in known if one.worker == self._me]
        return paces(workers, [*known, *mine], self.now.strategy.every)

    patch.setattr(WorkerSteps, "_paces", wrong)


def a_newcomer_does_not_hear_of_others_paces(patch: Patch) -> None:
    commit = LearnRound.commit

    def wrong(self: LearnRound, *known: Any) -> None:
        commit(self, *known)
        self._training.sync.paces = ()

    patch.setattr(LearnRound, "commit", wrong)


def a_worker_brings_its_pace_to_another_s_place(patch: Patch) -> None:
    tell = WorkerTables.tell_pace

    def wrong(self: WorkerTables, pace: Pace | None, place: int) -> None:
        tell(self, pace, place // 2)

    patch.setattr(WorkerTables, "tell_pace", wrong)


def who_was_lost_counts_among_the_paces(patch: Patch) -> None:
    """The round is computed with what was known of all at its beginning."""
    patch.setattr(Result, "told", lambda self, *given: self)


def steps_that_were_left_out_count(patch: Patch) -> None:
    patch.setattr(Dealer, "end", lambda self, taken: self._drawn and self._drawn.deal(()))


def changed(asking: Asking, change: Callable[[Any], Any]) -> Asking:
    """What a stage asks, with each request and each reply as ``change`` makes it."""
    reply = None
    try:
        while True:
            reply = change((yield change(asking.send(reply))))
    except StopIteration:
        return


def a_model_is_shown_in_halves(patch: Patch) -> None:
    run = PairAverage.run

    def wrong(self: PairAverage, step: Step) -> Asking:
        before = [flat.copy() for flat in step.params]

        def halves(what: Any) -> Any:
            if not isinstance(what, Publish):
                return what
            before[0][: len(before[0]) // 2] = step.params[0][: len(before[0]) // 2]
            return Publish([before[0], *what.model[1:]])

        return changed(run(self, step), halves)

    patch.setattr(PairAverage, "run", wrong)


def a_model_pulls_several_workers(patch: Patch) -> None:
    run = PairAverage.run

    def read(what: Any) -> Any:
        return Fetch(what.worker) if isinstance(what, Fetch) else what

    patch.setattr(PairAverage, "run", lambda self, step: changed(run(self, step), read))


def a_model_from_before_the_last_round_pulls_a_worker_back(patch: Patch) -> None:
    run = PairAverage.run

    def wrong(self: PairAverage, step: Step) -> Asking:
        def new(what: Any) -> Any:
            if isinstance(what, Fetched):
                what.model[-1][0] = step.now.round
            return what

        return changed(run(self, step), new)

    patch.setattr(PairAverage, "run", wrong)


def a_model_is_shown_as_one_of_a_later_round(patch: Patch) -> None:
    run = PairAverage.run

    def wrong(self: PairAverage, step: Step) -> Asking:
        def later(what: Any) -> Any:
            if isinstance(what, Publish) and step.now.chance < 0.1:
                what.model[-1][0] += 1
            return what

        return changed(run(self, step), later)

    patch.setattr(PairAverage, "run", wrong)


def a_worker_with_nothing_of_its_own_averages_its_model(patch: Patch) -> None:
    run = PairAverage.run

    def wrong(self: PairAverage, step: Step) -> Asking:
        step.now = step.now._replace(samples=1.0)
        yield from run(self, step)

    patch.setattr(PairAverage, "run", wrong)


def what_was_taken_is_taken_again(patch: Patch) -> None:
    take = PushSum._take

    def wrong(self: PushSum, step: Step, found: Fetched) -> None:
        (weights,) = step.state["weights"]
        weights[1] = 0.0
        fill(step.state["taken"], 0)
        take(self, step, found)

    patch.setattr(PushSum, "_take", wrong)


def a_weight_remains_with_who_has_given_it(patch: Patch) -> None:
    give = PushSum._give

    def wrong(self: PushSum, step: Step) -> None:
        give(self, step)
        step.state["weights"][0][0] *= 2

    patch.setattr(PushSum, "_give", wrong)


def a_model_is_shown_with_the_weight_of_the_step_before(patch: Patch) -> None:
    run = PushSum.run

    def wrong(self: PushSum, step: Step) -> Asking:
        before = step.state["told"][0].copy()

        def old(what: Any) -> Any:
            if isinstance(what, Publish) and before[0] == what.model[-1][0]:
                return Publish([*what.model[:-1], before])
            return what

        return changed(run(self, step), old)

    patch.setattr(PushSum, "run", wrong)


def what_was_given_in_one_round_is_taken_in_the_next(patch: Patch) -> None:
    take = PushSum._take

    def wrong(self: PushSum, step: Step, found: Fetched) -> None:
        found.model[-1][:2] = step.state["told"][0][:2]
        take(self, step, found)

    patch.setattr(PushSum, "_take", wrong)


def a_worker_takes_what_was_given_to_another(patch: Patch) -> None:
    position = WorkerSteps.position

    def wrong(self: WorkerSteps) -> StepPosition:
        now = position(self)
        return now._replace(before=now.others[0]) if now.others else now

    patch.setattr(WorkerSteps, "position", wrong)


STREAMED, PAIRS, GOSSIP = STRATEGIES[-3:]

BROKEN: list[tuple[Mutation, str]] = [
    (a_newcomer_trains_from_what_its_script_gave_it, "sma:pull=0.75,momentum=0.5"),
    (
        what_the_outer_optimizer_remembers_is_each_worker_s_own,
        "diloco:h=2,outer=0.5,momentum=0.75",
    ),
    (a_job_stops_in_the_middle_of_a_round_s_steps, "localsgd:h=3"),
    (a_worker_counts_as_its_last_step_alone, "localsgd:h=2"),
    (who_was_lost_pulls_as_well, "easgd:every=2,pull=0.5"),
    (there_is_no_model_of_all, "sma:pull=0.75,momentum=0.5"),
    (a_worker_forgets_its_velocity_with_each_round, "localsgd:h=2"),
    (a_step_that_counts_for_nothing_moves_its_worker, "localsgd:h=2"),
    (a_checkpoint_is_due_for_the_last_step_of_a_round_alone, "localsgd:h=3"),
    (what_is_sent_ahead_is_what_there_is_at_the_end, STREAMED),
    (a_part_is_sent_after_another_one, STREAMED),
    (what_the_lost_were_to_take_after_their_part_is_not_dealt_again, STREAMED),
    (what_was_taken_after_a_part_is_dealt_again, STREAMED),
    (the_last_part_of_a_pass_goes_ahead_of_its_last_steps, STREAMED),
    (a_newcomer_does_not_know_what_others_took_after_their_parts, STREAMED),
    (a_lease_is_dealt_by_what_each_worker_knows_of_itself, PAIRS),
    (a_newcomer_does_not_hear_of_others_paces, PAIRS),
    (a_worker_brings_its_pace_to_another_s_place, PAIRS),
    (who_was_lost_counts_among_the_paces, PAIRS),
    (steps_that_were_left_out_count, PAIRS),
    (a_model_is_shown_in_halves, PAIRS),
    (a_model_pulls_several_workers, PAIRS),
    (a_model_from_before_the_last_round_pulls_a_worker_back, PAIRS),
    (a_model_is_shown_as_one_of_a_later_round, PAIRS),
    (a_worker_with_nothing_of_its_own_averages_its_model, PAIRS),
    (what_was_taken_is_taken_again, GOSSIP),
    (a_weight_remains_with_who_has_given_it, GOSSIP),
    (a_model_is_shown_with_the_weight_of_the_step_before, GOSSIP),
    (what_was_given_in_one_round_is_taken_in_the_next, GOSSIP),
    (a_worker_takes_what_was_given_to_another, GOSSIP),
]
ODDS = {"PLANS": 0.8, "CHANGES": 0.0}
"""How often what happens in the schedules that are searched for them."""

BEGIN = {
    a_newcomer_does_not_hear_of_others_paces: 100,
    a_worker_with_nothing_of_its_own_averages_its_model: 310,
}
"""Where the search for it begins, near what shows it: all schedules before it would take long."""


@pytest.mark.parametrize(
    ("mutation", "strategy"), BROKEN, ids=[mutation.__name__ for mutation, _ in BROKEN]
)
@pytest.mark.matrix
def test_a_broken_promise_is_found(mutation: Mutation, strategy: str, monkeypatch: Patch) -> None:
    set_odds(monkeypatch, ODDS)
    drawn = Campaign(4, 4, 1, strategies=(strategy,))
    begin = BEGIN.get(mutation, 0)
    broken, _ = hunt(mutation, monkeypatch, drawn, range(begin, begin + 1000))
    assert broken.strategy == strategy


@pytest.mark.campaign
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_many_schedules(strategy: str) -> None:
    drawn = Campaign(2, 8, 12, strategies=(strategy,))
    failing = search(drawn, range(20_000), lambda _, outcome: None)
    assert failing is None, shrink(drawn.schedule(failing, length))
