"""Newcomers of a simulation: how each one gets a sponsor, and what then becomes of it.

As with MPI, the spawn of a newcomer can fail, or hang for ever. A newcomer that loses its sponsor,
or is let go by it, learns that where it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spotmpi.errors import PeersLost
from spotmpi.fabric import Knock, Meet
from spotmpi.fabric.simulated.data import Process, World
from spotmpi.protocol.membership import WorkerId

__all__ = ["Newcomers"]

_SPAWNS_THAT_FAIL = 0.08
_SPAWNS_THAT_HANG = 0.08


@dataclass(eq=False)
class _Guest:
    """A newcomer, as its sponsor sees it."""

    failure: str | None = None
    admitted: bool = False


class Newcomers:
    """All newcomers of one simulation that have no charter yet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._all: dict[WorkerId, Process] = {}
        self._guests: dict[WorkerId, dict[WorkerId, _Guest]] = {}
        self.connected: Callable[[WorkerId], None] = lambda newcomer: None
        """Called with each newcomer that is connected to its sponsor."""

    def come(self, newcomer: WorkerId, process: Process) -> None:
        """Add a newcomer, which begins now."""
        self._all[newcomer] = process

    def gone(self, worker: WorkerId) -> None:
        """Remove a worker that has ended. The newcomers that it was the sponsor of learn of it."""
        self._all.pop(worker, None)
        self._guests.pop(worker, None)
        for newcomer, process in self._all.items():
            if process.sponsor == worker:
                self._world.after(self._world.delays.notice, self.turn_away, newcomer)

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
            self._world.after(self._world.delays.spawn, self._spawned, me, newcomer, guest)
        return guests[newcomer].failure

    def _spawned(self, me: WorkerId, newcomer: WorkerId, guest: _Guest) -> None:
        process, fate = self._all.get(newcomer), self._world.random.random()
        if me not in self._world.processes or fate < _SPAWNS_THAT_HANG:
            return
        if guest.failure is None and fate < _SPAWNS_THAT_HANG + _SPAWNS_THAT_FAIL:
            guest.failure = "MPI could not start it"
        elif process is not None:
            process.sponsor = me
            if guest.failure is not None:  # it was let go meanwhile
                self._world.after(self._world.delays.notice, self.turn_away, newcomer)
            else:
                self.connected(newcomer)

    def _let_go(self, me: WorkerId, newcomer: WorkerId, guest: _Guest) -> None:
        guest.failure = guest.failure or "it is to be given up"
        process = self._all.get(newcomer)
        if process is not None and process.sponsor == me and not guest.admitted:
            self._world.after(self._world.delays.notice, self.turn_away, newcomer)

    def waiting_at(self, sponsor: WorkerId) -> Iterator[tuple[WorkerId, object]]:
        """Yield the newcomers of ``sponsor`` that wait, with the request in which each waits."""
        for newcomer, process in self._all.items():
            if process.sponsor == sponsor and isinstance(process.waiting, Knock | Meet):
                yield newcomer, process.waiting

    def guest(self, sponsor: WorkerId) -> WorkerId | None:
        """Return the newcomer that has knocked at ``sponsor``, or None."""
        for newcomer, waiting in self.waiting_at(sponsor):
            process = self._all[newcomer]
            if isinstance(waiting, Knock) and process.data is None and not process.behind:
                return newcomer
        return None

    def move_on(self, sponsor: WorkerId) -> None:
        """Note that ``sponsor`` is in another training from now on."""
        for process in self._all.values():
            if process.sponsor == sponsor and process.briefed:
                process.behind = True

    def brief(self, sponsor: WorkerId, prospectus: Callable[[], bytes]) -> None:
        """Send the prospectus to the newcomers of ``sponsor`` that wait for it."""
        for newcomer, waiting in [*self.waiting_at(sponsor)]:
            process = self._all[newcomer]
            if isinstance(waiting, Meet) or process.behind:
                process.briefed, process.behind = True, False
                process.waiting = None
                self._world.reply(newcomer, prospectus(), self._world.delays.message)

    def welcome(self, sponsor: WorkerId, newcomer: WorkerId, charter: bytes) -> None:
        """Send the charter to a newcomer that was admitted."""
        guest = self._guests.get(sponsor, {}).get(newcomer)
        if guest is not None:
            guest.admitted = True
        self._world.after(self._world.delays.message, self._welcomed, newcomer, charter)

    def _welcomed(self, newcomer: WorkerId, charter: bytes) -> None:
        process = self._all.get(newcomer)
        if process is not None and isinstance(process.waiting, Knock) and not process.alone:
            process.sponsor = process.waiting = None
            del self._all[newcomer]
            self._world.reply(newcomer, charter)

    # The newcomer's side.

    def wait(self, newcomer: WorkerId, process: Process) -> None:
        """Let the newcomer wait in its request. Reply `PeersLost` instead if its sponsor is dead or
        has let it go. Without a sponsor yet it waits."""
        sponsor = process.sponsor
        if sponsor is not None and sponsor not in self._world.processes:
            process.alone = True
        if process.alone:
            process.waiting = None
            self._world.reply(newcomer, PeersLost("no sponsor"))

    def turn_away(self, newcomer: WorkerId) -> None:
        """Give the newcomer up: it is not admitted, or will never learn that it was."""
        process = self._all.get(newcomer)
        if process is None or process.alone:
            return
        process.alone = True
        for guests in self._guests.values():
            if newcomer in guests:
                failure = guests[newcomer].failure
                guests[newcomer].failure = failure or "it could not be connected to all workers"
        if isinstance(process.waiting, Knock | Meet):
            process.waiting = None
            self._world.reply(newcomer, PeersLost("turned away"))
