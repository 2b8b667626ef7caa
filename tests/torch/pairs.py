"""A script for `test_newcomers`: two workers, one of which is killed in its third pass, with a
maximum and a broadcast of one size after each pass. It ends when two have made some together."""

from __future__ import annotations

import itertools
import os
import signal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

NEWCOMER = os.environ.get("SPOTMPI_NEWCOMER")
NUMBERS = 1 << 15


def main() -> None:
    """Train, and say what came of it."""
    torch.set_num_threads(1)
    dist.init_process_group()
    rank, together = dist.get_rank(), 0
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = DistributedSampler(data := torch.randn(256, 20))  # type: ignore[var-annotated, arg-type]
    for number in itertools.count():
        sampler.set_epoch(number)
        for batch in DataLoader(data, 8, sampler=sampler):  # type: ignore[arg-type]
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if rank == 1 and NEWCOMER is None and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        highest = torch.full((NUMBERS,), rank, dtype=torch.int32)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        dist.broadcast(torch.full((NUMBERS,), rank, dtype=torch.int32), 0)
        together += rank == 0 and number > 2 and int(highest[0]) == 1
        enough = torch.tensor([float(together > 5)])
        dist.all_reduce(enough)
        if enough > 0:
            break
    print(f"FINAL {rank} {NEWCOMER} {together}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
