"""What libraries do on rank 0 alone, and decide by votes, when workers are lost."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import torch.distributed as dist  # noqa: E402

from spotmpi.fabric.sim.faults import Kill  # noqa: E402
from spotmpi.torch import collectives  # noqa: E402
from spotmpi.torch.collectives import Calls, Collectives  # noqa: E402
from spotmpi.torch.torch_rounds import Rounds  # noqa: E402
from spotmpi.torch_hooks import libraries  # noqa: E402
from tests import simulated  # noqa: E402
from tests.simulated import Final, Job, Result  # noqa: E402
from tests.torch.test_process_group import alone  # noqa: E402, F401


@pytest.fixture
def second(alone: Any, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """The calls of the second of three workers."""
    calls = alone.collectives
    calls.standing.begin(3)
    calls.standing.ranks = {0: 0, 1: 1, 2: 2}
    monkeypatch.setattr(calls, "rank", 1)
    return calls


def test_accelerate_saves_on_the_first_worker_that_lives(
    second: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    state = pytest.importorskip("accelerate.state")
    monkeypatch.setattr(state.PartialState, "_shared_state", {})
    usual = [vars(state.PartialState)[name] for name in _NAMES]
    for name, one in zip(_NAMES, usual, strict=True):
        monkeypatch.setattr(state.PartialState, name, one)  # so that they are put back
    mine = state.PartialState(cpu=True)
    mine.num_processes, mine.process_index, mine.local_process_index = 3, 1, 1
    mine.distributed_type = state.DistributedType.MULTI_CPU
    save, kept = import_module("accelerate.utils").save, tmp_path / "kept"

    save(1, kept)
    assert not kept.exists()
    second._heard([1, 2])
    assert "rank 0 is gone: from now on rank 1 saves what accelerate" in capsys.readouterr().err
    second._heard([1, 2])
    assert not capsys.readouterr().err  # once
    for each_host in (False, True):
        save(2, kept, save_on_each_node=each_host)
        assert torch.load(kept) == 2
        kept.unlink()
    mine.print("said")
    assert capsys.readouterr().out == "said\n"
    # The script may need what it has made on rank 0 alone, and so do logs.
    assert not mine.is_main_process
    assert not mine.is_local_main_process
    assert mine.on_main_process(test_accelerate_saves_on_the_first_worker_that_lives)() is None

    second.standing.alive = (0, 1, 2)  # what counts is who lives, and not what was replaced
    save(3, kept)
    second.standing.alive = (1,)
    monkeypatch.setattr(second, "rehearses", True)
    save(3, kept)
    assert not kept.exists()
    monkeypatch.setattr(second, "rehearses", False)
    save(3, kept)
    assert kept.exists()
    kept.unlink()
    dist.destroy_process_group()
    save(4, kept)
    assert not kept.exists()


_NAMES = "is_main_process", "is_local_main_process"


@pytest.mark.parametrize("libraries", [[], ["one", "another"]])
def test_the_next_worker_stands_in_for_one_that_stood_in(
    second: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    libraries: list[str],
) -> None:
    monkeypatch.setattr(collectives, "let_first_stand_in", lambda: libraries)
    monkeypatch.setattr(second, "rank", 2)
    second._heard([1, 2])
    assert not capsys.readouterr().err
    second._heard([2])
    said = "rank 1 is gone: from now on rank 2 saves what one and another would save on rank 0"
    assert (said in capsys.readouterr().err) == bool(libraries)


def test_only_the_first_worker_that_lives_stands_in(
    second: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    second._heard([0, 1])
    assert not capsys.readouterr().err
    second._heard([2])  # not this one
    assert not capsys.readouterr().err
    second.standing.alive = (0, 2)
    second._heard([1, 2])
    assert "rank 0 is gone" in capsys.readouterr().err


def within(module: str, function: Callable[..., Any]) -> Any:
    """Return a function as one of this module."""
    return FunctionType(function.__code__, globals() | {"__name__": module})


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("lightning.pytorch.callbacks.model_checkpoint", True),
        ("lightning_fabric", True),
        ("a_script", False),
        ("lightnings", False),
    ],
)
def test_a_library_is_told_and_a_script_is_not(
    second: Any, monkeypatch: pytest.MonkeyPatch, module: str, told: bool
) -> None:
    class ParallelStrategy:
        is_global_zero = property(lambda _: False)

    class Trainer:
        strategy = ParallelStrategy()
        # A script asks a trainer, which asks its strategy, both by the same name.
        is_global_zero = property(within("lightning.pytorch.trainer", is_global_zero))

    there = SimpleNamespace(ParallelStrategy=ParallelStrategy)
    monkeypatch.setitem(sys.modules, "lightning.pytorch.strategies.parallel", there)
    asks = within(module, saves)
    assert not asks(Trainer())
    assert "lightning" in libraries.let_first_stand_in()
    assert not asks(Trainer())
    second.standing.alive = (1, 2)
    assert asks(Trainer()) is told


def is_global_zero(trainer: Any) -> Any:
    """As Lightning's."""
    return trainer.strategy.is_global_zero


def saves(trainer: Any) -> Any:
    """Return True if it would save."""
    return trainer.is_global_zero


TURNS = 2


def vote(calls: Calls, vote: bool, whole: bool) -> bool:
    """Return True if all, or any, are for it: as Lightning does."""

    def reduce_boolean_decision() -> bool:
        there = torch.tensor(int(vote))
        calls.reduce([there], "SUM")
        return bool(there == calls.size) if whole else bool(there)

    return reduce_boolean_decision()


class Voting(Job):
    """A script that decides by votes."""

    def script(self, worker: int) -> Final:
        """The means say how it was decided."""
        decides = within("lightning.fabric", vote)
        found = []
        with Rounds() as rounds:
            calls = Collectives(rounds, self.workers)
            last = calls.size - 1  # it lives
            for _ in range(TURNS):
                for votes in (True, worker != last, worker == last, False):
                    for whole in (True, False):
                        found.append(float(decides(calls, votes, whole)))
            counted = torch.ones(1, dtype=torch.int64)
            calls.reduce([counted], "SUM")
            assert int(counted) == len(calls.alive), "other sums are what they are"
        return Final(b"", 0, Counter(), (), False, tuple(found), 0)


def decided(result: Result) -> None:
    """All workers decided so, whoever is lost."""
    for final in result.finals.values():
        # All are for it; all but one; only one; nobody.
        assert final.means == (1, 1, 0, 1, 0, 1, 0, 0) * TURNS


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.first("(0, 1)")
def test_votes_are_of_those_who_live(tmp_path: Path, lost: tuple[int, ...]) -> None:
    """At each event."""

    def kills(events: int, seed: int) -> dict[str, Any]:
        return {"kills": tuple(Kill(one, 1 + (seed + one) % events) for one in lost)}

    results = simulated.campaign(Voting(tmp_path / "calm", 4), range(120), kills, decided)
    assert any(len(result.finals) == 4 - len(lost) for result in results)
