"""Workers of several hosts that are killed in mid-sum: ``torn.py FOLDER DEATHS SEED HOW``.

HOW: the way of sums between hosts, or the format in which they are narrowed in rings. What goes by
*given* is one array of each worker.

Run by mpirun. Large rounds follow each other; one worker after the other kills itself at any moment
of one, the last ones first. The others go through a build and begin the next round. Each holds
every sum against what it must be, to the bit, and that memory is at peace between rounds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy as np

from spotmpi.arrays.narrowing import FORMATS, Narrowing, narrowed_sum
from spotmpi.arrays.sums_of_hosts import sum_of_hosts
from spotmpi.bench.measuring.sums import summed
from spotmpi.errors import PeersLost
from spotmpi.fabric import Cancel, Proceed, Rebuild, Revoke, Shape, Start, Wait
from spotmpi.fabric.mpi import fabric as mpi
from spotmpi.protocol.host_ring import GIVEN, RING, STRAIGHT, orders
from tests.fabric.planes import HOSTS, Hosts, OnHosts

SIZE = 1_000_003
ROUNDS = 4
"""Of each membership, until somebody dies in the next one."""


def brought(me: int, number: int) -> np.ndarray:
    """Different for everybody and every round, and what order it is summed in can be told."""
    return (np.arange(SIZE, dtype=np.float32) % 97 + 0.1) * np.float32(1 + me + 0.01 * number)


def expected(members: list[int], number: int, how: str) -> np.ndarray:
    """The sum of all, in the order that is said."""
    hosts: dict[int, list[int]] = {}
    for member in members:
        hosts.setdefault(HOSTS[member], []).append(member)
    groups = list(hosts.values())
    each = {member: brought(member, number) for member in members}
    if len(groups) == 1:
        return sum(map(each.get, members[1:]), each[members[0]])
    if how == STRAIGHT:
        return sum_of_hosts(each, groups, how)
    total = np.empty(SIZE, np.float32)
    for part, order in orders(SIZE, [len(group) for group in groups]):
        first, *others = [each[one][part] for which in order for one in groups[which]]
        total[part] = sum(others, first)
    return total


class Truth:
    """What all workers keep of narrowed sums, as one of them works it out."""

    def __init__(self, members: list[int], form: str) -> None:
        self._all = {one: new(form) for one in members}

    def expected(self, members: list[int], number: int) -> np.ndarray:
        """The sum of these, as it must be."""
        hosts: dict[int, list[int]] = {}
        for member in members:
            hosts.setdefault(HOSTS[member], []).append(member)
        if len(hosts) == 1:
            return expected(members, number, RING)
        each = {one: brought(one, number) for one in members}
        found = narrowed_sum(each, list(hosts.values()), {one: self._all[one] for one in members})
        for one in members:
            self._all[one].turn()
        return found


def new(form: str) -> Narrowing:
    """Of a worker that has kept nothing yet."""
    return Narrowing(form, np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32))


def main(folder: Path, deaths: int, seed: str, how: str) -> None:
    """One worker's life."""
    form = how if how in FORMATS else None
    way = how if form is None else RING
    OnHosts.ways_of = staticmethod(lambda shape: (way,))
    mpi.PLANE = Hosts
    fabric = mpi.MpiFabric()
    members = list(fabric.membership.ids)
    narrowing = None if form is None else new(form)
    truth = None if form is None else Truth(members, form)
    given = how == GIVEN
    shape = Shape("float32", SIZE, narrowing=narrowing, by_one=given)
    arena = fabric.arena([shape] * (len(members) if given else 1), "data")
    draw = random.Random(seed)
    victims = draw.sample(members, deaths)
    moments = [draw.random() * 0.02 for _ in victims]
    number = sums = 0
    for victim, moment in [*zip(victims, moments, strict=True), (None, 0.0)]:
        for turn in range(ROUNDS + 1):
            number += 1
            own = fabric.me if given else 0
            arena.contributions[own][:] = brought(fabric.me, number)
            if given:
                arena.bring_only(own)
            if turn == ROUNDS and fabric.me == victim:
                threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
            if turn == ROUNDS and victim is None:
                break
            handles, through = [], np.zeros(3)
            try:
                handles += [fabric.perform(Start(part)) for part in arena.parts]
                if number % 2:
                    fabric.perform(Proceed())
                fabric.perform(Wait(handles))
                if given:
                    right = dict.fromkeys(range(len(HOSTS)), np.zeros(1, np.float32))
                    right |= {member: brought(member, number) for member in members}
                elif truth is None:
                    right = {0: expected(members, number, how)}
                else:
                    right = {0: truth.expected(members, number)}
                for one, result in enumerate(arena.results):
                    assert (result == right[one]).all(), f"round {number}, array {one}"
                if narrowing is not None:
                    narrowing.turn()
                sums += 1
                through[:] = 1
            except PeersLost:
                assert turn == ROUNDS, f"round {number}: nobody has died"
                fabric.perform(Revoke())
                fabric.perform(Cancel(handles))
            arena.turn()
        if fabric.me == victim:
            signal.pause()
        if victim is not None:
            before = list(members)
            members.remove(victim)
            while not fabric.perform(Rebuild(frozenset(members))).sealed:
                pass
            word = fabric.arena([Shape("float64", 3)])
            word.contributions[0][:] = through
            fabric.run(summed(word.parts))
            if narrowing is not None and word.results[0].any() and not through.any():
                # Somebody has the sum: so all have written what follows.
                truth.expected(before, number)
                narrowing.turn()
            # All have given up what they had begun.
            flats = (*arena.record, *arena.contributions)
            as_they_were = [flat.copy() for flat in flats]
            for _ in range(20):
                fabric.run(summed(fabric.arena([Shape("float64", 3)]).parts))
            assert all(map(np.array_equal, as_they_were, flats)), "memory is not at peace"
    Path(folder, f"{fabric.me}.done").write_text(f"{sums}")
    while len(list(folder.glob("*.done"))) < len(members):
        os.sched_yield()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
