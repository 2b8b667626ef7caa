"""The torch script whose recoveries are measured: DistributedDataParallel over spotmpi.

A script for ``spotmpi run`` (`recovery` starts it): ``torch_training.py FOLDER PARAMS STEPS
SCHEDULE``, as for `training`. Each worker trains the module of `torch_stepping` by AdamW, on a
batch of its own. At the end all survivors must hold the same bits.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spotmpi.bench.scripts.floor import Killer
from spotmpi.bench.scripts.torch_stepping import Side
from spotmpi.torch.process_group import init_process_group, the_group


def main(folder: Path, params: int, steps: int, schedule: str) -> None:
    """One worker of the job, to its end."""
    torch.set_num_threads(1)
    init_process_group()
    group = the_group()
    assert group is not None
    rounds = group.entrance.calls.group
    killer = Killer(schedule, rounds.worker, folder)
    object.__setattr__(cast(Any, rounds)._participant.context, "faults", killer)  # it is frozen
    side = Side(params, "cpu")
    side.draw(dist.get_rank())
    side.module = DistributedDataParallel(side.module)
    while rounds.steps < steps:
        side.step()
    found: list[Any] = [None] * dist.get_world_size()
    held = [zlib.crc32(one.detach().numpy()) for one in side.module.parameters()]
    dist.all_gather_object(found, held)
    if any(one != found[0] for one in found):
        raise AssertionError("the survivors hold different models")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
