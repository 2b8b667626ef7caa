"""A script for `test_process_group`: all calls of `torch.distributed`, before and after a loss.

``calls.py DEVICE``: where the tensors are.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import broadcast_object_list as early_broadcast

import spotmpi.torch
from spotmpi.errors import PeersLost, UsageError

SIZE = 4


def called_in(module: str, what: Any) -> Any:
    """Return this function as if it were of that module."""
    known = {**globals(), "__name__": module}
    return FunctionType(what.__code__, known, closure=what.__closure__)


def check(rank: int, standing: list[int]) -> None:
    """Make each call once. ``standing``: who stands for each rank."""
    alive = sorted(set(standing))
    many = len(alive)

    def reduced(values: list[float], kind: torch.dtype, op: Any) -> float:
        mine = torch.full((2, 3), values[rank], dtype=kind)
        dist.all_reduce(mine, op=op)
        assert len(set(mine.reshape(-1).tolist())) == 1
        return float(mine[0, 0])

    ones = [1.0, 2.0, 4.0, 8.0]
    whole = sum(ones[one] for one in alive)
    O = dist.ReduceOp  # noqa: N806, E741 - as torch calls it
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        assert abs(reduced(ones, kind, O.SUM) - whole * SIZE / many) < 0.1
        assert abs(reduced(ones, kind, O.AVG) - whole / many) < 0.1
        assert reduced(ones, kind, O.MAX) == max(ones[one] for one in alive)
    for kind in (torch.int64, torch.uint8):
        assert reduced(ones, kind, O.SUM) == whole
        assert reduced(ones, kind, O.AVG) == whole // many
        assert reduced(ones, kind, O.MIN) == min(ones[one] for one in alive)
    assert reduced(ones, torch.float32, O.PRODUCT) == torch.tensor(ones)[alive].prod()
    assert reduced(ones, torch.int32, O.BOR) == whole
    assert reduced([1.0] * SIZE, torch.bool, O.MIN) == 1.0

    mine = torch.tensor([rank, 10 * rank])
    found = [torch.zeros(2, dtype=torch.int64) for _ in range(SIZE)]
    dist.all_gather(found, mine)
    assert [one.tolist() for one in found] == [[one, 10 * one] for one in standing]
    together = torch.zeros(SIZE * 2, dtype=torch.int64)
    dist.all_gather_into_tensor(together, mine)
    assert together.tolist() == [part for one in standing for part in (one, 10 * one)]
    several = [[torch.zeros_like(mine), torch.zeros_like(mine[:1])] for _ in range(SIZE)]
    dist.all_gather_coalesced(several, [mine, mine[:1] + 7])
    assert [(one.tolist(), two.tolist()) for one, two in several] == [
        ([one, 10 * one], [one + 7]) for one in standing
    ]
    large = torch.full((1 << 15,), ones[rank])
    rows = [torch.zeros_like(large) for _ in range(SIZE)]
    dist.all_gather(rows, large)
    assert all((row == ones[one]).all() for row, one in zip(rows, standing, strict=True))
    dist.all_gather_into_tensor(columns := torch.zeros(SIZE, 1 << 15), large)
    assert (columns == torch.stack(rows)).all()
    dist.all_reduce(large, op=O.MAX)
    assert (large == max(ones[one] for one in alive)).all()
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, {"of": rank, "long": "x" * rank * 100})
    assert [one["of"] for one in objects] == standing
    dist.gather(mine, found if rank == 3 else None, dst=3)
    assert rank != 3 or [int(one[0]) for one in found] == standing

    there = torch.full((3,), float(rank))
    dist.broadcast(there, src=3)
    assert there.tolist() == [3.0] * 3
    there = torch.nn.Parameter(torch.full((3,), float(rank)))
    dist.broadcast(there, src=1)
    assert there.tolist() == [1.0] * 3
    there = torch.full((3,), float(rank))
    ddp = called_in("torch.nn.parallel.distributed", lambda: dist._broadcast_coalesced(*buffers))
    buffers = dist.group.WORLD, [there], 1 << 20, 0
    ddp()
    assert there.tolist() == [float(standing[0])] * 3
    said: list[Any] = [f"of {rank}", rank]
    dist.broadcast_object_list(said, src=3)
    assert said == ["of 3", 3]

    given: list[Any] = [None]
    dist.scatter_object_list(given, [{one} for one in range(SIZE)] if rank == 3 else None, src=3)
    assert given == [{rank}]
    objects = [None] * SIZE
    dist.gather_object((rank,), objects if rank == 1 else None, dst=1)
    assert rank != 1 or [one for (one,) in objects] == standing
    dist.monitored_barrier()

    rows = torch.sparse_coo_tensor([[rank, 5]], torch.full((2, 3), ones[rank]), (6, 3))
    dist.all_reduce(rows)
    expected = torch.zeros(6, 3)
    for one in alive:
        expected[[one, 5]] += ones[one] * SIZE / many
    assert rows.is_sparse
    assert rows.to_dense().equal(expected)

    total = torch.full((2,), ones[rank])
    dist.reduce(total, dst=3)
    assert total.tolist() == [whole * SIZE / many if rank == 3 else ones[rank]] * 2
    part = torch.zeros(2)
    dist.scatter(
        part, [torch.full((2,), float(one)) for one in range(SIZE)] if rank == 3 else None, 3
    )
    assert part.tolist() == [float(rank)] * 2
    parts = [torch.full((2,), ones[rank] * (1 + one)) for one in range(SIZE)]
    dist.reduce_scatter(part, parts)
    assert part.tolist() == [whole * SIZE / many * (1 + rank)] * 2
    dist.reduce_scatter_tensor(part, torch.cat(parts))
    assert part.tolist() == [whole * SIZE / many * (1 + rank)] * 2
    theirs = [torch.zeros(1) for _ in range(SIZE)]
    dist.all_to_all(theirs, [torch.tensor([10.0 * rank + one]) for one in range(SIZE)])
    assert [float(one) for one in theirs] == [10.0 * one + rank for one in standing]

    theirs_together = torch.zeros(SIZE)
    mine_together = torch.tensor([10.0 * rank + one for one in range(SIZE)])
    dist.all_to_all_single(theirs_together, mine_together)
    assert theirs_together.tolist() == [10.0 * one + rank for one in standing]

    later = dist.all_reduce(torch.ones(1), async_op=True)
    assert later.wait()
    dist.barrier()
    group = dist.new_group()
    again = torch.ones(1)
    dist.all_reduce(again, group=group)
    assert again.item() == SIZE
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = halves[rank // 2]
    assert dist.GroupMember.NON_GROUP_MEMBER in halves
    assert (dist.get_rank(half), dist.get_world_size(half)) == (rank % 2, 2)
    dist.all_reduce(again.fill_(1), group=half)
    assert again.item() == 2
    there: list[Any] = [None] * 2
    dist.all_gather_object(there, f"rank {rank}", group=half)
    assert there == [f"rank {one}" for one in standing[rank // 2 * 2 :][:2]]
    told = [rank]
    dist.broadcast_object_list(told, src=standing[rank // 2 * 2], group=half)
    assert told == [standing[rank // 2 * 2]]
    dist.broadcast(again.fill_(rank), src=standing[rank // 2 * 2], group=half)
    assert again.item() == standing[rank // 2 * 2]
    if rank < 3:  # others make no call, and need not know of it
        some = dist.new_group([0, 1, 2], use_local_synchronization=True)
        dist.all_reduce(again.fill_(2**rank), op=dist.ReduceOp.MAX, group=some)
        assert again.item() == 2 ** max({*alive} & {0, 1, 2})
    check_messages(rank, alive, half)
    refused: list[Callable[[], Any]] = [lambda: dist.broadcast_object_list([1], src=7)]
    refused.append(lambda: dist.group.WORLD.send([torch.zeros(1)], 7, 0))
    refused.append(lambda: dist.scatter_object_list([], [1] * SIZE, src=rank))
    for call in refused:
        try:
            call()
        except UsageError as error:
            said = "spotmpi has|no rank 7|list for the object is empty"
            assert re.search(said, str(error))  # noqa: PT017
        else:
            raise AssertionError("not refused")


def check_messages(rank: int, alive: list[int], half: Any) -> None:
    """Messages between two workers: round the ring of those who live, and from all to one."""
    place = alive.index(rank)
    right, left = alive[(place + 1) % len(alive)], alive[place - 1]
    for size in (3, 1 << 20):
        out = torch.zeros(2, size)
        dist.send(torch.full((2, size), float(rank)), right)
        assert dist.recv(out, left) == left
        assert (out == left).all()
    mine = torch.arange(6.0).view(2, 3).t() + rank  # not contiguous
    there, none = torch.zeros(2, 3).t(), torch.zeros(0)
    expected = [dist.irecv(there, left, tag=2), dist.irecv(none, left, tag=1)]
    sent = [dist.isend(none, right, tag=1), dist.isend(mine, right, tag=2)]
    mine.fill_(9)  # it was copied
    for work in (*sent, *expected[::-1]):
        work.wait()
    assert there.equal(torch.arange(6.0).view(2, 3).t() + left)
    outs = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
    both = [dist.P2POp(dist.irecv, out, left) for out in outs]
    both += [dist.P2POp(dist.isend, torch.tensor([one]), right) for one in (4, 5, 6)]
    works = dist.batch_isend_irecv(both)
    while not works[1].is_completed():
        pass
    assert [int(one) for one in outs[:2]] == [4, 5]
    works[2].wait()
    assert [int(one) for one in outs] == [4, 5, 6]
    one, any_of_all = dist.irecv(outs[0], left, tag=5), dist.irecv(outs[1], tag=6)
    for tag in (6, 5):
        dist.send(torch.tensor([tag]), right, tag=tag)
        (any_of_all if tag == 6 else one).wait()
    assert [int(one) for one in outs[:2]] == [5, 6]
    one.get_future().wait()
    try:
        dist.irecv(torch.zeros(1), left, tag=99).get_future()  # nobody sends it
        raise AssertionError("nothing would complete that future")
    except UsageError as error:
        assert "call wait()" in str(error)  # noqa: PT017
    if rank == alive[0]:
        found = [dist.recv(out) for out in outs[: len(alive) - 1]]
        assert sorted(found) == alive[1:]
        assert [int(one) for one in outs[: len(found)]] == found
        dist.send_object_list([{"to": right}, "x"], dst=right)
    else:
        dist.send(torch.tensor([rank]), alive[0])
        said: list[Any] = [None, None]
        if left == alive[0]:
            assert dist.recv_object_list(said, src=left) == left
            assert said == [{"to": rank}, "x"]
    other = rank ^ 1
    if other in alive:
        dist.send(torch.tensor([rank]), other)
        dist.send(torch.tensor([10 + rank]), other, group=half)
        assert dist.recv(outs[0], other, group=half) == other
        assert dist.recv(outs[1], other) == other
        assert [int(one) for one in outs[:2]] == [10 + other, other]


def check_sizes(rank: int) -> None:
    """A tensor of another size is refused, again and again, and later messages arrive."""
    if rank == 1:
        dist.send(torch.ones(3), 3)
        dist.send(torch.ones(2), 3)
        return
    wrong, right = dist.irecv(torch.zeros(2), 1), dist.irecv(there := torch.zeros(2), 1)
    right.wait()
    assert there.tolist() == [1, 1]
    for _ in range(2):
        try:
            wrong.wait()
        except UsageError as error:
            assert "gave 12 bytes" in str(error)  # noqa: PT017
        else:
            raise AssertionError("not refused")


def main() -> None:
    """All calls; then without the workers 0 and 2."""
    torch.set_num_threads(1)
    torch.set_default_device(sys.argv[1])
    warnings.simplefilter("ignore", FutureWarning)  # of names that later versions of torch change
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # with torch's own groups all wait at a store
    spotmpi.torch.init_process_group()
    rank = dist.get_rank()
    assert dist.get_world_size() == SIZE
    assert dist.get_backend() == "spotmpi"
    check(rank, [0, 1, 2, 3])
    if rank in (0, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    # The first one recovers only if the other one does, which waits for its message, or looks.
    there = torch.zeros(1)
    if rank == 1:
        try:
            dist.recv(there)
        except PeersLost as lost:
            assert "rank" in str(lost)  # noqa: PT017 - this is no test of pytest's
        dist.send(there + 7, 3)
        early = dist.irecv(there, 2)
        try:
            while not early.is_completed():
                pass
        except PeersLost as lost:
            assert "rank 2" in str(lost)  # noqa: PT017
        dist.send(there + 8, 3)
    else:
        dist.recv(there, 1)
        assert there.item() == 7
        work = dist.irecv(there, 1)
        while not work.is_completed():
            pass
        assert there.item() == 8
    while spotmpi.torch.workers() != (1, 3):
        dist.barrier()
    check(rank, [1, 1, 3, 3])
    check_sizes(rank)
    assert dist.get_world_size() == SIZE

    def gives(src: int) -> list[Any]:
        dist.broadcast(there := torch.full((1,), float(rank)), src=src)
        dist.broadcast_object_list(said := [None, rank], src=src)
        early_broadcast(again := [None, rank], src=src)
        assert said == again
        return [there.item(), *said]

    gone: list[Callable[[], Any]] = [
        lambda: dist.broadcast(torch.zeros(1), src=2),
        lambda: dist.broadcast_object_list([1], src=0),
        lambda: early_broadcast([1], src=0),
        lambda: dist.scatter(torch.zeros(1), None, src=0),
        lambda: dist.scatter_object_list([None], None, src=2),
    ]
    alike = called_in("lightning.fabric", gives)  # whose broadcasts are the same on all
    assert alike(0) == [1.0, None, 1]  # from the first one that lives
    gone += [lambda: alike(2), lambda: called_in("lightning_models", gives)(0)]
    early = dist.irecv(torch.zeros(1), 2)
    gone += [lambda: dist.send(torch.zeros(1), 0), lambda: dist.recv(torch.zeros(1), 2)]
    gone += [early.wait, early.wait]
    for number, call in zip((2, 0, 0, 0, 2, 2, 0, 0, 2, 2, 2), gone, strict=True):
        try:
            call()
        except PeersLost as lost:
            assert f"rank {number}" in str(lost)  # noqa: PT017 - this is no test of pytest's
        else:
            raise AssertionError(f"rank {number} is lost")
    print(f"FINAL {rank}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
