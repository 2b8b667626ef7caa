"""`DistributedDataParallel.join()`, with real workers of which some are killed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import torch
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, DistributedSampler

from spotmpi.errors import UsageError
from spotmpi.torch.newcomers import Entrance
from spotmpi.torch.torch_rounds import Rounds
from tests.launch.conftest import start  # noqa: F401
from tests.torch import ddp, uneven
from tests.torch.test_newcomers import alike_at_the_end, installed, wait_for
from tests.torch.test_process_group import AT_ANY_TIME, alone, run  # noqa: F401

HERE = Path(__file__).parent

CASES = [
    ("initial", ""),
    ("active", ""),
    ("initial", "0@3,2@20"),
    ("active", "0@3,3@13"),  # 0 has the least data, and 3 dies when only it has any
    ("active", "2@10"),
    ("initial,unused", "1@8,0@16"),
    ("active,unused", "1@8,0@16"),
    ("initial,hook", ""),
    ("initial,hook", "1@8,3@24"),
    ("initial,buffers", ""),
    # Who was to give the model is lost, and then a worker that was to give buffers and the next
    # one that was to give the model.
    ("initial", "0!32"),
    ("active", "0!20,1!29"),
]


@pytest.mark.promise("DDP.join(): workers with more data go on without those that are lost")
@pytest.mark.parametrize(("how", "deaths"), CASES)
@pytest.mark.first("active-0@3,3@13")
def test_workers_with_more_data_go_on(tmp_path: Path, how: str, deaths: str) -> None:
    installed()
    finals = trained(tmp_path, how, deaths)
    dead = {int(one[0]) for one in deaths.split(",") if one}
    assert {int(rank) for rank, *_ in finals} == {*range(4)} - dead
    if "hook" not in how or not deaths:  # the hook's sums of one step may have others in them
        told = {
            rank: [*map(json.loads, (tmp_path / f"used-{rank}").read_text().splitlines())]
            for rank in range(4)
        }
        assert finals[0][1] == f"{replayed(told, how):08x}"


@pytest.mark.campaign
@pytest.mark.parametrize("how", ["initial", "active,unused", "initial,hook"])
@pytest.mark.parametrize("deaths", AT_ANY_TIME)
def test_they_die_at_any_time(tmp_path: Path, how: str, deaths: str) -> None:
    installed()
    finals = trained(tmp_path, how, deaths)
    dead = {int(one.partition("~")[0]) for one in deaths.split(",")}
    assert {int(rank) for rank, *_ in finals} >= {*range(4)} - dead


@pytest.mark.matrix
@pytest.mark.parametrize(("lost", "there"), [(2, [0, 1, 2, 3]), (0, [1, 2, 3, 4])])
def test_newcomers_come_where_the_first_pass_of_a_block_begins(
    start: Any,  # noqa: F811
    tmp_path: Path,
    lost: int,
    there: list[int],
) -> None:
    installed()
    how = "cpu", f"{lost}@1,uneven", "torch"
    running = start("run", "-n", 4, "--replace", HERE / "joins.py", *how)
    wait_for(running, [4])
    assert alike_at_the_end(running, tmp_path) == there


@pytest.mark.matrix
def test_no_checkpoints_are_kept(tmp_path: Path) -> None:
    """A worker without data does not know where the others are in theirs."""
    installed()
    running = run(tmp_path, "--checkpoint", tmp_path / "kept", HERE / "uneven.py", "initial", "")
    assert running.wait() == 1
    assert "gradients were summed within join()" in running.output


def test_a_block_leaves_nothing_behind(alone: Any) -> None:  # noqa: F811
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model = torch.nn.parallel.DistributedDataParallel(module)
    with model.join(enable=False):
        before = {*vars(model)}

    def learn() -> None:
        model(torch.ones(4, 2)).sum().backward()

    learn()
    with suppress(KeyError), model.join(divide_by_initial_world_size=False):
        learn()
        assert (alone._divides_by_all, alone.entrance._uneven) == (False, True)
        raise KeyError
    learn()
    assert (alone._divides_by_all, alone.entrance._uneven) == (None, False)
    assert alone._says_data is None
    assert {*vars(model)} == before
    with model.join():
        learn()
    assert {*vars(model)} == before


def test_nobody_is_let_in_after_the_first_step_of_a_block(
    alone: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_in: list[str] = []
    monkeypatch.setattr(Rounds, "taught", True)
    monkeypatch.setattr(Rounds, "let_in", lambda _: let_in.append("x"))
    monkeypatch.setattr(Entrance, "_admit", lambda *_: None)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    loader = DataLoader(range(4), sampler=DistributedSampler(range(4), 1, 0))
    with model.join():
        next(iter(loader))
        assert len(let_in) == 1
        model(torch.ones(1, 1)).sum().backward()
        next(iter(loader))
        assert len(let_in) == 1
    next(iter(loader))
    assert len(let_in) == 2


def test_several_modules_are_divided_alike(alone: Any) -> None:  # noqa: F811
    models = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1)) for _ in range(2)]
    with Join(models):
        pass
    with (
        pytest.raises(UsageError, match="with one module alone"),
        Join(models, divide_by_initial_world_size=False),
    ):
        pass


def trained(folder: Path, how: str, deaths: str) -> list[list[str]]:
    """Run the script. Return what each worker that lived to the end has said: all the same."""
    running = run(folder, HERE / "uneven.py", how, deaths)
    assert running.wait() == 0, running.output
    finals = [
        line.split("FINAL ")[1].split() for line in running.output.splitlines() if "FINAL " in line
    ]
    assert len({tuple(said) for _, *said in finals}) == 1, running.output
    assert {total for *_, total in finals} == {"4"}  # it counts as if all were there again
    return finals


def replayed(told: dict[int, list[Any]], how: str) -> int:
    """Do the training in this process, by torch alone, and check what was said after each epoch.
    Return what the module is known by."""
    torch.manual_seed(uneven.SEED)
    module = uneven.Module()
    module.other.requires_grad_(False)
    parameters = [one for one in module.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=uneven.RATE)
    x, y = ddp.data()
    alive = [0, 1, 2, 3]
    for epoch in range(3):
        used = {
            rank: [line for line in lines if line[0] == epoch and line[1]]
            for rank, lines in told.items()
        }
        said = {
            rank: line[2]
            for rank, lines in told.items()
            for line in lines
            if line[:2] == [epoch, None]
        }
        # What only those have done that did not come to the end is lost with them.
        for number in range(max(len(used[rank]) for rank in said)):
            began = [rank for rank in alive if uneven.many(rank, epoch) > number]
            alive = next(lines[number][2] for lines in used.values() if len(lines) > number)
            total = [torch.zeros_like(one) for one in parameters]
            active = "active" in how and epoch < 2
            divisor = len(began) if active else 4
            for rank in (rank for rank in began if rank in alive):
                batch = used[rank][number][1]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
                for one, param in zip(total, parameters, strict=True):
                    one.add_(param.grad * (1 / divisor))  # as DDP does
            for one, param in zip(total, parameters, strict=True):
                whole = active or len(alive) == 4
                param.grad = one if whole else (one * 4).div_(len(alive))
            optimizer.step()
        alive = sorted(said)
        assert {*said.values()} == {ddp.digest(module)}
    return ddp.digest(module)
