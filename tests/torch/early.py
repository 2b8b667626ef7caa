"""A script for `test_early_sums`: DistributedDataParallel whose gradients travel while the backward
pass goes on, with workers that kill themselves between two buckets.

``early.py BEGIN DEATHS``: begin sums ``early``, or ``late``, when all gradients are there; and
``worker@step.layer,..``, or ``worker!step.layer`` for one that fails there. Layers count from the
first, which has its gradients last.
"""

from __future__ import annotations

import os
import signal
import sys
import zlib

import torch
import torch.distributed as dist

import spotmpi.torch
from spotmpi.rounds import memory
from spotmpi.torch.standing import UsualSum

STEPS, WIDTH, LAYERS = 14, 160, 6


def main() -> None:
    """Train, and say what came of it."""
    how, deaths = sys.argv[1:]
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{os.getcwd()}/inductor")
    if how == "late":
        UsualSum.expected = False  # type: ignore[assignment, method-assign]
    memory._LEAST_WORDS = 1 << 14
    planned = deaths.split(",")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    module = torch.nn.Sequential(*layers)
    model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step, begun = 0, list[int]()

    def watch(layer: int) -> None:
        def hook(_grad: torch.Tensor) -> None:
            begun.append(spotmpi.torch.process_group._the_one()._collectives.group.early or 0)
            if f"{rank}@{step}.{layer}" in planned:
                os.kill(os.getpid(), signal.SIGKILL)
            if f"{rank}!{step}.{layer}" in planned:
                raise ValueError("planted")

        layers[layer].weight.register_hook(hook)

    for layer in range(LAYERS):
        watch(layer)
    for step in range(STEPS):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(size * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    held = b"".join(one.detach().numpy().tobytes() for one in module.parameters())
    print(f"FINAL {rank} {zlib.crc32(held):08x} {max(begun)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
