"""Steps of ResNet-50's size by PyTorch's DDP, whose gradients travel after the backward pass, or
during it.

A script for ``spotmpi run`` (`overlap` runs it): ``torch_backward.py FILE TURNS SECONDS``. A
backward pass takes SECONDS, and each array's part of them is that of its layer's multiplications;
it leaves the cores alone, as that of a GPU does. The first worker writes FILE: for each side the
seconds of each turn, on the slowest worker. At last the same is done by gloo.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spotmpi.bench.measuring import turns
from spotmpi.bench.measuring.models import resnet50
from spotmpi.bench.scripts import gloo

_BUCKETS = 4
"""Steps after which DDP's buckets are what they stay, and spotmpi has seen so."""

_SIOCGIFADDR = 0x8915
"""Asks Linux for the address of an interface."""


class _Passing:
    """A backward pass that only costs time."""

    def __init__(self, seconds: float) -> None:
        arrays = resnet50()
        work, done = sum(array.work for array in arrays), 0.0
        self.due = [0.0] * len(arrays)
        """When each array's gradient is there, counted from the pass's begin."""
        for index in reversed(range(len(arrays))):
            done += arrays[index].work
            self.due[index] = seconds * done / work
        self.begin = 0.0

    def wait(self, index: int) -> None:
        """Sleep until the gradient of this array is there."""
        time.sleep(max(0.0, self.begin + self.due[index] - time.perf_counter()))


class _Layer(torch.autograd.Function):  # type: ignore[misc]  # torch has no types for it
    """One array's part of the pass."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, index: int, passing: _Passing) -> Any:
        """Give ``x`` on: it is the backward pass that is looked at."""
        ctx.index, ctx.passing = index, passing
        ctx.save_for_backward(weight)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Have the gradient when it is due."""
        ctx.passing.wait(ctx.index)
        (weight,) = ctx.saved_tensors
        return grad, torch.full_like(weight, 1e-3), None, None


class _Model(torch.nn.Module):  # type: ignore[misc]
    """All arrays, one behind the other."""

    def __init__(self, passing: _Passing) -> None:
        super().__init__()
        self.passing = passing
        self.weights = torch.nn.ParameterList(torch.zeros(array.shape) for array in resnet50())

    def forward(self, x: Any) -> Any:
        """Go through all layers."""
        for index, weight in enumerate(self.weights):
            x = _Layer.apply(x, weight, index, self.passing)
        return x


def main(file: Path, count: int, seconds: float) -> None:
    """One worker of the job, to its end."""
    torch.set_num_threads(1)
    dist.init_process_group()
    from spotmpi.fabric.mpi.calls import MPI

    rank, size = dist.get_rank(), dist.get_world_size()
    passing = _Passing(seconds)
    model = _Model(passing)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    x = torch.ones(1, requires_grad=True)

    def step(module: torch.nn.Module, by_hand: bool = False) -> None:
        out = module(x).sum()
        passing.begin = time.perf_counter()
        out.backward()
        if by_hand:
            dist.all_reduce(torch.cat([one.grad.reshape(-1) for one in model.parameters()]))
        optimizer.step()
        optimizer.zero_grad()

    def take(clock: turns.Clock, sides: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
        for side in sides.values():
            for _ in range(_BUCKETS):
                clock(side, 1)
        return turns.take(clock, count, sides, dict.fromkeys(sides, 1))

    parallel = DistributedDataParallel(model)
    sides = {
        "alone": lambda: step(model),
        "after": lambda: step(model, by_hand=True),
        "during": lambda: step(parallel),
    }
    found = take(turns.together(MPI.COMM_WORLD), sides)
    meeting = [_address() if rank == 0 else None]
    dist.broadcast_object_list(meeting)
    dist.destroy_process_group()

    def clock(step: turns.Step, steps: int) -> float:
        dist.barrier()
        took = torch.tensor(turns.alone(step, steps), dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        return float(took)

    # Torch's own, which that of a worker of a job stands in for.
    init = dist.init_process_group.__wrapped__
    init("gloo", init_method=f"tcp://{meeting[0]}", rank=rank, world_size=size)
    theirs = DistributedDataParallel(model)
    found |= take(clock, {"gloo": lambda: step(theirs)})
    if rank == 0:
        file.write_text(json.dumps({"ddp": found}))
    dist.barrier()
    os._exit(0)  # gloo's own end may wait for ever, for workers that are gone


def _address() -> str:
    """Return where gloo is to meet: an address of this host, and a free port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        asked = struct.pack("256s", os.environ["GLOO_SOCKET_IFNAME"].encode())
        address = socket.inet_ntoa(fcntl.ioctl(one.fileno(), _SIOCGIFADDR, asked)[20:24])
    with socket.socket() as free:
        free.bind((address, 0))
        return f"{address}:{free.getsockname()[1]}"


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = gloo.interface()
    # Torch would leave its own in the system's folder for temporary files.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(sys.argv[1]).parent / "inductor")
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
