"""Promises of a model that workers share without locks, broken on purpose and found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spotmpi.fabric import AddUp
from spotmpi.fabric.sim import sums
from spotmpi.operators import Asking, MeanOfSteps, SharedSteps, Step
from spotmpi.simulation.schedules import Campaign
from tests.simulation.hunting import Mutation, first_failing, hunt

Patch = pytest.MonkeyPatch

HOGWILD = "hogwild:control=4"
DRAWN = Campaign(4, 4, 1, strategies=(HOGWILD,))
"""Two workers of four are on one host."""


# Each breaks one line. A search that did not find it would be worthless.


def asking(patch: Patch, change: Callable[[Step, AddUp, list[Any]], AddUp]) -> None:
    """Have something else added; given what the worker had come to before."""
    run = SharedSteps.run

    def wrong(self: SharedSteps, step: Step) -> Asking:
        before = [flat.copy() for flat in step.state["own"]]
        asks, reply = run(self, step), None
        try:
            while True:
                asked: Any = asks.send(reply)
                reply = yield change(step, asked, before)
        except StopIteration:
            return

    patch.setattr(SharedSteps, "run", wrong)


def a_worker_adds_its_last_step_alone(patch: Patch) -> None:
    def change(step: Step, asked: AddUp, before: list[Any]) -> AddUp:
        part = [own - was for own, was in zip(step.state["own"], before, strict=True)]
        return replace(asked, part=part)

    asking(patch, change)


def a_worker_adds_what_it_has_come_to(patch: Patch) -> None:
    asking(patch, lambda step, asked, _: replace(asked, part=step.state["own"]))


def a_worker_adds_to_the_sum_of_the_round_before(patch: Patch) -> None:
    asking(patch, lambda _, asked, __: replace(asked, round=max(0, asked.round - 1)))


def a_worker_is_not_of_those_who_take_steps(patch: Patch) -> None:
    asking(patch, lambda step, asked, _: replace(asked, among=step.now.others))


def a_worker_trains_its_own_alone(patch: Patch) -> None:
    run = SharedSteps.run

    def wrong(self: SharedSteps, step: Step) -> Asking:
        yield from run(self, step)
        if step.now.samples:
            for w, own in zip(step.params, step.state["own"], strict=True):
                w[:] = own

    patch.setattr(SharedSteps, "run", wrong)


def nothing_is_begun_anew_after_a_round(patch: Patch) -> None:
    run = SharedSteps.run

    def wrong(self: SharedSteps, step: Step) -> Asking:
        if step.state["begun"][0][0]:
            step.state["begun"][0][:] = step.now.round + 1
        yield from run(self, step)

    patch.setattr(SharedSteps, "run", wrong)


def a_round_takes_the_model_that_workers_share(patch: Patch) -> None:
    def wrong(self: MeanOfSteps, step: Step) -> Any:
        def bring(flats: Sequence[Any]) -> None:
            for flat, w, a in zip(flats, step.params, step.state["anchor"], strict=True):
                flat[:] = w - a if step.now.share else 0

        return bring

    patch.setattr(MeanOfSteps, "contribute", wrong)


def a_round_forgets_who_has_no_gradient_in_its_last_step(patch: Patch) -> None:
    contribute = MeanOfSteps.contribute

    def wrong(self: MeanOfSteps, step: Step) -> Any:
        step.now = step.now._replace(share=step.now.samples)
        return contribute(self, step)

    patch.setattr(MeanOfSteps, "contribute", wrong)


def who_was_lost_counts_in_the_mean(patch: Patch) -> None:
    apply = MeanOfSteps.apply

    def wrong(self: MeanOfSteps, step: Step, sums: Sequence[Any]) -> None:
        step.active = max(step.active, len(step.now.crew))
        apply(self, step, sums)

    patch.setattr(MeanOfSteps, "apply", wrong)


def a_part_is_added_to_the_one_before(patch: Patch) -> None:
    """By the memory itself."""
    add = sums.Sums._add

    def wrong(self: Any, me: int, asked: AddUp, many: int, second: bool) -> None:
        self._within.pop((me, asked.round), None)
        add(self, me, asked, many, second)

    patch.setattr(sums.Sums, "_add", wrong)


def a_sum_begins_with_that_of_the_round_before(patch: Patch) -> None:
    """The same."""
    add = sums.Sums._add

    def wrong(self: Any, me: int, asked: AddUp, many: int, second: bool) -> None:
        place = asked.round, self.host_of(me)
        if place not in self._sums and (asked.round - 1, place[1]) in self._sums:
            self._sums[place] = self._sums[asked.round - 1, place[1]]
        add(self, me, asked, many, second)

    patch.setattr(sums.Sums, "_add", wrong)


BROKEN: list[Mutation] = [
    a_worker_adds_its_last_step_alone,
    a_worker_adds_what_it_has_come_to,
    a_worker_adds_to_the_sum_of_the_round_before,
    a_worker_is_not_of_those_who_take_steps,
    a_worker_trains_its_own_alone,
    nothing_is_begun_anew_after_a_round,
    a_round_takes_the_model_that_workers_share,
    a_round_forgets_who_has_no_gradient_in_its_last_step,
    who_was_lost_counts_in_the_mean,
    a_part_is_added_to_the_one_before,
    a_sum_begins_with_that_of_the_round_before,
]


@pytest.mark.parametrize("mutation", BROKEN)
@pytest.mark.matrix
def test_a_broken_promise_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    hunt(mutation, monkeypatch, DRAWN, range(40))


@pytest.mark.matrix
def test_nothing_is_found_where_nothing_is_broken() -> None:
    assert first_failing(DRAWN, range(40)) is None
