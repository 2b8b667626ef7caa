"""Newcomers of a simulation: how each one gets a sponsor, and what then becomes of it.

As with MPI, the spawn of a newcomer can fail, or hang for ever. A newcomer that loses its sponsor,
or is let go by it, learns that where it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spotmpi.errors import PeersLost
from spotmpi.fabric import Knock, Meet, Welcome
from spotmpi.fabric.sim.workers import LATER, Process, Workers
from spotmpi.protocol.membership import WorkerId

__all__ = ["Newcomers"]

_SPAWNS_THAT_FAIL = 0.08
_SPAWNS_THAT_HANG = 0.08


@dataclass(eq=False)
class _Newcomer:
    """A worker that has no briefing yet."""

    process: Process
    sponsor: WorkerId | None
    briefed: bool = False
    """True if it has had a briefing."""
    behind: bool = False
    """True if it was briefed for an earlier training than the members' present one."""
    alone: bool = False
    """True if it cannot be admitted any more: it has lost its sponsor, or was let go."""

    @property
    def waiting(self) -> Meet | Knock | None:
        """The request in which it waits to be briefed or admitted, if it does."""
        waiting = self.process.waiting
        return waiting if isinstance(waiting, Meet | Knock) else None


@dataclass(eq=False)
class _Guest:
    """A newcomer, as its sponsor sees it."""

    failure: str | None = None
    admitted: bool = False


class Newcomers:
    """All newcomers of one simulation that have no briefing yet."""

    def __init__(self, workers: Workers) -> None:
        self._time, self._workers = workers.time, workers
        self._all: dict[WorkerId, _Newcomer] = {}
        self._guests: dict[WorkerId, dict[WorkerId, _Guest]] = {}
        self.connected: Callable[[WorkerId], None] = lambda newcomer: None
        """Called with each newcomer that is connected to its sponsor."""

    def come(self, newcomer: WorkerId, process: Process, sponsor: WorkerId | None) -> None:
        """Add a newcomer, which begins now. Without a sponsor it waits for one."""
        self._all[newcomer] = _Newcomer(process, sponsor)

    def gone(self, worker: WorkerId) -> None:
        """Remove a worker that has ended. The newcomers that it was the sponsor of learn of it."""
        self._all.pop(worker, None)
        self._guests.pop(worker, None)
        for newcomer, one in self._all.items():
            if one.sponsor == worker:
                self._time.after(self._time.delays.notice, self.turn_away, newcomer)

    # The sponsor's side.

    def sponsor(self, me: WorkerId, newcomer: WorkerId | None) -> str | None:
        """Perform `Fabric.sponsor`."""
        guests = self._guests.setdefault(me, {})
        for other in [*guests]:
            if other != newcomer:
                self._let_go(me, other, guests.pop(other))
        if newcomer is None:
            return None
        if newcomer not in guests:
            guests[newcomer] = guest = _Guest()
            self._time.after(self._time.delays.spawn, self._spawned, me, newcomer, guest)
        return guests[newcomer].failure

    def _spawned(self, me: WorkerId, newcomer: WorkerId, guest: _Guest) -> None:
        one, fate = self._all.get(newcomer), self._time.random.random()
        if me not in self._workers.processes or fate < _SPAWNS_THAT_HANG:
            return
        if guest.failure is None and fate < _SPAWNS_THAT_HANG + _SPAWNS_THAT_FAIL:
            guest.failure = "MPI could not start it"
        elif one is not None:
            one.sponsor = me
            if guest.failure is not None:  # it was let go meanwhile
                self._time.after(self._time.delays.notice, self.turn_away, newcomer)
            else:
                self.connected(newcomer)

    def _let_go(self, me: WorkerId, newcomer: WorkerId, guest: _Guest) -> None:
        guest.failure = guest.failure or "it is to be given up"
        one = self._all.get(newcomer)
        if one is not None and one.sponsor == me and not guest.admitted:
            self._time.after(self._time.delays.notice, self.turn_away, newcomer)

    def waiting_at(self, sponsor: WorkerId) -> Iterator[tuple[WorkerId, object]]:
        """Yield the newcomers of ``sponsor`` that wait, with the request in which each waits."""
        for newcomer, one in self._all.items():
            if one.sponsor == sponsor and one.waiting is not None:
                yield newcomer, one.waiting

    def guest(self, sponsor: WorkerId) -> WorkerId | None:
        """Return the newcomer that has knocked at ``sponsor``, or None."""
        for newcomer, waiting in self.waiting_at(sponsor):
            one = self._all[newcomer]
            if isinstance(waiting, Knock) and one.process.data is None and not one.behind:
                return newcomer
        return None

    def knocks(self, newcomer: WorkerId, sponsor: WorkerId | None) -> bool:
        """Return True if ``newcomer`` waits to be admitted, and has this sponsor."""
        one = self._all.get(newcomer)  # one that is alone does not wait any more
        return one is not None and one.sponsor == sponsor and isinstance(one.waiting, Knock)

    def move_on(self, sponsor: WorkerId) -> None:
        """Note that ``sponsor`` is in another training from now on."""
        for one in self._all.values():
            if one.sponsor == sponsor and one.briefed:
                one.behind = True

    def brief(self, sponsor: WorkerId, briefing: Callable[[], bytes]) -> None:
        """Send the briefing to the newcomers of ``sponsor`` that wait for it."""
        for newcomer, waiting in [*self.waiting_at(sponsor)]:
            one = self._all[newcomer]
            if isinstance(waiting, Meet) or one.behind:
                one.briefed, one.behind = True, False
                one.process.waiting = None
                self._workers.reply(newcomer, briefing(), self._time.delays.message)

    def welcome(self, sponsor: WorkerId, process: Process, request: Welcome) -> Any:
        """Perform `Welcome`."""
        newcomer = request.newcomer
        guest = self._guests.get(sponsor, {}).get(newcomer)
        if guest is not None:
            guest.admitted = True
        self._time.after(self._time.delays.message, self._welcomed, newcomer, request.briefing)
        return self._workers.reply(sponsor)

    def _welcomed(self, newcomer: WorkerId, briefing: bytes) -> None:
        one = self._all.get(newcomer)
        if one is not None and isinstance(one.waiting, Knock) and not one.alone:
            one.process.waiting = None
            del self._all[newcomer]
            self._workers.reply(newcomer, briefing)

    # The newcomer's side.

    def wait(self, newcomer: WorkerId, process: Process, request: Meet | Knock) -> Any:
        """Perform `Meet` or `Knock`. The reply is `PeersLost` if its sponsor is dead or has let it
        go. Without a sponsor yet it waits."""
        one = self._all[newcomer]
        if one.sponsor is not None and one.sponsor not in self._workers.processes:
            one.alone = True
        if one.alone:
            process.waiting = None
            self._workers.reply(newcomer, PeersLost("no sponsor"))
        return LATER

    def turn_away(self, newcomer: WorkerId) -> None:
        """Give the newcomer up: it is not admitted, or will never learn that it was."""
        one = self._all.get(newcomer)
        if one is None or one.alone:
            return
        one.alone = True
        for guests in self._guests.values():
            if newcomer in guests:
                failure = guests[newcomer].failure
                guests[newcomer].failure = failure or "it could not be connected to all workers"
        if one.waiting is not None:
            one.process.waiting = None
            self._workers.reply(newcomer, PeersLost("turned away"))
