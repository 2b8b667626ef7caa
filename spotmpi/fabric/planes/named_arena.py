"""Arenas with names, and the ways that their sums take between hosts.

If it is not clear which way is fastest, all are tried in the first rounds after a change of the
members (`protocol.trials`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from spotmpi.arrays.backend import HOST
from spotmpi.fabric.neighbours.shared_memory import bytes_of
from spotmpi.fabric.planes.plane import Arena, Part, Shape, Sum
from spotmpi.fabric.planes.rings import Rings
from spotmpi.fabric.planes.shared_arena import SMALL
from spotmpi.fabric.planes.travels import MESSAGE
from spotmpi.protocol.host_ring import FIRST, GIVEN, RING, STRAIGHT
from spotmpi.protocol.trials import Choice, Trial

__all__ = ["TRIED", "NamedArena", "ways_of"]

_LOG = logging.getLogger(__name__)

_LARGE = 4 << 20
"""Bytes of an array that always goes in rings if there are several hosts."""

_TURNS = 4
"""Rounds of each way that count in a trial of the fastest way."""

TRIED = 2 * (_TURNS + 1)
"""Rounds with the same members in which ways are tried; there are never more than two ways."""


def ways_of(shape: Shape) -> Sequence[str]:
    """Return the ways that such an array may take between hosts. Several ways are tried."""
    size = bytes_of(shape.dtype, shape.size)
    if shape.size <= SMALL:
        return (FIRST,)
    if shape.by_one and size > MESSAGE:
        return (GIVEN,)
    if size >= _LARGE or shape.narrowing is not None:
        return (RING,)
    return (FIRST, STRAIGHT) if size <= MESSAGE else (STRAIGHT, RING)


@dataclass
class _Tried:
    """The trial of an array that may take several ways."""

    trial: Trial
    begun: int = 0
    """The number of sums that were started."""
    seconds: list[float] = field(default_factory=list)
    """The times of the sums on this worker, until a way is chosen."""


@dataclass
class NamedArena:
    """An arena with a name, and how its sums go between hosts."""

    arena: Arena
    large: bool
    """True if an array of it is so large that members wait for each other to sum it. An arena of
    small ones goes along with such an arena, or is summed as if nobody shared it."""
    agreed: bool | None = None
    """True if all members share theirs; None: not known yet, or sums stay on this host."""
    _went: dict[int, str] = field(default_factory=dict)
    """The way by which each array is being summed, or was last."""
    _tried: dict[int, _Tried] = field(default_factory=dict)
    """The trials of arrays that may take several ways, among these members."""

    def begin_again(self) -> None:
        """Forget what was agreed and tried: there are other members."""
        self.agreed, self._tried = None, {}

    def start(self, number: int, ways: Sequence[str], rings: Rings | None) -> str:
        """Return the way of an array that is started now; the same on all members. Empty if it does
        not go from host to host. ``ways``: those that it may take."""
        if rings is None or self.agreed is False:
            way = ""
        elif len(ways) == 1:
            way = ways[0]
        else:
            if (tried := self._tried.get(number)) is None:
                tried = self._tried[number] = _Tried(Trial(ways, rings.per_host, _TURNS))
            tried.begun += 1
            way = tried.trial.way(tried.begun - 1)
        self._went[number] = way
        return way

    def note_unshared(self, number: int) -> None:
        """Note that an array that was started goes by none of the ways."""
        self._went[number] = ""
        self._tried.pop(number, None)

    def took(self, number: int, seconds: float) -> None:
        """Note how long the sum of an array took here."""
        tried = self._tried.get(number)
        if tried is not None and tried.trial.choice is None:
            tried.seconds.append(seconds)

    def choose(self, rings: Rings, total: Sum) -> None:
        """Choose a way for each array for which all ways were tried. Collective."""
        for number, tried in sorted(self._tried.items()):
            trial = tried.trial
            if trial.choice is not None or len(tried.seconds) != trial.rounds:
                continue
            table = HOST.zeros("float64", rings.count * trial.rounds)
            table[rings.index :: rings.count] = tried.seconds
            total([Part(table, table)])
            times = table.reshape(trial.rounds, rings.count).tolist()
            size = self.arena.contributions[number].nbytes
            choice = trial.choose(int(size), times)
            _LOG.info("sums of %r, %d, go between hosts: %s", self.arena.name, number, choice)

    def last(self, number: int) -> tuple[str, Choice | None]:
        """Return the way by which an array was summed last, or is being summed, and why it goes its
        way from now on: None unless these members tried several."""
        tried = self._tried.get(number)
        return self._went.get(number, ""), None if tried is None else tried.trial.choice
