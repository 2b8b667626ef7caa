"""Which worker does nothing, and holds up all others or its own place: pure.

In a round all workers wait for the one that has not entered it. That one may be evaluating, or
it may never come back: a deadlock of its own, a file system that does not answer. Its host sees
which: who is at work computes, reads or writes (`spotmpi.launch.host.activity`), or its script says
that it is busy. Whoever waits is never to blame, and while all are busy with their scripts nobody
waits. For a newcomer that has not joined nobody waits either, but another one could have its place.
If all wait, nobody goes on, unless a message, or a round's sum, is still under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from spotmpi.launcher_channel import IN_SCRIPT, Measured

__all__ = ["Apart", "Awaited", "Stalls", "Standing", "waited_for"]


class Standing(NamedTuple):
    """How far a worker has come, and what it does: the last news of it."""

    rounds: int
    """Committed."""
    steps: int
    """Committed."""
    doing: int
    """IN_SCRIPT, IN_ROUND or AT_MESSAGES ..."""
    since: float
    """... since then, on the head's ``time.monotonic()``."""
    quiet: float = 0.0
    """Seconds for which its processes had done nothing in its script, by its host's last word."""
    busy: str = ""
    """With this, as its script said."""
    loss: float | None = None
    """The mean of the last step's."""
    measured: Measured = Measured()


Standings = Mapping[int, Standing]
"""By worker."""


@dataclass(frozen=True)
class Awaited:
    """A worker in its script that others wait for."""

    worker: int
    waited: float
    """Seconds for which somebody has waited for it."""
    quiet: float
    """Seconds for which it did nothing, as far as its host can see."""
    busy: str
    """With this, as its script said; empty if it said nothing."""

    @property
    def idle(self) -> float:
        """Seconds for which it did nothing while it should."""
        return min(self.waited, self.quiet)

    @property
    def why(self) -> str:
        """What it is revoked for."""
        return (
            f"the others waited {self.waited:.1f} s for it, and for {self.quiet:.1f} s it did "
            "nothing in its script"
        )

    def sentence(self, limit: float) -> str:
        """What to tell the user, where it is revoked after so many seconds of doing nothing."""
        waited = f"the others have waited {self.waited:.1f} s for worker {self.worker}, which "
        if self.quiet > limit / 2:
            return (
                f"{waited}has done nothing in its script for {self.quiet:.1f} s; after "
                f"{limit:.0f} s it is revoked (--stall-timeout). If its script waits for "
                "something, put `with trainer.busy(...)` around that, or give it more time"
            )
        return waited + (f"is busy: {self.busy}" if self.busy else "is at work in its script")


@dataclass(frozen=True)
class Apart:
    """A newcomer in its script, which has not joined the others."""

    worker: int
    quiet: float
    """Seconds for which it did nothing, as far as its host can see."""

    @property
    def idle(self) -> float:
        """Seconds for which it did nothing while it should."""
        return self.quiet

    @property
    def why(self) -> str:
        """What it is given up for."""
        return f"for {self.quiet:.1f} s it did nothing in its script"

    def sentence(self, limit: float) -> str:
        """What to tell the user, where it is given up after so many seconds of doing nothing."""
        return (
            f"worker {self.worker} has not joined yet, and has done nothing in its script for "
            f"{self.quiet:.1f} s; after {limit:.0f} s it is given up (--stall-timeout)"
        )


_UNDER_WAY = 60.0
"""Seconds for which a message or a sum may be on its way while all wait, though the limit is
less."""


class Stalls:
    """Looks for workers that do nothing for longer than ``limit`` seconds: ``joint`` are those that
    take part, and that keep others waiting, ``apart`` newcomers that do not yet."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._long = max(limit, _UNDER_WAY)
        self._suspected: set[tuple[int, float]] = set()
        self._told: set[tuple[int, float, bool]] = set()
        self._stuck: dict[int, float] = {}
        self._members: Set[int] = frozenset()
        self._changed = 0.0
        """When ``joint`` became another set of workers: a round begins again then."""

    def slow(self, joint: Standings, apart: Standings, now: float) -> list[Awaited | Apart]:
        """Return those that others have waited for half the limit, or that do nothing apart.

        Each once for each time in its script, and once more if it does nothing for so long.
        """
        half = self._limit / 2
        found: list[Awaited | Apart] = [one for one in waited_for(joint, now) if one.waited > half]
        found += [one for one in _apart(apart) if one.quiet > half]
        known = {**joint, **apart}
        keys = [(one.worker, known[one.worker].since, one.quiet > half) for one in found]
        new = [one for one, key in zip(found, keys, strict=True) if key not in self._told]
        self._told = {old for old in self._told if any(old[:2] == key[:2] for key in keys)}
        self._told.update(keys)
        return new

    def look(self, joint: Standings, apart: Standings, now: float) -> list[Awaited | Apart]:
        """Return those that do nothing, and were found at this look and at the last one.

        Twice, because what is known may be old: the launcher may have been stopped itself.
        """
        seen: list[Awaited | Apart] = [*waited_for(joint, now), *_apart(apart)]
        known = {**joint, **apart}
        found = [one for one in seen if one.idle > self._limit]
        before = self._suspected
        self._suspected = {(one.worker, known[one.worker].since) for one in found}
        return [one for one in found if (one.worker, known[one.worker].since) in before]

    def stuck(self, joint: Standings, now: float) -> bool:
        """Return True if all wait, and have for longer than the limit and a minute, in rounds or
        for messages; and if it was the same at the last look."""
        if joint.keys() != self._members:
            self._members, self._changed = frozenset(joint), now
        waits = {worker: one.since for worker, one in joint.items() if one.doing != IN_SCRIPT}
        last = max([self._changed, *waits.values()])
        long = len(waits) == len(joint) > 0 and now - last > self._long
        before, self._stuck = self._stuck, waits if long else {}
        return long and before == waits

    def sentence(self, at_messages: Sequence[int]) -> str:
        """What to tell the user if all wait, these for messages."""
        began = f"for {self._long:.0f} s (--stall-timeout) "
        if not at_messages:
            return began + (
                "all workers waited in one round, which did not end: the network between them is "
                "at fault, or spotmpi, or the round takes longer than that"
            )
        names = f"worker{'s' * (len(at_messages) > 1)} {', '.join(map(str, at_messages))}"
        return began + (
            f"{names} waited for messages, or in calls of some workers, and the others waited, "
            "too: nobody was there to go on"
        )


def waited_for(standing: Standings, now: float) -> list[Awaited]:
    """Return the workers that others wait for; none if all wait, or all are in scripts."""
    waiting = [one.since for one in standing.values() if one.doing != IN_SCRIPT]
    if not waiting:
        return []
    first = min(waiting)
    return [
        Awaited(worker, now - max(one.since, first), one.quiet, one.busy)
        for worker, one in standing.items()
        if one.doing == IN_SCRIPT
    ]


def _apart(standing: Standings) -> list[Apart]:
    return [Apart(worker, one.quiet) for worker, one in standing.items() if one.doing == IN_SCRIPT]
