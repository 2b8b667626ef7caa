"""Steps of a PyTorch script: by itself, with spotmpi, and with gloo's DDP, in turn, in one MPI job.

Run by mpirun (`torch` does): ``python torch_stepping.py FILE TURNS PARAMS DEVICE WAY``. Each worker
trains a module of so many float32 by AdamW, always on one batch of its own:

- ``alone``: without any communication;
- ``spotmpi``: by `DistributedOptimizer`, if the way is ``optimizer`` or ``overlap``; over spotmpi
  by `DistributedDataParallel`, if it is ``ddp``, and by `fully_shard` over all workers if it is
  ``fsdp``, or over each half of them (two replicas) if it is ``hsdp``;
- ``gloo``: over gloo, by `fully_shard` likewise, or else by `DistributedDataParallel`;
- ``torchft``: by torchft over gloo, each worker a replica; where it is installed and the module in
  memory of the host.

The first worker writes FILE: of each side the seconds of a step, turn by turn.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import spotmpi.torch
from spotmpi.bench.measuring import turns
from spotmpi.bench.pytorch import with_torchft
from spotmpi.bench.scripts.gloo import group_of
from spotmpi.torch.process_group import BACKEND, WorkerGroup, register

_LAYERS, _BATCH, _RATE = 8, 8, 1e-5
REPLICAS = {"fsdp": 1, "hsdp": 2}
"""How often the workers together have all parameters of a sharded module."""

_BLOCK, _MOST = 0.3, 50
"""Seconds of a block, about, and the most steps in it."""


class Side:
    """A module with its optimizer, as every side begins with."""

    def __init__(self, params: int, device: str) -> None:
        torch.manual_seed(0)
        side = math.isqrt(params // _LAYERS)
        layers = [torch.nn.Linear(side, side) for _ in range(_LAYERS)]
        self.module: Any = torch.nn.Sequential(*layers).to(device)
        self.optimize()
        self.first = float(sum(param.detach().double().sum() for param in self.module.parameters()))
        """The sum of all parameters before the first step."""
        self._side, self._device = side, device
        self._batch = torch.empty(0)

    def optimize(self) -> None:
        """Make an optimizer of the module's parameters."""
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=_RATE)

    def shard(self, mesh: DeviceMesh) -> None:
        """Leave each worker with its part of each layer."""
        for layer in (*self.module, self.module):
            fully_shard(layer, mesh=mesh)
        self.optimize()

    def draw(self, seed: int) -> None:
        """Draw the batch on which it is trained."""
        torch.manual_seed(seed)
        self._batch = torch.randn(_BATCH, self._side).to(self._device)

    def backward(self) -> torch.Tensor:
        """Compute the gradients; return the loss."""
        loss: torch.Tensor = self.module(self._batch).square().mean()
        loss.backward()
        return loss

    def step(self) -> None:
        """One without any communication of its own."""
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()


Values = Callable[[Any], Mapping[int, Any]]
"""Returns a value of each worker. Collective."""


@dataclass(frozen=True)
class Meeting:
    """What a worker has when spotmpi has started."""

    step: Callable[[], None]
    """A step with spotmpi."""
    gather: Values
    gloo: Any
    """The process group of gloo; None: torch's default one."""


@contextmanager
def by_optimizer(ours: Side, place: dict[str, Any], overlap: bool) -> Iterator[Meeting]:
    """Train by `DistributedOptimizer`."""
    known: dict[str, Any] = {"module": ours.module, "scale_lr": "none", "overlap": overlap}
    with spotmpi.torch.DistributedOptimizer(ours.optimizer, **known) as opt:
        dist.init_process_group("gloo", **place)
        yield Meeting(lambda: opt.step(ours.backward().detach()), opt.gather, None)


@contextmanager
def by_torch(ours: Side, place: dict[str, Any], replicas: int) -> Iterator[Meeting]:
    """Train by what torch has, with the job as torch's process group."""
    register()
    dist.init_process_group(BACKEND, **place)

    def gather(mine: Any) -> Mapping[int, Any]:
        found: list[Any] = [None] * place["world_size"]
        dist.all_gather_object(found, mine)
        return dict(enumerate(found))

    if replicas:
        ours.shard(mesh_of(replicas, BACKEND))
    else:
        ours.module = DistributedDataParallel(ours.module)
    gloo = dist.new_group(backend="gloo")
    if isinstance(gloo, WorkerGroup):
        raise SystemExit("gloo's group is spotmpi's: there would be nothing to compare with")
    yield Meeting(ours.step, gather, gloo)


def mesh_of(replicas: int, backend: str) -> DeviceMesh:
    """Return a mesh over all workers. Collective."""
    ranks = torch.arange(dist.get_world_size()).view(replicas, -1)
    if replicas == 1:
        return DeviceMesh.from_group(group_of(ranks.tolist(), backend)[1], "cpu")
    groups = [group_of(rows.tolist(), backend)[1] for rows in (ranks.T, ranks)]
    return DeviceMesh.from_group(groups, "cpu", ranks, mesh_dim_names=("replicate", "shard"))


def main(file: Path, count: int, params: int, device: str, way: str) -> None:
    """One worker of the job, to its end."""
    torch.set_num_threads(1)
    peers = ["torchft"] if with_torchft.is_measured(device == "cuda") else []
    trained = {name: Side(params, device) for name in ("alone", "spotmpi", "gloo", *peers)}
    ours, theirs = trained["spotmpi"], trained["gloo"]
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{what}"]) for what in ("RANK", "SIZE"))
    place = {"rank": rank, "world_size": size, "init_method": f"file://{file}.gloo"}
    replicas = REPLICAS.get(way, 0)
    if way in ("ddp", *REPLICAS):
        begun = by_torch(ours, place, replicas)
    else:
        begun = by_optimizer(ours, place, way == "overlap")
    with begun as meeting:
        # Only now: spotmpi has initialised MPI as it needs it.
        from spotmpi.fabric.mpi.calls import MPI

        for side in trained.values():
            side.draw(rank)
        if replicas:
            theirs.shard(mesh_of(replicas, "gloo"))
        else:
            theirs.module = DistributedDataParallel(theirs.module, process_group=meeting.gloo)

        def finished(side: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                side()
                if device == "cuda":
                    torch.cuda.synchronize()

            return run

        sides = {name: side.step for name, side in trained.items()}
        sides["spotmpi"] = meeting.step
        for name in peers:
            sides[name] = with_torchft.steps_of(trained[name], rank, size, meeting.gather)
        clock = turns.together(MPI.COMM_WORLD)
        timed = {name: finished(side) for name, side in sides.items()}
        found = turns.compare(clock, count, timed, _BLOCK, _MOST)
        for name, side in trained.items():
            if name != "alone":
                check(side, meeting.gather, name)
        if rank == 0:
            file.write_text(json.dumps(found), encoding="utf-8")
        MPI.COMM_WORLD.Barrier()
        os._exit(0)


def check(side: Side, gather: Values, name: str) -> None:
    """End the process unless this module is the same on all workers and has moved. Collective."""
    params = [param.detach() for param in side.module.parameters()]
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in params]
    flat = torch.cat([one.reshape(-1) for one in whole])
    seen = [*gather(float(flat.double().sum())).values()]
    if len(set(seen)) != 1 or seen[0] == side.first:
        raise SystemExit(f"{name}: the sums of all parameters are {seen}, first {side.first}")


if __name__ == "__main__":
    _, out, turns_, size, where, way = sys.argv
    main(Path(out), int(turns_), int(size), where, way)
