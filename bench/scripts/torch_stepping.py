"""Steps of a PyTorch script: by itself, with spotmpi, and with gloo's DDP, in turn, in one MPI job.

Run by mpirun (`torch` does): ``python torch_stepping.py FILE TURNS PARAMS DEVICE WAY``. Each worker
trains a module of so many float32 by AdamW, always on one batch of its own. The way of spotmpi's
gradients is ``whole`` or ``overlap``:

- ``alone``: without any communication;
- ``spotmpi``: by `DistributedOptimizer`;
- ``gloo``: by `DistributedDataParallel`.

The first worker writes FILE: of each side the seconds of a step, turn by turn.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import spotmpi.torch
from spotmpi.bench.measuring import turns

_LAYERS, _BATCH, _RATE = 8, 8, 1e-5
_BLOCK, _MOST = 0.3, 50
"""Seconds of a block, about, and the most steps in it."""


class Side:
    """A module with its optimizer, as every side begins with."""

    def __init__(self, params: int, device: str) -> None:
        torch.manual_seed(0)
        side = math.isqrt(params // _LAYERS)
        layers = [torch.nn.Linear(side, side) for _ in range(_LAYERS)]
        self.module: Any = torch.nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=_RATE)
        self.first = float(sum(param.detach().double().sum() for param in self.module.parameters()))
        """The sum of all parameters before the first step."""
        self._side, self._device = side, device
        self._batch = torch.empty(0)

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


def main(file: Path, count: int, params: int, device: str, overlap: bool) -> None:
    """One worker of the job, to its end."""
    torch.set_num_threads(1)
    alone, ours, theirs = (Side(params, device) for _ in range(3))
    known: dict[str, Any] = {"module": ours.module, "scale_lr": "none", "overlap": overlap}
    with spotmpi.torch.DistributedOptimizer(ours.optimizer, **known) as opt:
        # Only now: entering has initialised MPI as spotmpi needs it.
        from spotmpi.fabric.mpi.calls import MPI

        comm, me = MPI.COMM_WORLD, MPI.COMM_WORLD.Get_rank()
        for side in (alone, ours, theirs):
            side.draw(me)
        meeting = {"rank": me, "world_size": comm.Get_size(), "init_method": f"file://{file}.gloo"}
        torch.distributed.init_process_group("gloo", **meeting)
        theirs.module = torch.nn.parallel.DistributedDataParallel(theirs.module)

        def step() -> None:
            opt.step(ours.backward().detach())

        def finished(side: Any) -> Any:
            def run() -> None:
                side()
                if device == "cuda":
                    torch.cuda.synchronize()

            return run

        sides = {"alone": alone.step, "spotmpi": step, "gloo": theirs.step}
        if device == "cuda":
            sides = {name: finished(side) for name, side in sides.items()}
        clock = turns.together(comm)
        found = turns.compare(clock, count, sides, _BLOCK, _MOST)
        for name, side in (("spotmpi", ours), ("gloo", theirs)):
            check(side, opt.gather, name)
        if me == 0:
            file.write_text(json.dumps(found), encoding="utf-8")
        comm.Barrier()
    os._exit(0)


def check(side: Side, gather: Callable[[float], dict[int, float]], name: str) -> None:
    """End the process unless this module is the same on all workers and has moved. ``gather``
    returns a number of each worker. Collective."""
    flat = torch.cat([param.detach().reshape(-1) for param in side.module.parameters()])
    seen = [*gather(float(flat.double().sum())).values()]
    if len(set(seen)) != 1 or seen[0] == side.first:
        raise SystemExit(f"{name}: the sums of all parameters are {seen}, first {side.first}")


if __name__ == "__main__":
    _, out, turns_, size, where, way = sys.argv
    main(Path(out), int(turns_), int(size), where, overlap=way == "overlap")
