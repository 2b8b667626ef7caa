"""`spotmpi.training.steps.worker_steps`: how the steps of one worker on the way to a round went."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spotmpi.protocol.membership import Membership
from spotmpi.protocol.paces import Pace
from spotmpi.protocol.sampler import Lease
from spotmpi.strategies import ADPSGD, SSGD
from spotmpi.training.state.meter import Meter
from spotmpi.training.state.progress import Progress
from spotmpi.training.steps.worker_steps import RoundSteps, WorkerSteps

CONTROL = 4


class Taken:
    """One worker of two, and the rounds that it goes through on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.training: Any = SimpleNamespace(
            sync=SimpleNamespace(strategy=ADPSGD(control=CONTROL)),
            progress=Progress(7),
            rate=SimpleNamespace(asked=0.1),
            position=SimpleNamespace(dealer=None),
            meter=Meter(),
        )
        membership = Membership.first(["h"] * 2)
        self.turns = WorkerSteps(self.training, 1, lambda: membership, lambda: self.now)

    def round(self, *seconds: float) -> Pace:
        """Steps that take so long, and what is told of them."""
        for one in seconds:
            now = self.turns.position()
            self.now += one
            self.turns.take(now, None)
            self.turns.advance()
        if len(seconds) < CONTROL:
            self.turns.end()
        told = self.turns.now.pace
        assert told is not None
        self.now += 0.5  # all meet: that is of no worker's pace
        self.turns.renew()
        return told


def test_a_worker_s_pace_is_the_median_of_its_rounds_of_the_last_second() -> None:
    one = Taken()
    quick = [0.01] * CONTROL
    assert one.round(*quick) == Pace(1, 4, 4, 4, pytest.approx(0.04))
    assert one.round(0.01, 0.01, 0.01, 0.33).seconds == pytest.approx(0.2), "not 0.36, as alone"
    one.round(*quick)
    assert one.round(*quick).seconds == pytest.approx(0.04), "a second later it is past"


def test_who_was_slow_and_is_quick_again_is_not_taken_for_slow() -> None:
    """It is dealt little then, so its quick rounds take no time beside the slow ones."""
    one = Taken()
    for _ in range(3):
        one.round(*[0.05] * CONTROL)
    told = [one.round(0.001).seconds for _ in range(4)]
    assert told[0] == pytest.approx((0.05 + 0.001) / 2)
    assert told[1:] == [pytest.approx(0.001)] * 3


def test_a_round_that_is_longer_than_that_stands_for_itself() -> None:
    one = Taken()
    one.round(0.1, 0.1, 0.1, 0.1)
    assert one.round(0.5, 0.5, 0.5, 0.5).seconds == pytest.approx(2.0)
    assert one.round(0.5, 0.5, 0.5, 0.5).seconds == pytest.approx(2.0)


def test_what_is_told_is_the_time_of_the_steps_that_were_taken_however_many() -> None:
    one = Taken()
    one.round(0.1, 0.1, 0.1, 0.1)
    assert one.round(0.2, 0.2) == Pace(1, 4, 2, 2, pytest.approx(2 * (0.1 + 0.2) / 2))


def test_those_who_were_dealt_samples_are_the_crew() -> None:
    lease = Lease(0, 0, (4, 1, 7), np.arange(2))
    assert RoundSteps(SSGD(), 0.0, lease, 0, 1).crew == [4, 1]
    assert RoundSteps(SSGD(), 0.0).crew == []
    one = Taken()
    assert one.turns.position().crew == (0, 1), "all members, where nobody is dealt any"


def test_samples_of_no_batches_are_not_counted() -> None:
    one = Taken()
    one.turns.counted(4)
    assert one.training.meter.measured(None).samples == 0
