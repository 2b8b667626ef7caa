"""A script for `test_process_group`: DistributedDataParallel, as it is written for torchrun, with
workers that kill themselves in a hook of the backward pass.

``ddp.py DEVICE DEATHS SAMPLER [COMPILED]``: ``worker@step,..``, or ``worker~SECONDS,..`` to die at
that time, be it in the constructor, in an optimizer's step or in any call. The sampler is one of a
loader with a process of its own; each worker writes to a file which batch it is about to use, and
then who had a part in the sum. Compiled: ``model``, or all of a ``pass`` forward and backward.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import spotmpi.torch

SAMPLERS = {"elastic": spotmpi.torch.ElasticSampler, "torch": DistributedSampler}


SEED, RATE = 100, 0.003


def made() -> torch.nn.Module:
    """Return the module, as torch's random numbers make it."""
    layers = torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return all samples, and what they are."""
    x = torch.randn(2048, 20, generator=torch.Generator().manual_seed(5))
    return x, x[:, :3].argmax(1)


def digest(module: torch.nn.Module) -> int:
    """Return a number for the module's parameters."""
    held = b"".join(one.detach().cpu().numpy().tobytes() for one in module.parameters())
    return zlib.crc32(held)


def end() -> None:
    """Kill this worker."""
    os.kill(os.getpid(), signal.SIGKILL)


def planned(deaths: str) -> dict[int, int]:
    """Return at which step workers end, by rank. This one ends at a time if that is planned."""
    those = [death for death in deaths.split(",") if death]
    for one, sign, at in (death.partition("~") for death in those):
        dead = Path(f"dead-{one}")  # before all are ready the launcher starts them again
        if sign and one == os.environ["RANK"] and not dead.exists():
            threading.Timer(float(at), lambda dead=dead: (dead.touch(), end())).start()
    return {int(one): int(at) for one, sign, at in (d.partition("@") for d in those) if sign}


def main() -> None:
    """Train, and say what came of it."""
    _, device, deaths_, how, *compiled = sys.argv
    deaths = planned(deaths_)
    torch.set_num_threads(1)
    torch.manual_seed(SEED + int(os.environ["RANK"]))  # DDP begins with the first worker's
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.is_torchelastic_launched()
    assert os.environ["LOCAL_RANK"] == os.environ["RANK"] == str(rank)
    module = made().to(device)
    bucket = 25 if compiled else 0.002  # torch compiles none that are smaller than the first one
    model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=bucket)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    told = open(f"used-{rank}", "w")  # noqa: SIM115 - to the end
    x, y = (one.to(device) for one in data())
    step = 0

    def die(_grad: torch.Tensor) -> None:
        if step >= deaths.get(rank, 10**9):
            end()

    module[0].weight.register_hook(die)

    if compiled == ["model"]:
        model = torch.compile(model, backend="eager")

    def learn(batch: torch.Tensor) -> None:
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()

    if compiled == ["pass"]:
        learn = torch.compile(learn, backend="eager")
    sampler = SAMPLERS[how](x, seed=5)
    loader = DataLoader(range(len(x)), 16, sampler=sampler, num_workers=1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for batch in loader:
            print(json.dumps([epoch, batch.tolist()]), file=told, flush=True)
            optimizer.zero_grad()
            learn(batch)
            print(json.dumps(spotmpi.torch.workers()), file=told, flush=True)
            optimizer.step()
            step += 1
        seen = torch.tensor(float(step), device=device)
        dist.all_reduce(seen, op=dist.ReduceOp.MAX)
        assert seen.item() == step
        alive = [None] * size
        dist.all_gather_object(alive, rank)
        assert rank in alive
        dist.barrier()
    module.eval()
    with torch.no_grad():
        accuracy = (module(x).argmax(1) == y).float().mean().item()
    print(f"FINAL {rank} {digest(module):08x} {accuracy:.3f} {step}", flush=True)
    if rank % 2:
        dist.destroy_process_group()  # the others leave with the script


if __name__ == "__main__":
    main()
