"""A script for `test_resumed`: DistributedDataParallel, as it is written for torchrun, with more to
it than the model. ``stops.py DEVICE SAMPLER``: it goes through its data some times; ``none``:
without a loader. Each worker writes which batches it has used; at its end it says what it holds.
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import spotmpi.torch
from tests.torch.joins import digest

SAMPLERS = {"elastic": spotmpi.torch.ElasticSampler, "torch": DistributedSampler}
PASSES = 6
SAMPLES = 600


def main() -> None:
    """Train, and say what came of it."""
    _, device, how = sys.argv
    torch.set_num_threads(1)
    torch.manual_seed(3)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    rank = dist.get_rank()
    layers = torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU()
    module = torch.nn.Sequential(*layers, torch.nn.Linear(64, 3)).to(device)
    model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.002)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.9)
    scaler = torch.amp.GradScaler(device, 16.0, growth_interval=70)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 20, generator=generator).to(device)
    y = x[:, :3].argmax(1)
    told = Path(f"used-{rank}-{os.getpid()}").open("w")  # noqa: SIM115 - to the end
    sampler = SAMPLERS[how.replace("none", "torch")](x, seed=5)
    # (All batches are full ones: parts of a batch would be summed with other weights.)
    loader: Any = DataLoader(
        range(len(x)), 10, sampler=sampler, num_workers=int(rank == 0), collate_fn=list
    )
    if how == "none":
        loader = [[*range(10)]] * 20
    for number in range(PASSES):
        sampler.set_epoch(number)
        for place, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(json.dumps([number, batch]), file=told, flush=True)
            if rank == 0 and place % 10 == 5:
                print(f"AT {number} {place}", flush=True)
            if "SLOW" in os.environ and number >= 2:  # and is told to stop
                select.select([], [], [], 0.1)
        scheduler.step()
        model.eval()
        with torch.no_grad():
            if "BREAKS" in os.environ:
                module[0].weight[0, 0] = float("nan")
            wrong = (module(x).argmax(1) != y).float().mean().item()
        model.train()
    state = optimizer.state_dict()
    held = [dict(module.named_parameters()), state["state"], scheduler.state_dict()]
    held += [scaler.state_dict(), [group["lr"] for group in optimizer.param_groups]]
    if rank == 0:
        held.append(dict(module.named_buffers()))  # of others: with the next batch
    dist.destroy_process_group()
    print(f"FINAL {rank} {digest(held[:-1] if rank == 0 else held):08x} ", flush=True)
    if rank == 0:
        print(f"BUFFERS {digest(held[-1]):08x} {wrong < 0.3}", flush=True)


if __name__ == "__main__":
    main()
