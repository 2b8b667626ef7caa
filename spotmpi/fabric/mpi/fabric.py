"""The fabric over MPI with ULFM.

There are two paths, a communicator each. ``data`` carries collectives. Who meets a failure there
revokes it, and the build replaces it by ``Shrink``. ``control`` carries tokens between two live
workers, which works with dead members as long as nobody revokes it. Only a recovery that fails
half-way revokes it (see `recovery`), and then the build replaces it as well. Messages have
communicators of their own (`mailbox`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spotmpi.errors import PeersLost
from spotmpi.fabric import (
    AddUp,
    Arena,
    Between,
    Cancel,
    Depart,
    DoubleBuffer,
    Fabric,
    Fetch,
    Knock,
    Meet,
    Message,
    Part,
    Poll,
    Post,
    Proceed,
    Publish,
    Rebuild,
    Receive,
    Request,
    Revoke,
    Shape,
    Share,
    Signal,
    Signals,
    Start,
    Wait,
    Welcome,
    Work,
)
from spotmpi.fabric.mpi.build import Build
from spotmpi.fabric.mpi.calls import MPI, PAUSE, duplicate
from spotmpi.fabric.mpi.guests import Arrival, Guests
from spotmpi.fabric.mpi.half_made import guard
from spotmpi.fabric.mpi.models import MpiModels
from spotmpi.fabric.mpi.paths import Paths
from spotmpi.fabric.mpi.signals import MpiSignals
from spotmpi.fabric.planes.devices import Devices
from spotmpi.fabric.planes.plane import Plane, Ways
from spotmpi.fabric.retired import Retired
from spotmpi.launcher_channel import Name
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import RevokeControl, Send

PLANE: Callable[[Ways], Plane] = Devices
"""The data plane of this process."""


class MpiFabric(Fabric):
    """This process as a worker of the MPI job that it was started in. Construction is collective.

    ``stand_in``: the program to spawn for a newcomer. ``newcomer``: this process's id if it is one;
    then only its sponsor takes part. ``follow`` is called with all workers that MPI knows here:
    MPI must hear of their deaths (`deaths`). ``bury`` tells MPI of a death as soon as it is seen.
    """

    def __init__(
        self,
        stand_in: tuple[str, ...] = (),
        newcomer: WorkerId | None = None,
        follow: Callable[[Iterable[WorkerId]], None] | None = None,
        bury: Callable[[Name], None] | None = None,
    ) -> None:
        world = MPI.COMM_WORLD
        self.me = world.Get_rank() if newcomer is None else newcomer
        follow = follow or (lambda workers: None)
        paths = self._paths = Paths(self.me, PLANE, follow, bury or (lambda name: None))
        self._plane = paths.data.plane
        self._models = MpiModels(self._plane.neighbours, lambda: paths.data.path, paths.others)
        self._signals = MpiSignals(lambda: paths.control.path, paths.others)
        retired: Retired[MPI.Comm] = Retired(self.clock, MPI.Comm.Free)
        self._guests = Guests(stand_in, follow, retired)
        self._build = Build(paths, self._guests, retired)
        guard()
        MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)
        if newcomer is None:
            world.Set_errhandler(MPI.ERRORS_RETURN)
            paths.enter(paths.furnish(duplicate(world)))
        self.membership = Membership(0, tuple(paths.workers))
        if newcomer is not None:
            self._arrival = Arrival(paths, retired)  # nobody else meets and knocks

    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return an arena of the data plane."""
        return self._plane.arena(layout, name, state)

    def release(self, arena: Arena) -> None:
        """Have the plane forget this arena."""
        self._plane.release(arena)

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return the answer of the data plane."""
        return self._plane.between(workers, parts)

    def clock(self) -> float:
        """Return monotonic seconds of this host, the same for all its processes."""
        return time.monotonic()

    def perform(self, request: Request) -> Any:
        """Perform ``request``, blocking. Raises `PeersLost` if MPI reports dead peers."""
        match request:
            case Start(part):
                return self._plane.start(part)
            case Wait(handles):
                self._plane.wait(handles)
            case Proceed():
                self._plane.proceed()
            case Cancel(handles):
                self._plane.cancel(handles)
            case AddUp():
                return self._plane.neighbours.add_up(request)
            case Signal(mark):
                self._signals.tell(mark)
            case Signals():
                self._paths.control.listen()  # the next poll reports the losses that this finds
                return self._signals.heard()
            case Post() | Receive():
                return self._mail(request)
            case Publish(model):
                self._models.publish(model)
            case Fetch():
                return self._models.fetch(request)
            case Work(work):
                return work()
            case _:
                return self._change(request)
        return None

    def _change(self, request: Request) -> Any:
        """Perform a request that serves a change of the membership."""
        match request:
            case Share(source, buffers):
                self._paths.data.share(source, buffers)
            case Revoke():
                self._paths.data.revoke()
            case Send(to, token):
                self._paths.control.send(to, token)
            case Poll():
                return self._paths.control.poll()
            case RevokeControl():
                self._paths.control.revoke()
            case Rebuild(members, change):
                self._signals.take()  # else marks would stay for ever on an old path
                with self._models.resting(), self._paths.mailbox.resting():
                    return self._build.rebuild(members, change)
            case Depart():
                self._build.depart()
            case Welcome(newcomer, briefing):
                self._guests.welcome(newcomer, briefing)
            case Meet():
                return self._arrival.meet()
            case Knock():
                return self._arrival.knock()
        return None

    def _mail(self, request: Post | Receive) -> Message | None:
        """Perform a request that is about messages."""
        mailbox, control = self._paths.mailbox, self._paths.control
        if isinstance(request, Post):
            mailbox.post(request.to, request.key, request.content, request.lent)
            control.ring([request.to])
            return None
        # Where workers outnumber cores, a call of MPI lets all other processes go first. So who is
        # woken looks for the message only, and for losses if it was not woken, or not just now.
        rang, next_check = request.waits, time.monotonic() + PAUSE
        while True:
            message = mailbox.take(request.senders, request.key)
            if message is not None:
                return message
            if not rang or time.monotonic() > next_check:
                if self._paths.broken():
                    raise PeersLost("a peer was lost while a message was waited for")
                next_check = time.monotonic() + PAUSE
            if not request.waits:
                return None
            rang = control.doorbell.wait(PAUSE)

    def sponsor(self, newcomer: WorkerId | None) -> str | None:
        """Have a thread spawn the newcomer."""
        return self._guests.sponsor(newcomer)

    def brief(self, briefing: Callable[[], bytes]) -> None:
        """Send the briefing to newcomers that wait for it. Called in rounds of steps."""
        self._guests.brief(briefing)

    def move_on(self) -> None:
        """Forget what was published, added up, signalled and posted, and have newcomers briefed
        again."""
        self._paths.mailbox.move_on()
        self._models.move_on()
        self._plane.neighbours.move_on()
        self._signals.move_on()
        self._guests.move_on()

    def guest(self) -> WorkerId | None:
        """Return the newcomer that has knocked, or None."""
        return self._guests.knocking()
