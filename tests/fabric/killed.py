"""Workers that share memory, and that a provider kills: ``killed.py WORKERS DEATHS SEED``.

There is no MPI here. This process starts the workers, kills one after the other at any moment of
their rounds, and is the protocol between those that are left: who is there, what they do next. A
new one comes for each that goes. Workers hold every sum against what it must be, to the bit. In
most rounds sums go right into the state that all share: each element of it counts these rounds, and
one that was moved twice, or by half a sum, counts no more.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import numpy as np

from spotmpi.errors import PeersLost
from spotmpi.fabric import Shape
from spotmpi.fabric.neighbours import barrier_loops
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import Ways
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from spotmpi.kernels import cpu
from spotmpi.launch import processes as processes_of_ours

SIZES = (40_001, 1_500)
PATIENCE = 60.0
NEVER = threading.Event()
page = mmap.mmap(-1, mmap.PAGESIZE)
_BROKEN, _UNDER_WAY = 0, 1
"""What MPI would know in every process, that somebody is lost; and that a round came through."""


def fused(number: int) -> bool:
    """Whether that round's sums go into the state."""
    return number % 4 != 3


def counted(number: int) -> float:
    """Such rounds before that one."""
    return float(sum(map(fused, range(number))))


def brought(me: int, number: int, size: int) -> Any:
    """Cheap, and different for everybody and every round."""
    return (np.arange(size, dtype=np.float32) % 97 + 0.1) * np.float32(1 + me + 0.01 * number)


class Line:
    """One side of a conversation in JSON."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = os.fdopen(reads, "r"), os.fdopen(writes, "w")

    def say(self, *what: Any) -> None:
        """One line."""
        print(json.dumps(what), file=self._writes, flush=True)

    def hear(self) -> list[Any]:
        """One line. Blocking."""
        line = self._reads.readline()
        if not line:
            raise EOFError
        return json.loads(line)


def work(me: int, line: Line) -> NoReturn:
    """A worker's life."""

    def by_mpi(parts: Any) -> None:
        assert not parts, "there is no MPI here"

    plane = SharedMemoryPlane(Ways(by_mpi, lambda: page[_BROKEN] == 1))
    state = DoubleBuffer([("float32", size) for size in SIZES] * 2)
    data = plane.arena([Shape("float32", size) for size in SIZES], "data", state)
    word = plane.arena([Shape("float64", 16)], "word")
    members: list[int] = []
    number = 0
    before: list[int] = []
    fresh = False

    def move(index: int, part: slice, inputs: Any, weights: Any) -> None:
        total, must = inputs[0].copy(), brought(members[0], number, SIZES[index])[part]
        for one in inputs[1:]:
            total = total + one
        for worker in members[1:]:
            must = must + brought(worker, number, SIZES[index])[part]
        for flat in range(index, 2 * len(SIZES), len(SIZES)):
            state.next[flat][part] = state.live[flat][part] + (total - must + 1)

    def fuse() -> None:
        data.unfuse()
        if fused(number):
            moves = [partial(move, index) for index in range(len(SIZES))]
            assert data.fuses
            data.fuse_update(moves, 1 + number)

    def bring() -> None:
        for size, flat in zip(SIZES, data.contributions, strict=True):
            flat[:] = brought(me, number, size)
        word.contributions[0][:] = me + number

    def commit(workers: list[int], checked: bool = True) -> None:
        nonlocal number, fresh
        for size, flat in zip(SIZES, () if fused(number) else data.results, strict=False):
            total = brought(workers[0], number, size)
            for worker in workers[1:]:
                total = total + brought(worker, number, size)
            assert flat.tobytes() == total.tobytes(), f"worker {me}, round {number}: a wrong sum"
        if checked:
            expected = sum(workers) + number * len(workers)
            assert (word.results[0] == expected).all(), f"worker {me}, round {number}: the word"
        data.turn()
        word.turn()
        if fused(number):
            data.advance()
        number += 1
        for flat in state.live:
            assert (flat == counted(number)).all(), f"worker {me}, round {number}: a wrong state"
        fresh = True

    bring()
    while True:
        match line.hear():
            case ["card"]:
                line.say(list(plane.neighbours.card()))
            case ["reach", cards]:
                given = {int(one): bytes(card) for one, card in cards.items()}
                line.say(plane.neighbours.reach(given))
            case ["bind", members, high]:
                if before and number < high:  # others have committed it: the result is here
                    commit(before, checked=False)
                    bring()
                if number < high:
                    number, fresh = high, True
                    for flat in state.live:
                        flat[:] = counted(number)
                    bring()
                if high % 3 == 1:  # as for somebody who learns
                    data.leave()
                assert number == high
                plane.bind(members, True)
                before = members
                handles: list[int] = []
                try:
                    while True:
                        handles = []
                        fuse()
                        for part in (*data.parts, *word.parts):
                            handles.append(plane.start(part))
                            if me % 2:  # it does something else meanwhile
                                plane.proceed()
                        plane.wait(handles)
                        commit(members)
                        page[_UNDER_WAY] = 1
                        bring()
                except PeersLost:
                    plane.cancel(handles)
                line.say(number)


def start(me: int, lines: dict[int, Line], processes: dict[int, int]) -> None:
    """A worker more."""
    down, up = os.pipe(), os.pipe()
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        processes_of_ours.die_with_parent(parent)
        os.close(down[1])
        os.close(up[0])
        try:
            work(me, Line(down[0], up[1]))
        except EOFError:
            os._exit(0)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is to be seen
            print(f"worker {me}: {error!r}", flush=True)
            os._exit(1)
    os.close(down[0])
    os.close(up[1])
    lines[me], processes[me] = Line(up[0], down[1]), process


def main(count: int, deaths: int, seed: int) -> None:
    """Until so many have died."""
    rng = random.Random(seed)
    cpu.warm()  # for all that are forked
    barrier_loops.compiled()
    lines: dict[int, Line] = {}
    processes: dict[int, int] = {}
    high = 0
    committed = []

    def everybody(what: Callable[[Line], None]) -> list[Any]:
        for line in lines.values():
            what(line)
        return [line.hear()[0] for line in lines.values()]

    for me in range(count + deaths):
        start(me, lines, processes)
        if len(lines) < count:
            continue
        cards = dict(zip(lines, everybody(lambda line: line.say("card")), strict=True))
        assert all(everybody(lambda line, cards=cards: line.say("reach", cards)))
        members = list(lines)
        page[_UNDER_WAY] = 0
        for line in lines.values():
            line.say("bind", members, high)
        until = time.monotonic() + PATIENCE
        while not page[_UNDER_WAY] and rng.random() < 0.99:  # now and then the first is hit
            assert time.monotonic() < until, "no round came through"
            NEVER.wait(1e-3)
        NEVER.wait(rng.choice([0.0, rng.expovariate(1000), rng.expovariate(100)]))
        victim = rng.choice(members)
        os.kill(processes[victim], signal.SIGKILL)
        _, status = os.waitpid(processes.pop(victim), 0)
        assert os.WIFSIGNALED(status), "a worker has ended by itself"
        del lines[victim]
        page[_BROKEN] = 1
        reports = [line.hear()[0] for line in lines.values()]
        page[_BROKEN] = 0
        assert max(reports) - min(reports) <= 1, reports
        committed.append(max(reports) - high)
        high = max(reports)
    for process in processes.values():
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    print(f"{len(committed) - 1} deaths survived, {sum(committed)} rounds")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
