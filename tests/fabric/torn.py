"""Workers of several hosts that are killed in the middle of sums: ``torn.py FOLDER DEATHS SEED``.

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

from spotmpi.errors import PeersLost
from spotmpi.fabric import Cancel, Proceed, Rebuild, Reduce, Revoke, Shape, Start, Wait, mpi
from spotmpi.protocol.host_ring import orders
from tests.fabric.planes import HOSTS, Hosts

SIZE = 1_000_003
ROUNDS = 4
"""Of each membership, until somebody dies in the next one."""


def brought(me: int, number: int) -> np.ndarray:
    """Different for everybody and every round, and what order it is summed in can be told."""
    return (np.arange(SIZE, dtype=np.float32) % 97 + 0.1) * np.float32(1 + me + 0.01 * number)


def expected(members: list[int], number: int) -> np.ndarray:
    """The sum of all, in the order that is said."""
    hosts: dict[int, list[int]] = {}
    for member in members:
        hosts.setdefault(HOSTS[member], []).append(member)
    groups = list(hosts.values())
    each = {member: brought(member, number) for member in members}
    if len(groups) == 1:
        return sum(map(each.get, members[1:]), each[members[0]])
    total = np.empty(SIZE, np.float32)
    for part, order in orders(SIZE, [len(group) for group in groups]):
        first, *others = [each[one][part] for which in order for one in groups[which]]
        total[part] = sum(others, first)
    return total


def main(folder: Path, deaths: int, seed: str) -> None:
    """One worker's life."""
    mpi.PLANE = Hosts
    fabric = mpi.MpiFabric()
    members = list(fabric.membership.ids)
    arena = fabric.arena([Shape("float32", SIZE)], "data")
    draw = random.Random(seed)
    victims = draw.sample(members, deaths)
    moments = [draw.random() * 0.02 for _ in victims]
    number = sums = 0
    for victim, moment in [*zip(victims, moments, strict=True), (None, 0.0)]:
        for turn in range(ROUNDS + 1):
            number += 1
            arena.contributions[0][:] = brought(fabric.me, number)
            if turn == ROUNDS and fabric.me == victim:
                threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
            if turn == ROUNDS and victim is None:
                break
            handles = []
            try:
                handles.append(fabric.perform(Start(arena.parts[0])))
                if number % 2:
                    fabric.perform(Proceed())
                fabric.perform(Wait(handles))
                assert (arena.results[0] == expected(members, number)).all(), f"round {number}"
                sums += 1
            except PeersLost:
                assert turn == ROUNDS, f"round {number}: nobody has died"
                fabric.perform(Revoke())
                fabric.perform(Cancel(handles))
            arena.turn()
        if fabric.me == victim:
            signal.pause()
        if victim is not None:
            members.remove(victim)
            while not fabric.perform(Rebuild(frozenset(members))).sealed:
                pass
            # All have given up what they had begun.
            flats = (*arena.record, *arena.contributions)
            before = [flat.copy() for flat in flats]
            for _ in range(20):
                fabric.perform(Reduce(fabric.arena([Shape("float64", 3)]).parts))
            assert all(map(np.array_equal, before, flats)), "memory is not at peace"
    Path(folder, f"{fabric.me}.done").write_text(f"{sums}")
    while len(list(folder.glob("*.done"))) < len(members):
        os.sched_yield()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
