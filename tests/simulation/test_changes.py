"""Campaigns of trainings whose strategy changes, and promises of theirs that are broken on purpose
and found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spotmpi.rounds.state_transfer import StateTransfer
from spotmpi.simulation.schedules import STRATEGIES, Campaign
from spotmpi.simulation.search import Outcome, length, search, shrink
from spotmpi.training.journal import Journal
from spotmpi.training.model import Model
from spotmpi.training.state.training_state import Followed, TrainingState
from spotmpi.training.steps.switching import Switching
from spotmpi.training.steps.worker_steps import RoundSteps, WorkerSteps
from spotmpi.training.synchroniser import Synchroniser
from tests.simulation.hunting import Mutation, hunt

Patch = pytest.MonkeyPatch


@pytest.mark.matrix
def test_no_schedule_breaks_a_promise() -> None:
    outcomes: list[Outcome] = []
    drawn = Campaign(2, 6, 13, strategies=STRATEGIES, changing=True)
    failing = search(drawn, range(80), lambda _, outcome: outcomes.append(outcome))
    assert failing is None, shrink(drawn.schedule(failing, length))
    assert sum(outcome.recoveries for outcome in outcomes) > 50
    assert sum(outcome.graduates for outcome in outcomes) > 10
    changes = [tuple(change) for outcome in outcomes for change in outcome.switched]
    assert len(changes) > 50
    assert len({*changes}) > 40
    assert {one for change in changes for one in change} == {*STRATEGIES}


# Each breaks one line. A search that did not find it would be worthless.


def nobody_hears_the_wish(patch: Patch) -> None:
    patch.setattr(Switching, "heard", lambda self, *known: None)


def a_worker_does_not_change(patch: Patch) -> None:
    true = Switching.heard

    def heard(self: Switching, *known: Any) -> None:
        if self._journal._me != 1:
            true(self, *known)

    patch.setattr(Switching, "heard", heard)


def it_changes_while_somebody_learns(patch: Patch) -> None:
    patch.setattr(StateTransfer, "idle", property(lambda self: True))


def who_learns_another_state_goes_on_with_the_old_pages(patch: Patch) -> None:
    patch.setattr(StateTransfer, "change", _not_again(StateTransfer.change))


def _leaving_out(patch: Patch, owner: type, name: str) -> None:
    """A change to another strategy that leaves out one thing."""
    true = TrainingState.follow

    def follow(self: TrainingState[Any], number: int) -> None:
        with patch.context() as inner:
            inner.setattr(owner, name, lambda *_: None)
            true(self, number)

    patch.setattr(TrainingState, "follow", follow)


def optimizers_remember_what_was_their_own(patch: Patch) -> None:
    _leaving_out(patch, Model, "forget")


def who_rehearses_remembers_that(patch: Patch) -> None:
    true = Synchroniser.rehearse

    def rehearse(self: Synchroniser[Any], grads: Any) -> None:
        with patch.context() as inner:
            inner.setattr(Model, "forget", lambda self: None)
            true(self, grads)

    patch.setattr(Synchroniser, "rehearse", rehearse)


def workers_keep_their_own_parameters(patch: Patch) -> None:
    _leaving_out(patch, Model, "settle")


def the_strategy_does_not_begin_anew(patch: Patch) -> None:
    _leaving_out(patch, Synchroniser, "start")


def turns_are_as_long_as_before(patch: Patch) -> None:
    def begun(self: WorkerSteps) -> RoundSteps:
        before = getattr(self, "now", None)
        return RoundSteps(
            before.strategy if before else self._training.sync.strategy, self._clock()
        )

    patch.setattr(WorkerSteps, "_begun", begun)


def a_newcomer_follows_what_the_job_began_with(patch: Patch) -> None:
    patch.setattr(Followed, "restore", lambda self, told: None)


def the_trace_says_it_late(patch: Patch) -> None:
    true = Journal.switched

    def switched(self: Journal, step: int, *rest: Any) -> None:
        true(self, step + 1, *rest)

    patch.setattr(Journal, "switched", switched)


def _not_again(true: Callable[..., None]) -> Callable[..., None]:
    """What does it once for each."""
    done: list[Any] = []

    def once(self: Any, *args: Any) -> None:
        if not any(one is self for one in done):
            done.append(self)
            true(self, *args)

    return once


BROKEN = [
    nobody_hears_the_wish,
    a_worker_does_not_change,
    it_changes_while_somebody_learns,
    who_learns_another_state_goes_on_with_the_old_pages,
    optimizers_remember_what_was_their_own,
    who_rehearses_remembers_that,
    workers_keep_their_own_parameters,
    the_strategy_does_not_begin_anew,
    turns_are_as_long_as_before,
    a_newcomer_follows_what_the_job_began_with,
    the_trace_says_it_late,
]
DRAWN = Campaign(4, 4, 1, strategies=STRATEGIES, changing=True)
"""The schedules that are searched for them: ``spotmpi simulate protocol --strategy changing``."""


@pytest.mark.parametrize("mutation", BROKEN, ids=lambda mutation: mutation.__name__)
@pytest.mark.matrix
def test_a_broken_promise_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    broken, _ = hunt(mutation, monkeypatch, DRAWN, range(1500))
    assert broken.changes


@pytest.mark.campaign
def test_many_schedules() -> None:
    drawn = Campaign(2, 8, 14, strategies=STRATEGIES, changing=True)
    failing = search(drawn, range(20_000), lambda _, outcome: None)
    assert failing is None, shrink(drawn.schedule(failing, length))
