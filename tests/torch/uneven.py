"""A script for `test_uneven_data`: workers with more and less data, some of which kill themselves.

``uneven.py HOW DEATHS``: ``initial`` or ``active`` workers are the number by which gradients are
divided. With ``unused`` some parameters are not used; with ``hook`` a hook of the script sums; with
``buffers`` one gives buffers. Deaths as for `ddp`, or ``worker!number``: when this number of times
it was found who gives buffers or the model. Each worker writes to a file which batch it has used,
and who had a part in the sum; and where it has come to the end of an epoch.
"""

from __future__ import annotations

import json
import sys
import zlib
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel.distributed import _BufferCommHookLocation

import spotmpi.torch
from spotmpi.torch.collectives import Collectives
from tests.torch.ddp import data, digest, end, planned

SEED, RATE = 7, 0.05
FINDS = "the worker with the least number"


def give(given: list[str], buffers: dict[str, torch.Tensor]) -> None:
    """Give one worker's buffers, and note their names."""
    for name, one in buffers.items():
        dist.broadcast(one, 3)
        given.append(name)


def many(rank: int, epoch: int) -> int:
    """Return how many batches this worker has in this epoch: in the last one all have as many."""
    return [6 + 3 * rank, 15 - 3 * rank, 8][epoch]


class Module(torch.nn.Module):
    """Two layers, buffers, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(20, 32), torch.nn.BatchNorm1d(32)
        self.last, self.other = torch.nn.Linear(32, 3), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        return self.last(torch.relu(self.norm(self.first(x))))


def main() -> None:
    """Train, and say what came of it."""
    how, deaths_ = sys.argv[1:]
    deaths = planned(deaths_)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    module = Module()
    if "unused" not in how:
        module.other.requires_grad_(False)
    exchange, found = Collectives.exchange, [0]

    def find(calls: Collectives, value: object, asked: str) -> dict[int, object]:
        there = exchange(calls, value, asked)
        found[0] += asked == FINDS
        if asked == FINDS and f"{rank}!{found[0]}" in deaths_.split(","):
            end()
        return there

    Collectives.exchange = find  # type: ignore[assignment, method-assign]
    model = torch.nn.parallel.DistributedDataParallel(
        module, bucket_cap_mb=0.001, find_unused_parameters="unused" in how
    )
    if "hook" in how:
        model.register_comm_hook(None, allreduce_hook)
    given: list[str] = []
    if "buffers" in how:
        model._register_buffer_comm_hook(given, give, _BufferCommHookLocation.PRE_FORWARD)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    x, y = data()
    step = 0

    def die(_grad: torch.Tensor) -> None:
        if step == deaths.get(rank):
            end()

    module.first.weight.register_hook(die)
    generator = torch.Generator().manual_seed(rank)
    told = open(f"used-{rank}", "w")  # noqa: SIM115 - to the end
    for epoch in range(3):
        block = model.join("active" not in how) if epoch < 2 else nullcontext()
        with block:
            for _ in range(many(rank, epoch)):
                batch = torch.randint(0, len(x), (16,), generator=generator)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                there = spotmpi.torch.workers()
                print(json.dumps([epoch, batch.tolist(), there]), file=told, flush=True)
                optimizer.step()
                step += 1
        print(json.dumps([epoch, None, digest(module)]), file=told, flush=True)
        if epoch == 1:  # after a block buffers are alike, too
            buffers = [one.tolist() for one in module.buffers()]
    steps_of_all = sum(max(many(one, epoch) for one in range(4)) for epoch in range(3))
    assert len(given) == (3 * steps_of_all if "buffers" in how else 0)  # there are three buffers
    dist.all_reduce(total := torch.ones(1))
    steps = dist.group.WORLD.entrance.calls.group.steps
    held = zlib.crc32(repr(buffers).encode())
    print(f"FINAL {rank} {digest(module):08x} {held:08x} {steps} {total.item():.0f}", flush=True)


if __name__ == "__main__":
    main()
