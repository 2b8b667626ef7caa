"""`spotmpi.training.steps.quorum_watch`: when a worker that is late takes no more steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.fabric import MARK, Signal, Signals
from spotmpi.launcher_channel import Order
from spotmpi.protocol.membership import Membership
from spotmpi.strategies import ADPSGD, DiLoCo, LocalSGD, Strategy
from spotmpi.training.state.progress import Progress
from spotmpi.training.steps.quorum_watch import QuorumWatch
from spotmpi.training.steps.worker_steps import RoundSteps

QUORUM = DiLoCo(h=64, quorum=0.75, grace=2.0)


class Late:
    """Worker 0 of some, on its way to a round, on a clock of its own."""

    def __init__(self, workers: int = 4, strategy: Strategy = QUORUM) -> None:
        self.now = 100.0
        self.order: Order | None = None
        self.membership = Membership.first(["h"] * workers)
        self.learning: set[int] = set()
        self.progress = Progress(7)
        self.marks: dict[int, bytes | None] = dict.fromkeys(range(1, workers))
        fabric = SimpleNamespace(me=0, clock=lambda: self.now)
        channel = SimpleNamespace(order_for=lambda _worker: self.order)
        training: Any = SimpleNamespace(
            sync=SimpleNamespace(strategy=strategy), progress=self.progress
        )
        context: Any = SimpleNamespace(fabric=fabric, channel=channel)
        transfer: Any = SimpleNamespace(
            full=lambda workers: [one for one in workers if one not in self.learning]
        )
        self.watch = QuorumWatch(context, training, transfer, lambda: self.membership)
        self.turn = RoundSteps(LocalSGD(h=64), self.now)

    def comes(self) -> list[Any]:
        """What it asks for when it has come to its round."""
        return list(self.watch.come())

    def come(self, *workers: int) -> None:
        """These have come to the round that this one is on its way to."""
        for worker in workers:
            (told,) = Late.comes(self)
            self.marks[worker] = told.mark

    def step(self, seconds: float = 1.0, planned: bool = False) -> bool:
        """It takes a step; whether that was the last one of the turn."""
        self.now += seconds
        self.turn.taken += 1
        asks = self.watch.is_due(self.turn, planned)
        try:
            assert next(asks) == Signals()
            asks.send(self.marks)
        except StopIteration as stop:
            return bool(stop.value)
        raise AssertionError("it asks for more than the marks of others")


def test_who_is_late_goes_on_until_enough_have_come_and_some_time_is_over() -> None:
    late = Late()
    assert not late.step()
    late.come(1, 2)
    assert not any(late.step() for _ in range(50))
    late.come(3)
    assert [late.step(), late.step(), late.step()] == [False, False, True]


def test_it_begins_no_step_that_is_likely_to_be_too_long() -> None:
    late = Late()
    late.come(1, 2, 3)
    assert late.step(2.5)
    quick = Late()
    quick.come(1, 2, 3)
    said = [quick.step(0.25) for _ in range(9)]
    assert said == [False] * 8 + [True]


def test_its_patience_begins_anew_with_each_round() -> None:
    late = Late()
    for _ in range(2):
        late.come(1, 2, 3)
        assert [late.step(), late.step(), late.step()] == [False, False, True]
        late.comes()
        late.progress.rounds += 1
        late.turn = RoundSteps(LocalSGD(h=64), late.now)


def test_without_a_quorum_nobody_looks() -> None:
    for strategy in (DiLoCo(h=64), ADPSGD()):
        late = Late(strategy=strategy)
        assert late.comes() == []
        assert list(late.watch.is_due(late.turn, True)) == []


@pytest.mark.parametrize("change", ["round", "generation"])
def test_what_was_told_of_another_round_or_among_others_says_nothing(change: str) -> None:
    late = Late()
    late.come(1, 2, 3)
    if change == "round":
        late.progress.rounds += 1
    else:
        late.membership = Membership(1, late.membership.workers)
    assert not any(late.step() for _ in range(9))


def test_nobody_waits_for_who_is_lost_either() -> None:
    late = Late()
    late.come(1, 2)
    del late.marks[3]
    assert [late.step() for _ in range(3)] == [False, False, True]
    alone = Late()
    alone.marks.clear()
    assert not any(alone.step() for _ in range(9)), "nobody waits for it"


def test_who_learns_is_none_of_them() -> None:
    late = Late(5)
    late.come(1, 2, 3)
    assert not any(late.step() for _ in range(9))
    late = Late(5)
    late.learning.add(4)
    late.come(1, 2, 3)
    assert [late.step() for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("order", [Order(stop=True), Order(leave=True)])
def test_who_is_to_go_takes_no_step_more_nor_do_the_others_then(order: Order) -> None:
    goes = Late()
    assert not goes.step()
    goes.order = order
    assert goes.step()
    (told,) = goes.comes()
    assert isinstance(told, Signal)
    assert len(told.mark) <= MARK
    stays = Late()
    assert not stays.step()
    stays.marks[2] = told.mark
    assert stays.step()
    stays.progress.rounds += 1
    assert not stays.step()


def test_the_round_after_which_somebody_goes_comes_after_a_step() -> None:
    assert Late().step(planned=True)


def test_a_share_of_workers_is_a_whole_number_of_them() -> None:
    quorum = QUORUM.quorum
    assert quorum is not None
    assert [quorum.of(workers) for workers in (1, 2, 3, 4, 5, 8)] == [1, 2, 3, 3, 4, 6]
    tenths = DiLoCo(quorum=0.7).quorum
    assert tenths is not None
    assert [tenths.of(workers) for workers in (10, 20, 30)] == [7, 14, 21]
