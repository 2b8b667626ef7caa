"""Promises of a parameter server that workers hold, broken on purpose and found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from spotmpi.arrays.backend import fill
from spotmpi.operators import Asking, PushedSum, PushPull, Step, shards
from spotmpi.simulation.schedules import Campaign
from tests.simulation.hunting import Mutation, first_failing, hunt

Patch = pytest.MonkeyPatch

SERVER = "parameterserver:shards=2,control=4"
DRAWN = Campaign(4, 4, 1, strategies=(SERVER,))


# Each breaks one line. A search that did not find it would be worthless.


def a_push_is_taken_twice(patch: Patch) -> None:
    take = shards._Round._take

    def wrong(self: Any, place: int, push: float, pushed: Sequence[Any]) -> None:
        for taken in self._step.state["taken"][place * self._buckets :][: self._buckets]:
            taken *= 0.5
        take(self, place, push, pushed)

    patch.setattr(shards._Round, "_take", wrong)


def who_mirrors_a_shard_forgets_what_was_pushed(patch: Patch) -> None:
    take = shards._Round._take

    def wrong(self: Any, place: int, push: float, pushed: Sequence[Any]) -> None:
        take(self, place, push, pushed)
        for number, held in enumerate(self._step.state["held"]):
            if (self._place - number % self._shards) % len(self._members) == 1:
                held[:] = 0

    patch.setattr(shards._Round, "_take", wrong)


def a_push_counts_that_was_not_taken(patch: Patch) -> None:
    take = shards._Round._take

    def wrong(self: Any, place: int, push: float, pushed: Sequence[Any]) -> None:
        take(self, place, push, pushed if place == self._place else [0 * one for one in pushed])

    patch.setattr(shards._Round, "_take", wrong)


def a_shard_goes_back_to_where_the_round_began(patch: Patch) -> None:
    """When nothing comes of who holds it."""
    push = shards._Round.push

    def wrong(self: Any) -> None:
        fill(self._step.state["others"], 0)
        push(self)

    patch.setattr(shards._Round, "push", wrong)


def a_worker_goes_back_to_who_has_less(patch: Patch) -> None:
    pull = shards._Round._pull

    def wrong(self: Any, place: int, numbers: Any, held: Sequence[Any]) -> None:
        self._most[:] = 0
        pull(self, place, numbers, held)

    patch.setattr(shards._Round, "_pull", wrong)


def what_a_worker_did_itself_comes_back_to_it(patch: Patch) -> None:
    patch.setattr(shards, "_BEFORE", "pushed")


def the_next_push_comes_before_the_last_one_was_taken(patch: Patch) -> None:
    push = shards._Round.push

    def wrong(self: Any) -> None:
        self._arrived[:] = 1
        push(self)

    patch.setattr(shards._Round, "push", wrong)


def pushes_of_the_last_round_are_taken(patch: Patch) -> None:
    take = shards._Round.take

    def wrong(self: Any, found: Any) -> None:
        if found.model[0][0] == self.numbers[0] - 1:
            found.model[0][:2] = self.numbers[:2]
        take(self, found)

    patch.setattr(shards._Round, "take", wrong)


def a_round_brings_what_was_shown(patch: Patch) -> None:
    """What was not pushed yet is lost."""

    def wrong(self: PushedSum, step: Step) -> Any:
        def bring(flats: Sequence[Any]) -> None:
            for flat, pushed in zip(flats, step.state["pushed"], strict=True):
                flat[:] = pushed if step.now.share else 0

        return bring

    patch.setattr(PushedSum, "contribute", wrong)


def a_round_forgets_who_has_no_gradient_in_its_last_step(patch: Patch) -> None:
    contribute = PushedSum.contribute

    def wrong(self: PushedSum, step: Step) -> Any:
        step.now = step.now._replace(share=step.now.samples)
        return contribute(self, step)

    patch.setattr(PushedSum, "contribute", wrong)


def a_worker_trains_its_own_alone(patch: Patch) -> None:
    patch.setattr(shards._Round, "_pull", lambda *known: None)


def nothing_is_begun_anew_after_a_round(patch: Patch) -> None:
    patch.setattr(shards, "_ROUND", 1)


def what_is_held_is_shown_before_all_of_it_is_there(patch: Patch) -> None:
    run = PushPull.run

    def wrong(self: PushPull, step: Step) -> Asking:
        before = [flat.copy() for flat in step.state["held"]]
        asks, reply = run(self, step), None
        try:
            while True:
                asked: Any = asks.send(reply)
                if hasattr(asked, "model"):
                    half = len(before[0]) // 2
                    asked.model[1 + len(before)] = asked.model[1 + len(before)].copy()
                    asked.model[1 + len(before)][:half] = before[0][:half]
                reply = yield asked
        except StopIteration:
            return

    patch.setattr(PushPull, "run", wrong)


BROKEN: list[Mutation] = [
    a_push_is_taken_twice,
    who_mirrors_a_shard_forgets_what_was_pushed,
    a_push_counts_that_was_not_taken,
    a_shard_goes_back_to_where_the_round_began,
    a_worker_goes_back_to_who_has_less,
    what_a_worker_did_itself_comes_back_to_it,
    the_next_push_comes_before_the_last_one_was_taken,
    pushes_of_the_last_round_are_taken,
    a_round_brings_what_was_shown,
    a_round_forgets_who_has_no_gradient_in_its_last_step,
    a_worker_trains_its_own_alone,
    nothing_is_begun_anew_after_a_round,
    what_is_held_is_shown_before_all_of_it_is_there,
]


@pytest.mark.parametrize("mutation", BROKEN)
@pytest.mark.matrix
def test_a_broken_promise_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    hunt(mutation, monkeypatch, DRAWN, range(40))


@pytest.mark.matrix
def test_nothing_is_found_where_nothing_is_broken() -> None:
    assert first_failing(DRAWN, range(40)) is None
