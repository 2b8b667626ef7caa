"""A script for `test_groups`: calls in groups of some workers, while the others make none.

``grouped.py calls TURNS [RANK@SECONDS ..]``: these workers kill themselves so long after they have
begun. ``grouped.py wait``: each worker waits for another one. ``grouped.py hang``: one does
nothing, and its group waits for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import zlib

import torch
import torch.distributed as dist

import spotmpi.torch


def calls(turns: int, deaths: list[str]) -> None:
    """Make calls of each kind in two groups, and say what came of them."""
    rank = dist.get_rank()
    trio, pair = dist.new_group([1, 2, 3]), dist.new_group([2, 3])
    alone = dist.new_group([rank], use_local_synchronization=True)
    for death in deaths:
        victim, _, seconds = death.partition("@")
        if int(victim) == rank:
            dead = threading.Timer(float(seconds), os.kill, [os.getpid(), signal.SIGKILL])
            dead.daemon = True
            dead.start()
    for name, group in (("trio", trio), ("pair", pair), ("alone", alone)):
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            continue
        digest = 0
        for turn in range(turns if len(dist.get_process_group_ranks(group)) > 1 else 2):
            digest = ask(group, rank, turn, digest)
        print(f"FINAL {name} {rank} {digest} ", flush=True)
    dist.barrier()
    there = torch.ones(1)
    dist.all_reduce(there, op=dist.ReduceOp.MIN)
    assert there == 1


def ask(group: dist.ProcessGroup, rank: int, turn: int, digest: int) -> int:
    """Return a digest of what all of a group see, after this one."""
    numbers = torch.full((1000 if turn % 9 else 300_000,), 1 / (1 + rank + turn))
    dist.all_reduce(numbers, group=group)
    ranks: list[object] = [None] * dist.get_world_size(group)
    dist.all_gather_object(ranks, (rank, turn), group=group)
    whole = torch.tensor([2**rank])
    dist.all_reduce(whole, group=group)
    parts = [torch.zeros(2) for _ in ranks]
    dist.all_gather(parts, torch.full((2,), 0.5 + rank), group=group)
    dist.barrier(group=group)
    seen = [
        numbers.tolist()[:3],
        float(numbers.sum()),
        ranks,
        int(whole),
        torch.cat(parts).tolist(),
    ]
    return zlib.crc32(repr(seen).encode(), digest)


def wait() -> None:
    """Wait for a message that the next worker does not send."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.recv(torch.zeros(1), (rank + 1) % size)


def hang() -> None:
    """Have a worker hang before a call of its group, and the other one wait in a call of all."""
    group, rank = dist.new_group([1, 2]), dist.get_rank()
    dist.barrier()
    if rank == 2:
        threading.Event().wait()
    there = torch.tensor([rank])
    if rank == 1:
        dist.all_reduce(there, group=group)
        assert int(there) == 1
    dist.barrier()
    print(f"FINAL {rank} {spotmpi.torch.workers()} ", flush=True)


def main() -> None:
    """Do what is asked for."""
    torch.set_num_threads(1)
    _, what, *rest = sys.argv
    dist.init_process_group("gloo")
    if what == "calls":
        calls(int(rest[0]), rest[1:])
    else:
        {"wait": wait, "hang": hang}[what]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
