"""What a newcomer learns: a page with each round, until it knows all that the others know. Pure.

A newcomer takes part in the rounds from its admission on, and adds nothing to them. With each round
travels a page (docs/adr/0007): a part of the state as it was before that round. The newcomer puts
it into its place and then does what all do with the round's result. After as many rounds as there
are pages it has all of them, each as old as any other. The last round in which it learns is a
step's round that carries the rest as well: the number of the step, and where the samplers stand.

All members count along, from the same rounds. So all know how much each newcomer has learnt.
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
    """Which page goes with the next round, and how many pages each newcomer has had."""

    def __init__(self, parts: int) -> None:
        if parts < 1:
            raise ValueError(f"a state has at least one part, not {parts}")
        self.parts = parts
        self.part = 0
        """Number of the page that goes with the next round in which anybody learns."""
        self.learning: dict[WorkerId, int] = {}
        """Newcomers that do not know everything yet, in the order of their admission, and how many
        pages each has had."""

    @property
    def last_due(self) -> bool:
        """True if a newcomer has all pages after the next round: then the rest must go with it."""
        return any(had + 1 >= self.parts for had in self.learning.values())

    def admit(self, worker: WorkerId) -> None:
        """Add a newcomer. It takes part in the next round, for the first time."""
        self.learning[worker] = 0

    def forget(self, workers: Collection[WorkerId]) -> None:
        """Remove these workers: they learn no more."""
        for worker in self.learning.keys() & workers:
            del self.learning[worker]

    def given(self, rest: bool) -> tuple[WorkerId, ...]:
        """Count a committed round that carried a page. ``rest``: True if all else went with it.

        Returns the newcomers that know everything now.
        """
        self.part = (self.part + 1) % self.parts
        for worker in self.learning:
            self.learning[worker] += 1
        done = tuple(w for w, had in self.learning.items() if rest and had >= self.parts)
        self.forget(done)
        return done

    def state(self) -> dict[str, object]:
        """Return plain values with which a newcomer can count along."""
        return {"part": self.part, "had": list(self.learning.items())}

    def restore(self, part: int, had: Collection[tuple[WorkerId, int]]) -> None:
        """Go on where the order with this `state` stood."""
        self.part, self.learning = part, dict(had)


def cut(size: int, usual: int, ends: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """Cut ``size`` words into pages, at least one. Return the first word and the end of each.

    A page has ``usual`` words, or fewer. If pages may end only at ``ends``, which grow up to
    ``size``, it is as near to that as it can be, and longer where the next end is farther away.
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


def write(head: npt.NDArray[Any], fields: dict[str, Any]) -> bool:
    """Put plain values on ``head``, an array of zeros. False if they do not fit: it stays zeros."""
    text = zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), 1)
    found = head.view(np.uint8)
    if _LENGTH.size + len(text) > len(found):
        return False
    found[: _LENGTH.size] = list(_LENGTH.pack(len(text)))
    found[_LENGTH.size : _LENGTH.size + len(text)] = np.frombuffer(text, np.uint8)
    return True


def read(head: npt.NDArray[Any]) -> dict[str, Any]:
    """Return what `write` put on ``head``: an empty dict from zeros."""
    found = head.view(np.uint8)
    (length,) = _LENGTH.unpack(found[: _LENGTH.size].tobytes())
    fields: dict[str, Any] = {}
    if length:
        fields = json.loads(zlib.decompress(found[_LENGTH.size : _LENGTH.size + length].tobytes()))
    return fields


def pack(membership: Membership) -> list[Any]:
    """Return a membership as plain values."""
    return [membership.generation, [[worker.id, worker.host] for worker in membership]]


def unpack(values: list[Any]) -> Membership:
    """Return the membership that `pack` made into ``values``."""
    generation, workers = values
    return Membership(int(generation), tuple(Worker(int(w), str(host)) for w, host in workers))
