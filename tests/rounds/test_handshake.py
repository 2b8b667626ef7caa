"""Workers that came with different models or settings find out before anything else is reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.fabric import Shape
from spotmpi.fabric.sim.faults import Kill
from spotmpi.optimizers import SGD, Momentum
from spotmpi.rounds.handshake import Compare, check_facts
from spotmpi.strategies import SSGD
from tests import fake_cupy as cupy
from tests.simulated import Final, Job, check, params

SAID: dict[Path, dict[int, str]] = {}


@dataclass(frozen=True)
class Differing(Job):
    """A script that is not the same on all workers."""

    seeds: Sequence[int] = (0, 0, 0, 0)
    optimizers: Sequence[Any] = (SGD, SGD, SGD, SGD)
    sizes: Sequence[int] = (5, 5, 5, 5)
    on_device: Sequence[bool] = (False, False, False, False)

    def script(self, worker: int) -> Final:
        """Only enters, and notes what it is told."""
        given = {"w": np.zeros(self.sizes[worker], np.float32)}
        if self.on_device[worker]:
            given = {key: cupy.asarray(array) for key, array in given.items()}
        optimizer = self.optimizers[worker](lr=0.1)
        trainer = spotmpi.Trainer(
            given, optimizer=optimizer, strategy=SSGD(), seed=self.seeds[worker]
        )
        said = SAID.setdefault(self.folder, {})
        with pytest.raises(UsageError) as raised:
            trainer.__enter__()
        said[worker] = str(raised.value)
        raise raised.value

    def told(self) -> dict[int, str]:
        """What the workers hear."""
        with pytest.raises(UsageError):
            self.run()
        return SAID[self.folder]


@pytest.mark.parametrize(
    ("what", "differs"),
    [
        ({"seeds": (1, 1, 2, 1)}, "the seed"),
        ({"optimizers": (SGD, SGD, Momentum, SGD)}, "the strategy or the optimizer"),
        ({"sizes": (5, 5, 6, 5)}, "the names, shapes or dtypes of the parameters"),
    ],
)
def test_who_differs_is_named_and_in_what(tmp_path: Path, what: Any, differs: str) -> None:
    (text,) = {said.partition(" (")[0] for said in Differing(tmp_path, 4, **what).told().values()}
    assert text == f"worker 2 and worker 0 differ in {differs}"


@pytest.mark.parametrize("lacks", [True, False])
def test_a_worker_without_a_gpu_among_workers_with_one_is_told_so(
    tmp_path: Path, lacks: bool
) -> None:
    """And one with a GPU among workers without."""
    with cupy.installed():
        told = Differing(tmp_path, 4, on_device=(lacks, lacks, not lacks, lacks)).told()
    here, there = ("NumPy", "CuPy") if lacks else ("CuPy", "NumPy")
    for me, said in told.items():
        assert said == (
            "worker 2 and worker 0 differ in the library that their arrays are of "
            f"(worker {me} has {here if me == 2 else there}): start workers only where there is a "
            "GPU, or have the script use NumPy on all of them"
        )


def test_it_is_said_with_the_value_of_whoever_says_it(tmp_path: Path) -> None:
    for me, said in Differing(tmp_path, 4, seeds=(1, 1, 2, 1)).told().items():
        assert f"(worker {me} has {2 if me == 2 else 1})" in said


class Sizes:
    """In the place of a worker's memory: what is expected of it."""

    def __init__(self) -> None:
        self.expected: list[Shape] = []

    def expect(self, *shapes: Shape) -> None:
        """Note it."""
        self.expected += shapes


def test_what_workers_exchange_depends_on_nothing_that_may_differ() -> None:
    few, many = Sizes(), Sizes()
    Compare(few, [("the seed", "1"), ("the model", "x")])  # type: ignore[arg-type]
    Compare(many, [("the seed", "1"), ("the model", "x" * 1000)])  # type: ignore[arg-type]
    assert few.expected == many.expected == [Shape("float64", 8)]


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.matrix)])
def test_a_loss_in_it_is_one_as_any_other(tmp_path: Path, step: int) -> None:
    for at in range(2, 40, step):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        result = Job(folder, 3, seed=at, kills=[Kill(1, at), Kill(0, at + 4)]).run()
        check(result)
        assert 2 in result.finals


def test_a_newcomer_is_compared_with_who_trains() -> None:
    check_facts(2, 0, [("the seed", "1")], ["1"])
    with pytest.raises(UsageError, match=r"worker 2 and worker 0 differ in the seed \(worker 2"):
        check_facts(2, 0, [("the seed", "1")], ["3"])


def test_a_worker_alone_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    with spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
        assert trainer.workers == (0,)
