"""What a newcomer is taught, a part with each round, until it knows all that the others know. Pure.

A newcomer takes part in the rounds from its admission on, and adds nothing to them. With each round
travels a part of the state (docs/adr/0007) as it was before that round: the newcomer puts it into
its place and then does what all do with the round's result. After as many rounds as there are parts
it has all of them, each as old as any other. A step's round that carries the rest as well (which
step it is, where the samplers stand) is the last one in which it learns.

All members count along, from the same rounds, so all know who has learnt what.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spotmpi.protocol.membership import Membership, Worker, WorkerId


class PageOrder:
    """Which part goes with the next round, and who has had how many."""

    def __init__(self, parts: int) -> None:
        if parts < 1:
            raise ValueError(f"a state has at least one part, not {parts}")
        self.parts = parts
        self.part = 0
        """The one that goes with the next round in which anybody learns."""
        self._had: dict[WorkerId, int] = {}

    @property
    def learning(self) -> tuple[WorkerId, ...]:
        """Those who do not know everything yet, as they came."""
        return tuple(self._had)

    @property
    def last_due(self) -> bool:
        """Whether somebody has all parts after the next round: then the rest must go with it."""
        return any(had + 1 >= self.parts for had in self._had.values())

    def admit(self, worker: WorkerId) -> None:
        """It takes part in the next round, for the first time."""
        self._had[worker] = 0

    def forget(self, workers: Collection[WorkerId]) -> None:
        """They are lost."""
        for worker in self._had.keys() & workers:
            del self._had[worker]

    def given(self, rest: bool) -> tuple[WorkerId, ...]:
        """A round with a part is committed; ``rest``: all else went with it.

        Returns those who know everything now.
        """
        self.part = (self.part + 1) % self.parts
        for worker in self._had:
            self._had[worker] += 1
        done = tuple(w for w, had in self._had.items() if rest and had >= self.parts)
        self.forget(done)
        return done

    def state(self) -> dict[str, object]:
        """For a newcomer, to count along; plain numbers."""
        return {"part": self.part, "had": list(self._had.items())}

    def restore(self, part: int, had: Collection[tuple[WorkerId, int]]) -> None:
        """Go on where the one with this `state` stood."""
        self.part, self._had = part, dict(had)


def cut(size: int, usual: int, ends: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """Parts of so many words in their order, one at least, each from one word to another.

    Of ``usual`` words, or fewer. If only at ``ends``, which grow up to ``size``: of as many as that
    allows, and longer where the next end is farther away.
    """
    if ends is None:
        ends = [*range(usual, size, usual), size]
    found, begin, last = [], 0, 0
    for end in ends:
        if end - begin > usual and last > begin:
            found.append((begin, last))
            begin = last
        last = end
    return [*found, (begin, last)]


_LENGTH = struct.Struct("<Q")


def write(page: npt.NDArray[Any], fields: dict[str, Any]) -> bool:
    """Put plain values on ``page``, an array of zeros; False if they do not fit: it stays so."""
    text = zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), 1)
    found = page.view(np.uint8)
    if _LENGTH.size + len(text) > len(found):
        return False
    found[: _LENGTH.size] = list(_LENGTH.pack(len(text)))
    found[_LENGTH.size : _LENGTH.size + len(text)] = np.frombuffer(text, np.uint8)
    return True


def read(page: npt.NDArray[Any]) -> dict[str, Any]:
    """What `write` put there; nothing from a page of zeros."""
    found = page.view(np.uint8)
    (length,) = _LENGTH.unpack(found[: _LENGTH.size].tobytes())
    fields: dict[str, Any] = {}
    if length:
        fields = json.loads(zlib.decompress(found[_LENGTH.size : _LENGTH.size + length].tobytes()))
    return fields


def pack(membership: Membership) -> list[Any]:
    """A membership as plain values."""
    return [membership.generation, [[worker.id, worker.host] for worker in membership]]


def unpack(values: list[Any]) -> Membership:
    """The membership that `pack` made them of."""
    generation, workers = values
    return Membership(int(generation), tuple(Worker(int(w), str(host)) for w, host in workers))
