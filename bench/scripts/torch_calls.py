"""Calls of `torch.distributed` that others wait for, by spotmpi and gloo in turn, in one MPI job.

Run by mpirun, or between hosts by ``spotmpi run --torch off`` (`calls` does):
``torch_calls.py FILE TURNS GROUPS CALL..``. Each of the groups has as many workers, and all make
calls at the same time. The first worker writes FILE: of each call, and of both sides, the seconds
that it took the slowest worker, turn by turn.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from spotmpi.bench.measuring import turns
from spotmpi.bench.scripts import gloo
from spotmpi.settings import Settings
from spotmpi.torch.process_group import BACKEND, WorkerGroup, register, the_group

_BLOCK, _MOST = 0.2, 200
"""Seconds of a block, about, and the most calls in it."""

Ask = Callable[..., object]
"""Makes a call in a ``group``."""


Ranks = Sequence[int]
"""The workers of a group."""


def reduce(kind: torch.dtype, operation: Any, count: int, _ranks: Ranks) -> Ask:
    """Return what reduces so many numbers."""
    mine = torch.zeros(count, dtype=kind)  # a sum goes where it was: ones would grow
    return partial(dist.all_reduce, mine, operation)


def all_gather(count: int, ranks: Ranks) -> Ask:
    """Return what gathers so many floats of each worker."""
    mine = torch.ones(count)
    return partial(dist.all_gather, [torch.zeros(count) for _ in ranks], mine)


def reduce_scatter(count: int, ranks: Ranks) -> Ask:
    """Return what adds up so many floats of each worker, and gives each its part."""
    part = torch.zeros(count // len(ranks))
    return partial(dist.reduce_scatter_tensor, part, torch.zeros(len(part) * len(ranks)))


def broadcast(count: int, ranks: Ranks) -> Ask:
    """Return what gives all so many floats of the first worker."""
    return partial(dist.broadcast, torch.ones(count), ranks[0])


def all_gather_object(ranks: Ranks) -> Ask:
    """Return what gathers a small object of each worker."""
    return partial(dist.all_gather_object, [None] * len(ranks), {"loss": 0.5})


def barrier(_ranks: Ranks) -> Ask:
    """Return a barrier."""
    ask: Ask = dist.barrier
    return ask


_MB = 1 << 20
CALLS: dict[str, Callable[[Ranks], Ask]] = {
    "sum of 1": partial(reduce, torch.float32, dist.ReduceOp.SUM, 1),
    "sum, 4 MB": partial(reduce, torch.float32, dist.ReduceOp.SUM, _MB),
    "maximum of 1": partial(reduce, torch.float32, dist.ReduceOp.MAX, 1),
    "maximum, 4 MB": partial(reduce, torch.float32, dist.ReduceOp.MAX, _MB),
    "sum of int64, 4 MB": partial(reduce, torch.int64, dist.ReduceOp.SUM, _MB // 2),
    "all_gather, 4 KB": partial(all_gather, _MB >> 10),
    "all_gather, 4 MB": partial(all_gather, _MB),
    "reduce_scatter, 4 MB": partial(reduce_scatter, _MB),
    "broadcast, 4 MB": partial(broadcast, _MB),
    "all_gather_object": all_gather_object,
    "barrier": barrier,
}
"""Those that are measured; sizes are of each worker's tensor."""


def main(file: Path, count: int, groups: int, names: list[str]) -> None:
    """One worker of the job, to its end."""
    torch.set_num_threads(1)
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{what}"]) for what in ("RANK", "SIZE"))
    register()
    dist.init_process_group(BACKEND, rank=rank, world_size=size, init_method=f"file://{file}.gloo")
    # Only now: spotmpi has initialised MPI as it needs it.
    from spotmpi.fabric.mpi.calls import MPI

    per = size // groups
    rows = [range(first, first + per) for first in range(0, size, per)]
    ranks, theirs = gloo.group_of(rows, "gloo")
    if isinstance(theirs, WorkerGroup):
        raise SystemExit("gloo's group is spotmpi's: there would be nothing to compare with")
    _, mine = gloo.group_of(rows, BACKEND)
    clock, found = turns.together(MPI.COMM_WORLD), {}
    for name in names:
        ask = CALLS[name](ranks)
        sides = {"spotmpi": partial(ask, group=mine), "gloo": partial(ask, group=theirs)}
        found[name] = turns.compare(clock, count, sides, _BLOCK, _MOST)
    if rank == 0:
        file.write_text(json.dumps(found), encoding="utf-8")
    ours = the_group()
    assert ours is not None
    ours.shutdown()
    os._exit(0)  # gloo's own end may wait for ever, for workers that are gone


if __name__ == "__main__":
    if Settings.from_environ().job:  # on several hosts
        os.environ["GLOO_SOCKET_IFNAME"] = gloo.interface()
    _, out, turns_, groups_, *asked = sys.argv
    main(Path(out), int(turns_), int(groups_), asked)
