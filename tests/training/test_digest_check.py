"""`spotmpi.training.steps.digest_check`: when digests are made, and beside what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.fabric.sim.errands import Errand
from spotmpi.optimizers import Momentum
from spotmpi.strategies import EASGD, SSGD, DiLoCo, LocalSGD, Strategy
from spotmpi.training.steps import digest_check
from spotmpi.training.steps.digest_check import DigestCheck


class Checked:
    """A worker that compares its model; the test does what is to be done beside the training."""

    def __init__(self, strategy: Strategy) -> None:
        known = [np.arange(100, dtype=np.float32)], Momentum(lr=0.1)
        trainer = spotmpi.Trainer(known[0], optimizer=known[1], strategy=strategy)
        self.model = trainer._training.model
        self.begun: list[Errand[int]] = []
        self.told: list[int] = []
        journal: Any = self
        self.check = DigestCheck(self.model, journal, self.begin)

    def digested(self, digest: int) -> None:
        """Be the journal."""
        self.told.append(digest)

    def begin(self, work: Callable[[], int], name: str) -> Errand[int]:
        """Leave the work to `wait`."""
        self.begun.append(Errand(work))
        return self.begun[-1]

    def after_round(self, number: int) -> None:
        """Do a round whose state the trace wants a digest of."""
        self.check.committed(number, traced=True, levels=True, level=True)
        self.check.make()


@pytest.fixture(autouse=True)
def always_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a model is small."""
    monkeypatch.setattr(digest_check, "LEAST_BESIDE", 0)


@pytest.mark.parametrize("strategy", [DiLoCo(h=4), DiLoCo(h=4, mix=0.5), EASGD(every=4)])
def test_a_model_that_only_rounds_change_is_read_while_the_script_computes(
    strategy: Strategy,
) -> None:
    one = Checked(strategy)
    one.after_round(0)
    assert one.told == []
    one.model.flats[0][:] = 7.0  # a local step
    made = one.check.result()
    assert one.told == [made]
    assert made == one.model.registry.digest() != 0
    assert len(one.begun) == 1
    assert one.check.result() == made, "a round that is tried again says the same"
    one.check.committed(1, traced=False, levels=True, level=True)
    one.check.make()
    assert one.check.result() is None


@pytest.mark.parametrize("strategy", [SSGD(), LocalSGD(h=4)])
def test_parameters_that_the_script_sees_are_read_at_once(strategy: Strategy) -> None:
    """It may write to them right after the step, on all workers alike."""
    one = Checked(strategy)
    one.after_round(0)
    assert one.begun == []
    assert one.told == [one.check.result()]


def test_a_small_model_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_check, "LEAST_BESIDE", 1000)
    one = Checked(DiLoCo(h=4))
    one.after_round(0)
    assert one.begun == []
    assert one.told == [one.check.result()]
