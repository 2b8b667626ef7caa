"""A script for `test_sharded`: FSDP, as it is written for torchrun, with workers that kill
themselves.

``sharded.py DEVICE DIMENSIONS DEATHS``: of the mesh, 1 or 2; ``rank@step,..``: in that step's
backward pass, between two layers; ``rank~step``: between two steps.
"""

from __future__ import annotations

import os
import re
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 12


def main() -> None:
    """Train, and say what came of it."""
    _, device, dimensions, planned = sys.argv
    deaths = re.findall(r"(\d)([@~])(\d+)", planned)
    torch.set_num_threads(1)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    names = ("replicate", "shard")[-int(dimensions) :]
    shape = (2, size // 2) if len(names) == 2 else (size,)
    if device == "cuda":
        torch.cuda.set_device(0)
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)]).to(device)
    step = 0

    def die(sign: str) -> None:
        if (str(rank), sign, str(step)) in deaths:
            os.kill(os.getpid(), signal.SIGKILL)

    model[1].register_full_backward_hook(lambda *_: die("@"))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):  # noqa: B007 - `die` reads it
        x = torch.randn(8 * size, 32, generator=generator)[rank::size].to(device)
        optimizer.zero_grad()
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        die("~")
    whole = sum(param.full_tensor().double().sum().item() for param in model.parameters())
    print(f"FINAL {rank} {whole:.9f} ", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
