"""A script for `test_newcomers`: DistributedDataParallel, as it is written for torchrun, with more
to it than the model, and workers that kill themselves.

``joins.py DEVICE DEATHS SAMPLER``: ``rank@pass,..``, in the backward pass of the first batch or,
with ``rank!pass``, in the evaluation after it; with ``astray`` newcomers make one more call there.
It goes through its data again and again until there is a file ``enough``; with ``long`` it leaves
its first pass then, which is a very long one; with ``rhythm`` it makes a call with each seventh
batch; with ``uneven`` workers have more and less data in two passes together. Each worker writes to
a file which batch it is about to use, and then who had a part in the sum; at its end it says what
it holds.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import spotmpi.torch
from spotmpi.errors import PeersLost

SAMPLERS = {"elastic": spotmpi.torch.ElasticSampler, "torch": DistributedSampler}
NEWCOMER = os.environ.get("SPOTMPI_NEWCOMER")


def end(condition: bool) -> None:
    """Kill this worker, unless it is a newcomer."""
    if condition and NEWCOMER is None:
        os.kill(os.getpid(), signal.SIGKILL)


def exchange(rank: int) -> None:
    """Send this worker's rank to the next one that lives, and get that of the one before."""
    alive = spotmpi.torch.workers()
    place = alive.index(rank)
    right, left = alive[(place + 1) % len(alive)], alive[place - 1]
    if right != rank:
        there = torch.full((1 << 16,), -1)
        try:
            dist.isend(torch.full((1 << 16,), rank), right)
            dist.recv(there, left)
            dist.send_object_list([rank, "x"], right)
            dist.recv_object_list(said := [left, None], left)
            assert said in ([left, "x"], [left, None] if NEWCOMER else [])
        except PeersLost:
            return
        # (Of a newcomer that has yet to come to the others nobody gets anything.)
        assert {*there.tolist()} <= ({left} if NEWCOMER is None else {left, -1})


def digest(held: Any) -> int:
    """Return a number for tensors and plain values."""
    if isinstance(held, torch.Tensor):
        return zlib.crc32(held.detach().cpu().contiguous().numpy().tobytes())
    if isinstance(held, dict):
        return zlib.crc32(repr([(key, digest(one)) for key, one in held.items()]).encode())
    if isinstance(held, list | tuple):
        return zlib.crc32(repr([digest(one) for one in held]).encode())
    return zlib.crc32(repr(held).encode())


def main() -> None:
    """Train, and say what came of it."""
    _, device, planned, how = sys.argv
    deaths = re.findall(r"(\d)([@!])(\d+)", planned)
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (size, rank) == (4, int(os.environ["RANK"]))
    settings = [{"rate": 0.003} if rank == 0 else None]
    dist.broadcast_object_list(settings)
    rate = settings[0]["rate"]  # type: ignore[index]
    seen = torch.tensor([rank + 1])
    dist.all_reduce(seen)
    assert seen.item() == 10, seen
    layers = torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU()
    module = torch.nn.Sequential(*layers, torch.nn.Linear(64, 3)).to(device)
    model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.002)
    uneven = "uneven" in planned
    kind = torch.optim.SGD if uneven else torch.optim.AdamW  # they differ where data ends early
    optimizer = kind(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, 1.0, 5),
            torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.9),
        ],
        [5],
    )
    scaler = torch.amp.GradScaler(device, 16.0, growth_interval=7, enabled=not uneven)
    generator = torch.Generator().manual_seed(5)
    # (More than a batch or two, with which a newcomer rehearses a pass.)
    x = torch.randn(2048, 20, generator=generator).to(device)
    y = x[:, :3].argmax(1)
    long = "long" in planned
    rows = range(1 << 20 if long else len(x))
    told = Path(f"used-{rank}-{os.getpid()}").open("w")  # noqa: SIM115 - to the end
    sampler = SAMPLERS[how](rows, seed=5)
    how_many = int(how == "elastic")
    loader = DataLoader(rows, 16, sampler=sampler, num_workers=how_many, collate_fn=list)
    tests = DataLoader(range(len(x)), 64, sampler=DistributedSampler(x, shuffle=False))
    now = [-1]

    def die(_grad: torch.Tensor) -> None:
        end((str(rank), "@", str(now[0])) in deaths)

    module[0].weight.register_hook(die)
    for number in itertools.count():
        now[0] = number
        sampler.set_epoch(number)
        batches = 0
        most = 20 + 2 * rank if uneven else None
        several = range(1 + uneven)  # passes in a block, which workers begin at other times
        with model.join(enable=uneven):
            for batch in (batch for _ in several for batch in itertools.islice(loader, most)):
                print(json.dumps([number, batch]), file=told, flush=True)
                batch = [one % len(x) for one in batch]
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
                scaler.scale(loss).backward()
                print(json.dumps(spotmpi.torch.workers()), file=told, flush=True)
                scaler.step(optimizer)
                scaler.update()
                batches += 1
                if "rhythm" in planned and batches % 7 == 0:
                    dist.barrier()
                if long:
                    ends = torch.tensor([int(Path("enough").exists())])
                    dist.all_reduce(ends)
                    if ends:
                        break
        scheduler.step()
        assert batches
        model.eval()
        right = torch.zeros(3, device=device)
        with torch.no_grad():
            for batch in tests:
                right[0] += ((model if uneven else module)(x[batch]).argmax(1) == y[batch]).sum()
                right[1] += 64
        right[2] = Path("enough").exists()
        end((str(rank), "!", str(number)) in deaths)
        if "astray" in planned and NEWCOMER:
            dist.barrier()
        dist.all_reduce(right)
        exchange(rank)
        model.train()
        if right[2]:
            break
    module.eval()
    with torch.no_grad():
        accuracy = (module(x).argmax(1) == y).float().mean().item()
    state = optimizer.state_dict()
    # (DDP gives the first worker's buffers to all with the next batch.)
    held = [dict(module.named_parameters()), state["state"], scheduler.state_dict()]
    held += [scaler.state_dict(), [group["lr"] for group in optimizer.param_groups]]
    dist.destroy_process_group()  # here a newcomer ends that has not come to the others
    print(f"FINAL {rank} {NEWCOMER} {digest(held):08x} {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
