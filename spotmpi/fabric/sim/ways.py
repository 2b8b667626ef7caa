"""The ways of a simulation's sums from host to host: which one each sum takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from spotmpi.arrays.backend import backend_of
from spotmpi.arrays.word_view import WORDS_OF
from spotmpi.fabric import Between, Part
from spotmpi.fabric.sim.collectives import Data, Place
from spotmpi.fabric.sim.workers import Workers
from spotmpi.protocol.host_ring import RING, STRAIGHT, carried
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.trials import Trial

_WAYS, _TURNS = (STRAIGHT, RING), 1
"""Ways that are tried for every array, and the rounds of each way that count."""


class Ways:
    """The hosts of one simulation, and the ways that sums take between them."""

    def __init__(self, workers: Workers, host_of: Callable[[WorkerId], int]) -> None:
        """``host_of`` returns the host of a worker."""
        self._workers = workers
        self._host_of = host_of
        self._last: dict[tuple[WorkerId, Place | None], str] = {}
        """The last way of each array of each worker."""

    def hosts(self, members: Sequence[WorkerId]) -> list[list[WorkerId]]:
        """Return the members of each host. Hosts come in the order of their first members."""
        found: dict[int, list[WorkerId]] = {}
        for one in members:
            found.setdefault(self._host_of(one), []).append(one)
        return list(found.values())

    def between(
        self, worker: WorkerId, workers: Sequence[WorkerId], parts: Sequence[Part]
    ) -> Between | None:
        """Return how ``parts`` were summed when they were started last; None if on one host."""
        places = [_place(part) for part in parts]
        ways = [self._last.get((worker, place), "") for place in places]
        data = self._workers.processes[worker].data
        assert data is not None
        tried = [None if place is None else data.trials.get(place) for place in places]
        choices = [
            trial.choice if trial and data.begun.get((worker, place), 0) >= trial.rounds else None
            for place, trial in zip(places, tried, strict=True)
        ]
        return Between(self.hosts(workers), ways, choices) if all(ways) else None

    def begin(self, worker: WorkerId, data: Data, part: Part) -> str:
        """Return the way of a part whose sum begins; empty if all are on one host."""
        hosts = self.hosts(data.members)
        way = self._next(worker, data, hosts, part) if len(hosts) > 1 else ""
        self._last[worker, _place(part)] = way
        if part.narrowing is not None:
            part.narrowing.begin(_parts_of(worker, hosts, part) if way else [])
        return way

    @staticmethod
    def _next(worker: WorkerId, data: Data, hosts: Sequence[Sequence[WorkerId]], part: Part) -> str:
        """Return the way of a part between hosts: first all in turns, then one that is drawn."""
        place = _place(part)
        if place is None:
            return ""
        data.begun[worker, place] = begun = data.begun.get((worker, place), 0) + 1
        if part.narrowing is not None:
            return RING
        if (trial := data.trials.get(place)) is None:
            trial = data.trials[place] = Trial(_WAYS, list(map(len, hosts)), _TURNS)
            chance = random.Random(f"{data.members}/{place}")
            times = [[chance.random() for _ in data.members] for _ in range(trial.rounds)]
            dtype, (size,) = backend_of(part.result).describe(part.result)
            trial.choose(4 * WORDS_OF.get(dtype, 1) * size, times)
        return trial.way(begun - 1)


def _place(part: Part) -> Place | None:
    arena = part.arena
    return None if arena is None or not arena.name else (arena.name, part.number)


def _parts_of(worker: WorkerId, hosts: Sequence[Sequence[WorkerId]], part: Part) -> list[slice]:
    """Return the slices of the part that ``worker`` narrows."""
    which = next(number for number, host in enumerate(hosts) if worker in host)
    workers = [len(host) for host in hosts]
    return carried(len(part.result), workers, which, list(hosts[which]).index(worker))
