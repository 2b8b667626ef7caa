"""Calls of torch.distributed in code that torch compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import torch
import torch.distributed as dist

from tests.torch.test_process_group import alone  # noqa: F401

# The compiler warns of what it leaves to Python, and of itself.
pytestmark = pytest.mark.filterwarnings("ignore")


def broadcast(mine: torch.Tensor) -> Any:
    """A call that torch cannot compile, and makes as it is."""
    dist.broadcast(mine, 0)
    return mine


def later(mine: torch.Tensor) -> Any:
    """A call whose end is waited for."""
    dist.all_reduce(mine, async_op=True).wait()
    return mine


def future(mine: torch.Tensor) -> Any:
    """The same with a future."""
    (there,) = dist.all_reduce(mine, async_op=True).get_future().wait()
    return there


def most(mine: torch.Tensor) -> Any:
    """A call that torch compiles into one of its own."""
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return mine


def objects(mine: torch.Tensor) -> Any:
    """A call that is made by the group."""
    there = [None]
    dist.all_gather_object(there, 2)
    return mine * there[0]


def barrier(mine: torch.Tensor) -> Any:
    """Two calls without tensors, of which the second one is made by the group."""
    dist.barrier()
    dist.monitored_barrier()
    return mine


def members(mine: torch.Tensor) -> Any:
    """No call, but what is known of a group."""
    return mine + dist.get_rank() + dist.get_world_size(dist.group.WORLD) - 1


CALLS = [broadcast, later, future, most, objects, barrier, members]


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The files whose code is compiled by `kept`."""
    torch._dynamo.reset()
    FILES.clear()
    yield FILES
    torch._dynamo.reset()


FILES: list[str] = []


def kept(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
    """Note whose code is compiled, and leave it as it is."""
    FILES.extend(str(node.meta.get("stack_trace", "")) for node in graph.graph.nodes)
    return graph


@pytest.mark.parametrize("call", CALLS, ids=lambda one: one.__name__)
def test_a_call_is_made_within_what_is_compiled(
    alone: Any,  # noqa: F811
    compiled: list[str],
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    quick = torch.compile(lambda mine: call(mine * 2) + 1, backend=kept)
    for _ in range(2):
        assert quick(torch.ones(3)).tolist() == [5.0 if call is objects else 3.0] * 3
    assert any("test_compiler" in one for one in compiled)
    assert not any("spotmpi/torch" in one for one in compiled)


def test_nothing_of_a_group_is_compiled_in_a_step(
    alone: Any,  # noqa: F811
    compiled: list[str],
) -> None:
    layers = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [one.detach().clone() for one in model.parameters()]

    @torch.compile(backend=kept)
    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()

    moves = alone.entrance._moves
    for _ in range(2):
        step(torch.randn(4, 3))
    assert (moves, alone.entrance._moves) == (False, True)
    assert not all(map(torch.equal, before, model.parameters()))
    assert any("torch/optim" in one for one in compiled)
    assert not any("spotmpi/torch" in one for one in compiled)
