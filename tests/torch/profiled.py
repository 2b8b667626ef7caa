"""A script for `test_profiles`: a step of DistributedDataParallel and some calls, profiled."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Say what a profiler has seen."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    there = torch.zeros(2)
    with torch.profiler.profile() as profile:
        model(torch.ones(3, 4)).sum().backward()
        dist.all_reduce(there)
        dist.all_gather_into_tensor(torch.zeros(4), there)
        if rank:
            dist.recv(there, 0)
        else:
            dist.send(there, 1)
        dist.barrier()
    dist.all_reduce(there)
    seen = {one.key: one.count for one in profile.key_averages() if "spotmpi" in one.key}
    print("SEEN", rank, sorted(seen.items()), "END", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
