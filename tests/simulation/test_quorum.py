"""Promises of rounds that wait for nobody who is late, broken on purpose and found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spotmpi.arrays.backend import fill
from spotmpi.operators import OuterUpdate, Step
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.paces import Pace, all_of
from spotmpi.simulation.schedules import STRATEGIES, Campaign
from spotmpi.simulation.search import search
from spotmpi.training import synchroniser
from spotmpi.training.script.script_position import ScriptPosition
from spotmpi.training.steps.quorum_watch import QuorumWatch
from spotmpi.training.steps.worker_steps import RoundSteps, WorkerSteps
from spotmpi.training.steps.worker_tables import WorkerTables
from tests.simulation.hunting import Mutation, first_failing, hunt, set_odds

Patch = pytest.MonkeyPatch

(QUORUM,) = (one for one in STRATEGIES if "quorum" in one)


# Each breaks one line. A search that did not find it would be worthless.


def who_is_cut_short_brings_its_model_as_if_it_had_used_all_its_samples(patch: Patch) -> None:
    def wrong(self: RoundSteps, worker: WorkerId) -> int:
        return self.steps if self.dealt is None else len(self.dealt.of(worker))

    patch.setattr(RoundSteps, "share", wrong)


def who_is_cut_short_says_that_it_has_used_all_its_samples(patch: Patch) -> None:
    tell = WorkerSteps._tell

    def wrong(self: WorkerSteps) -> None:
        tell(self)
        turn = self.now
        if turn.pace is not None and turn.dealt is not None:
            whole = len(turn.dealt.of(self._me))
            turn.pace = turn.pace._replace(taken=turn.planned, samples=whole)

    patch.setattr(WorkerSteps, "_tell", wrong)


def samples_that_were_not_used_do_not_come_back(patch: Patch) -> None:
    tell = WorkerSteps._tell

    def wrong(self: WorkerSteps) -> None:
        tell(self)
        if self.now.pace is not None:
            self.now.pace = self.now.pace._replace(taken=self.now.planned)

    patch.setattr(WorkerSteps, "_tell", wrong)


def who_is_cut_short_brings_nothing_and_counts(patch: Patch) -> None:
    contribute = OuterUpdate.contribute

    def wrong(self: OuterUpdate, step: Step) -> Any:
        found = contribute(self, step)
        return found if step.now.samples else lambda flats: fill(flats, 0)

    patch.setattr(OuterUpdate, "contribute", wrong)


def steps_are_counted_by_what_all_have_taken(patch: Patch) -> None:
    patch.setattr(synchroniser, "furthest", all_of)


def who_is_late_is_forgotten_by_the_others(patch: Patch) -> None:
    """The round counts those who had taken all their steps."""
    told = WorkerTables.told_paces.fget
    assert told is not None

    def wrong(self: WorkerTables) -> Sequence[Pace] | None:
        known: Sequence[Pace] | None = told(self)
        if not known:
            return known
        return [one for one in known if one.taken == one.dealt] or known

    patch.setattr(WorkerTables, "told_paces", property(wrong))


def who_is_late_goes_on_without_its_round(patch: Patch) -> None:
    is_due = QuorumWatch.is_due

    def wrong(self: QuorumWatch, turn: RoundSteps, planned: bool) -> Any:
        if (yield from is_due(self, turn, planned)):
            turn.lease = turn.lease and replace(turn.lease, steps=turn.taken, paces=())
            turn.steps = turn.planned = turn.taken + 1
        return False

    patch.setattr(QuorumWatch, "is_due", wrong)


def a_newcomer_does_not_know_what_late_workers_left(patch: Patch) -> None:
    settle = ScriptPosition.settle

    def wrong(self: ScriptPosition, taken: Any, *known: Any) -> None:
        settle(self, dict.fromkeys(taken, 99), *known)

    patch.setattr(ScriptPosition, "settle", wrong)


DRAWN = Campaign(4, 4, 1, strategies=(QUORUM,))
ODDS = {"CHANGES": 0.0}

BROKEN: list[Mutation] = [
    who_is_cut_short_brings_its_model_as_if_it_had_used_all_its_samples,
    who_is_cut_short_says_that_it_has_used_all_its_samples,
    samples_that_were_not_used_do_not_come_back,
    who_is_cut_short_brings_nothing_and_counts,
    steps_are_counted_by_what_all_have_taken,
    who_is_late_is_forgotten_by_the_others,
    who_is_late_goes_on_without_its_round,
    a_newcomer_does_not_know_what_late_workers_left,
]


@pytest.mark.parametrize("mutation", BROKEN)
@pytest.mark.matrix
def test_a_broken_promise_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    set_odds(monkeypatch, ODDS)
    hunt(mutation, monkeypatch, DRAWN, range(40))


@pytest.mark.matrix
def test_nothing_is_found_where_nothing_is_broken() -> None:
    assert first_failing(DRAWN, range(40)) is None


def test_workers_are_cut_short_in_most_of_these_schedules(monkeypatch: Patch) -> None:
    """Else all of this would say nothing."""
    ends: list[tuple[int, int]] = []
    is_due = QuorumWatch.is_due

    def counted(self: QuorumWatch, turn: RoundSteps, planned: bool) -> Any:
        due = yield from is_due(self, turn, planned)
        ends[-1] = ends[-1][0] + due, ends[-1][1] + 1
        return due

    monkeypatch.setattr(QuorumWatch, "is_due", counted)
    drawn = Campaign(4, 4, 1, strategies=(QUORUM,))
    for number in range(30):
        ends.append((0, 0))
        assert search(drawn, [number], lambda _, outcome: None) is None
    assert sum(cut > 0 for cut, _ in ends) > 15
    cut, looked = map(sum, zip(*ends, strict=True))
    assert cut < 0.8 * looked, "and in some they are not"
