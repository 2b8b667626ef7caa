"""Train ResNet-32 on CIFAR-10, or on made-up images of its form.

A plain script for torchrun. It knows nothing of spotmpi::

    torchrun --nproc-per-node 4 jobs/pytorch/train_resnet.py
    spotmpi run -n 4 jobs/pytorch/train_resnet.py --data cifar-10-batches-bin --epochs 160

``--data`` is the folder of CIFAR-10's binary version (``data_batch_1.bin`` and so on). Without it
images are made up: each of ten kinds has a pattern of its own, under much noise. Then 4 workers
find the kind of nearly all images in 3 epochs. On a GPU, if there is one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, interpolate, pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

KINDS, SIDE, BATCH, RATE = 10, 32, 32, 0.05
BLOCKS = 5  # in each of three stages, with two convolutions each, and two layers more: 32
EDGE = 4  # pixels by which images are moved at most
REPORT_EVERY = 5
SEED = 0

Images = tuple[torch.Tensor, torch.Tensor]
"""Of bytes, and their kinds."""


class Block(torch.nn.Module):  # type: ignore[misc]  # torch may not be there
    """Two convolutions, and a way past them."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.stride = outer // inner
        self.first = torch.nn.Conv2d(inner, outer, 3, self.stride, 1, bias=False)
        self.second = torch.nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(outer) for _ in range(2))
        self.new = outer - inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what comes after the block. New channels of the way past it are zero."""
        found = self.norms[0](self.first(x)).relu()
        past = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))
        out: torch.Tensor = (self.norms[1](self.second(found)) + past).relu()
        return out


def resnet() -> torch.nn.Module:
    """Return ResNet-32, with 0.46 million parameters."""
    widths = [16] * (BLOCKS + 1) + [32] * BLOCKS + [64] * BLOCKS
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        *(Block(inner, outer) for inner, outer in pairwise(widths)),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, KINDS),
    )


def read(files: Sequence[Path]) -> Images:
    """Read images in CIFAR-10's binary form: a byte for the kind, then three colours' bytes."""
    there = torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, files))), dtype=torch.uint8)
    rows = there.view(-1, 1 + 3 * SIDE * SIDE)
    return rows[:, 1:].reshape(-1, 3, SIDE, SIDE), rows[:, 0].long()


def made_up(images: int, seed: int) -> Images:
    """Return images alike on all workers, each a pattern of its kind under noise."""
    generator = torch.Generator().manual_seed(SEED)
    patterns = interpolate(torch.randn(KINDS, 3, 4, 4, generator=generator), SIDE)
    generator.manual_seed(seed)
    kinds = torch.randint(0, KINDS, (images,), generator=generator)
    noise = torch.randn(images, 3, SIDE, SIDE, generator=generator)
    return (128 + 30 * patterns[kinds] + 50 * noise).clamp(0, 255).byte(), kinds


def numbers(x: torch.Tensor) -> torch.Tensor:
    """Return images as small numbers."""
    return x.float().sub(128).div(64)


def moved(x: torch.Tensor) -> torch.Tensor:
    """Return images as numbers, mirrored or not, and moved by some pixels."""
    x = numbers(x)
    x = torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x.flip(3), x)
    down, right = torch.randint(0, 2 * EDGE + 1, (2,)).tolist()
    return pad(x, (EDGE,) * 4)[:, :, down : down + SIDE, right : right + SIDE]


def right(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return for how many of all workers' images the model is right. Collective."""
    found = torch.zeros(2, device=x.device)
    with torch.no_grad():
        for some, kinds in zip(x.split(BATCH), y.split(BATCH), strict=True):
            found[0] += (model(numbers(some)).argmax(1) == kinds).sum()
            found[1] += len(kinds)
    dist.all_reduce(found)
    return float(found[0] / found[1])


def main(data: Path | None, images: int, epochs: int) -> None:
    """Train, and say how good the model is after each epoch."""
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, size, device = dist.get_rank(), dist.get_world_size(), "cuda" if gpu else "cpu"
    if data is None:
        (x, y), test = made_up(images, 1), made_up(images // 5, 2)
    else:
        x, y = read(sorted(data.glob("data_batch_*.bin")))
        test = read([data / "test_batch.bin"])
    sampler: DistributedSampler[int] = DistributedSampler(x, seed=SEED)
    loader = DataLoader(range(len(x)), BATCH, sampler=sampler)

    torch.manual_seed(SEED)
    model = DistributedDataParallel(resnet().to(device))
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        for batch, where in enumerate(loader, 1):
            loss = cross_entropy(model(moved(x[where].to(device))), y[where].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if batch % REPORT_EVERY == 0 and rank == 0:
                print(f"epoch {epoch}, batch {batch}: loss {loss.item():.3f}", flush=True)
        model.eval()
        share = right(model.module, *(one[rank::size].to(device) for one in test))
        print(f"rank {rank}: {share:.4f} of all images are right, epoch {epoch}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train ResNet-32.")
    parser.add_argument("--data", type=Path, help="a folder of CIFAR-10's binary version")
    parser.add_argument("--images", type=int, default=6400, help="made up without one")
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    main(given.data, given.images, given.epochs)
