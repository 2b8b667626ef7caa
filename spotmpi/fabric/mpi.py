"""The fabric over MPI with ULFM.

There are two communicators. ``data`` carries collectives. A worker that meets a failure revokes it,
and the build replaces it by ``Shrink``. ``control`` carries tokens between two live workers, which
works with dead members as long as nobody revokes it. Only a recovery that fails half-way revokes it
(see `recovery`), and then the build replaces it as well.

A newcomer is started long before MPI knows it. When it is ready, a thread of its sponsor spawns a
stand-in that does nothing, and the launcher gives the newcomer what mpirun tells the stand-in. The
sponsor and the newcomer have a *bridge*, their own communicator, until the newcomer is a member.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from spotmpi.arrays.backend import HOST, backend_of
from spotmpi.errors import PeersLost
from spotmpi.fabric import (
    AddUp,
    Arena,
    Between,
    Buffer,
    Cancel,
    Depart,
    Fabric,
    Fetch,
    Knock,
    Meet,
    Part,
    Poll,
    Proceed,
    Publish,
    Rebuild,
    Reduce,
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
from spotmpi.fabric.doorbell import Doorbell
from spotmpi.fabric.half_made import guard
from spotmpi.fabric.mpi_calls import (
    EVIDENCE,
    MPI,
    PAUSE,
    Sent,
    collective,
    done,
    duplicate,
    is_broken,
    is_failure,
    no_loss,
    peers_lost,
    ranks_of,
    sum_in_place,
    take,
    threads,
)
from spotmpi.fabric.mpi_departure import Departure
from spotmpi.fabric.mpi_guests import (
    BRIDGE,
    CHARTER,
    COME,
    PROSPECTUS,
    READY,
    Guest,
    cross,
    spawn,
)
from spotmpi.fabric.mpi_line import MpiLine
from spotmpi.fabric.mpi_models import MpiModels
from spotmpi.fabric.mpi_signals import MpiSignals
from spotmpi.fabric.planes.devices import Devices
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import Plane, Ways
from spotmpi.fabric.retired import Retired
from spotmpi.fabric.token_bytes import Row, decode, encode, pack_row, unpack_rows
from spotmpi.launcher_channel import Name
from spotmpi.protocol.joining import Stage, after
from spotmpi.protocol.membership import Membership, Worker, WorkerId
from spotmpi.protocol.recovery import (
    Built,
    ControlRevoked,
    Event,
    Lost,
    PlannedChange,
    Received,
    RevokeControl,
    Send,
    Token,
)

_LOG = logging.getLogger(__name__)

_TAG = 1
_FEW_THREADS = "MPI was not started with MPI_THREAD_MULTIPLE, without which no worker can join"

PLANE: Callable[[Ways], Plane] = Devices
"""The data plane of this process."""


def abort() -> None:
    """End every process of the MPI job, this one included, with code 1. Does not return."""
    MPI.COMM_WORLD.Abort(1)


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
        self._stand_in = stand_in
        self._follow = follow or (lambda workers: None)
        self._bury = bury or (lambda name: None)
        self._names: dict[WorkerId, Name] = {}
        """MPI's name of each member's process."""
        self._guests: dict[WorkerId, Guest] = {}
        self._retired: Retired[MPI.Comm] = Retired(self.clock, MPI.Comm.Free)
        self._doorbell = Doorbell()
        self._known_dead: set[WorkerId] = set()
        self._revocation_told = False
        self._events: deque[Event] = deque()
        self._sending: list[Sent] = []
        self._departure: Departure | None = None
        """Departure from the last build, if there was one."""
        self._deaf_until: float | None = None
        """Time after which errors of the control path that no loss explains are raised."""
        self._status = MPI.Status()
        self._data_ids: list[WorkerId] = []
        line = MpiLine(lambda: (self._data, self._data_ids))
        self._plane = PLANE(Ways(self._sum, self._broken, line, threads()))
        near = self._plane.neighbours
        self._models = MpiModels(near, lambda: (self._data, self._data_ids), self._others)
        self._signals = MpiSignals(lambda: (self._control, self._control_ids), self._others)
        self._briefed = 0
        """Prospectuses that this newcomer has received."""
        guard()
        MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)
        if newcomer is not None:
            self.me = newcomer
            self.membership = Membership(0, (Worker(newcomer, socket.gethostname()),))
            self._bridge = cross()
            return
        world = MPI.COMM_WORLD
        world.Set_errhandler(MPI.ERRORS_RETURN)
        self.me = world.Get_rank()
        data, control = duplicate(world), duplicate(world)
        self._enter(data, control, *self._introduce(data))
        self.membership = Membership(0, tuple(self._workers))

    def _enter(
        self, data: MPI.Intracomm, control: MPI.Intracomm, rows: list[Row], together: bool
    ) -> None:
        """Use these communicators from now on. ``together``: workers of one host share memory."""
        self._data, self._control = data, control
        self._workers = [Worker(row.worker, row.host) for row in rows]
        self._data_ids = [row.worker for row in rows]
        self._control_ids = list(self._data_ids)
        self._control_rank = {worker: rank for rank, worker in enumerate(self._control_ids)}
        here = next(row.host for row in rows if row.worker == self.me)
        self._bells = {row.worker: row.bell for row in rows if row.host == here}
        self._names = {row.worker: row.name for row in rows}
        self._follow(self._data_ids)
        self._revocation_told = False
        self._events = deque(event for event in self._events if isinstance(event, Lost))
        self._together = together
        self._plane.bind(self._data_ids, together)

    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Return an arena of the data plane."""
        return self._plane.arena(layout, name, state)

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return the answer of the data plane."""
        return self._plane.between(workers, parts)

    def clock(self) -> float:
        """Return monotonic seconds of this host, the same for all its processes."""
        return time.monotonic()

    def perform(self, request: Request) -> Any:
        """Perform ``request``, blocking. Raises `PeersLost` if MPI reports dead peers."""
        match request:
            case Start() | Proceed() | Wait() | Cancel() | Reduce() | AddUp():
                return self._plane.perform(request)
            case Share(source, buffers):
                root = self._data_ids.index(source)
                for buffer in buffers:
                    if not self._plane.is_everywhere(buffer):
                        self._share(buffer, root)
            case Revoke():
                self._data.Revoke()
                self._plane.interrupt()
            case Send(to, token):
                self._send(to, token)
            case Poll():
                return self._poll()
            case RevokeControl():
                self._control.Revoke()
                self._revocation_told = True
                self._ring(self._control_ids)
            case Rebuild(members, change):
                self._signals.take()  # else marks would stay for ever on an old path
                with self._models.resting():
                    return self._rebuild(members, change)
            case Depart():
                self._depart()
            case Welcome(newcomer, charter):
                guest = self._guests[newcomer]
                guest.stage = after(guest.stage, "admitted")
                guest.send(charter, CHARTER)
            case Meet():
                return self._meet()
            case Knock():
                return self._knock()
            case Work(work):
                return work()
            case Publish(model):
                self._models.publish(model)
            case Fetch(worker):
                return self._models.fetch(worker)
            case Signal(mark):
                self._signals.tell(mark)
            case Signals():
                self._listen()  # the next poll reports the losses that this finds
                return self._signals.heard()
        return None

    def _others(self) -> Collection[WorkerId]:
        """Return the other members that are not known to be dead."""
        return set(self._data_ids) - self._known_dead - {self.me}

    def _sum(self, part: Part) -> None:
        brought, result, weight = part.contribution, part.result, part.weight
        backend = backend_of(result)
        if backend is not HOST:  # this MPI may not know the device's memory
            brought = result = backend.to_host(brought)
        if not weight:
            HOST.fill(result, 0)
        elif weight != 1.0:
            HOST.kernels.scaled_sum(result, [brought], [weight])
        elif brought is not result:
            HOST.from_host(result, brought)  # MPI would copy too, and always works in place
        sum_in_place(self._data, result)
        if backend is not HOST:
            backend.from_host(part.result, result)

    def _broken(self) -> bool:
        MPI.COMM_SELF.Iprobe()  # MPI learns of losses only while it is called
        return is_broken(self._data)

    def _share(self, buffer: Buffer, root: int) -> None:
        backend = backend_of(buffer)
        here = buffer if backend is HOST else backend.to_host(buffer)
        collective(self._data, self._data.Bcast, here, root)
        if backend is not HOST:
            backend.from_host(buffer, here)

    # The control path.

    def _send(self, to: WorkerId, token: Token) -> None:
        data = encode(token)
        try:
            sent = self._control.Isend([data, MPI.BYTE], self._control_rank[to], _TAG)
        except MPI.Exception as error:
            peers_lost(error, self._control)  # a poll will report the loss
            return
        self._sending = [one for one in self._sending if not done(one)]
        self._sending.append((sent, data, self._control))
        self._ring([to])

    def _ring(self, workers: Iterable[WorkerId]) -> None:
        for worker in self._bells.keys() & workers:
            self._doorbell.ring(self._bells[worker])

    def _poll(self) -> Event:
        while True:
            token = self._token()
            if token is not None:
                return Received(token)
            self._listen()
            if self._events:
                return self._events.popleft()
            self._doorbell.wait(PAUSE)

    def _token(self) -> Token | None:
        """Return a token that has come, or None, also if a failure keeps MPI from looking."""
        if self._revocation_told:
            return None
        try:
            # The first probe makes MPI fetch what has come, the second one finds it.
            message = self._control.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
            message = message or self._control.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
            if message is None:
                self._deaf_until = None
                return None
            data = bytearray(self._status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
        except MPI.Exception as error:
            # `_listen` learns of a loss, or of the end of this path. Other errors must pass soon.
            now = self.clock()
            self._deaf_until = self._deaf_until or now + EVIDENCE
            if not is_failure(error) and now > self._deaf_until:
                raise no_loss(error) from error
            return None
        self._deaf_until = None
        return decode(data)

    def _listen(self) -> None:
        """Look for losses and a revocation of the control path."""
        lost = self._newly_dead()
        if lost:
            self._events.append(Lost(lost))
        if not self._revocation_told and self._control.Is_revoked():
            self._revocation_told = True
            self._events.append(ControlRevoked())

    def _newly_dead(self) -> frozenset[WorkerId]:
        # A newcomer that is being connected may be a neighbour already, and is no member.
        dead = set(self._plane.neighbours.dead()) & self._names.keys() - self._known_dead
        for worker in dead:
            self._bury(self._names[worker])
        failed = self._control.Get_failed()
        try:
            if failed.Get_size():
                # Without the acknowledgement, a probe for any source fails for ever.
                self._control.Ack_failed()
                dead.update(map(self._control_ids.__getitem__, ranks_of(failed, self._control)))
        finally:
            failed.Free()
        fresh = dead - self._known_dead
        self._known_dead |= fresh
        if fresh:
            _LOG.debug("these are dead: %s", sorted(fresh))
        return frozenset(fresh)

    # The build.

    def _rebuild(self, members: frozenset[WorkerId] | None, change: PlannedChange) -> Built:
        self._retired.free()
        shrunk, alive = self._shrink(self._data, self._data_ids)
        if self._agree(shrunk is not None and members == frozenset(alive)):
            assert shrunk is not None
            self._departure = Departure(self.me, shrunk, alive)
            if not change:
                self._retired.add(self._data)
                self._data, self._data_ids = shrunk, alive
                self._plane.bind(alive, self._together)
                return Built(True, frozenset(alive))
            old = self._data, self._control
            if self._change(shrunk, alive, change):
                self._departure.tell(change.leaving)
                self._retired.add(*old, shrunk)
                newcomer = None if change.newcomer is None else self._workers[-1]
                return Built(True, frozenset(alive), newcomer)
        if change.newcomer is not None and change.sponsor == self.me:
            self._guests[change.newcomer].let_go("it could not be connected to all workers")
        self._retired.add(shrunk)
        while True:
            control, alive = self._shrink(self._control, self._control_ids)
            if self._agree(control is not None):
                break
            self._retired.add(control)
        assert control is not None
        self._retired.add(self._control)
        self._control, self._control_ids = control, alive
        self._control_rank = {worker: rank for rank, worker in enumerate(alive)}
        self._revocation_told = False
        self._events = deque(event for event in self._events if isinstance(event, Lost))
        return Built(False, frozenset(alive))

    def _change(self, shrunk: MPI.Intracomm, alive: list[WorkerId], change: PlannedChange) -> bool:
        """Go on from ``shrunk`` without the workers that leave, or with the newcomer. True if done.

        All members end each stage together. A revocation that arrives while a communicator is made
        crashes Open MPI 5.0.11, so none is revoked before all have it.
        """
        if change.leaving:
            return self._go_on_without(shrunk, self.me in change.leaving)
        assert change.newcomer is not None
        assert change.sponsor is not None
        leader, bridge = alive.index(change.sponsor), self._bridge_to(change)
        between = self._stage(shrunk, lambda: shrunk.Create_intercomm(leader, bridge, BRIDGE, _TAG))
        self._retired.add(between)
        data = between and self._stage(between, lambda: between.Merge(high=False))
        ways = data and self._stage(data, lambda: self._furnish(data))
        if ways is None:
            return False
        self._enter(data, *ways)
        return True

    def _depart(self) -> None:
        if self._departure is None:
            return
        others = self._control_ids
        self._departure.tell(others)
        self._ring(others)
        while True:
            self._listen()  # the next poll reports the losses that this finds
            if not self._departure.within(self._known_dead):
                return
            self._doorbell.wait(PAUSE)

    def _go_on_without(self, shrunk: MPI.Intracomm, leaves: bool) -> bool:
        """Remove the workers that leave from all communicators of the others. True if done. MPI may
        never learn that they are gone, and would wait for them."""
        place = MPI.UNDEFINED if leaves else 0
        part = self._stage(shrunk, lambda: shrunk.Split(place, shrunk.Get_rank()))
        if part is None:
            return False
        ways = self._stage(shrunk if leaves else part, lambda: leaves or self._furnish(part))
        if ways is not None and not leaves:
            self._enter(part, *ways)
        return ways is not None

    def _stage(self, comm: MPI.Comm, make: Callable[[], Any]) -> Any:
        """Return what all have made together from ``comm``, or None if one of them could not."""
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        made = None
        try:
            made = collective(comm, make)
        except PeersLost:
            comm.Revoke()  # the others may wait for this worker in it
        return made if self._agree(made is not None) else None

    def _furnish(self, data: Any) -> tuple[MPI.Intracomm, list[Row], bool]:
        """Return a control path beside ``data``, and what `_introduce` returns. Collective."""
        return duplicate(data), *self._introduce(data)

    def _introduce(self, comm: MPI.Intracomm) -> tuple[list[Row], bool]:
        """Return the members' rows by rank, and True if all can share memory. Collective."""
        bell, card = self._doorbell.address, self._plane.neighbours.card()
        mine = pack_row(Row(self.me, socket.gethostname(), bell, card, _own_name()))
        everybody = bytearray(len(mine) * comm.Get_size())
        comm.Allgather([mine, MPI.BYTE], [everybody, MPI.BYTE])
        rows = unpack_rows(everybody)
        together = bytearray([self._plane.neighbours.reach({row.worker: row.card for row in rows})])
        comm.Allreduce(MPI.IN_PLACE, [together, MPI.UNSIGNED_CHAR], MPI.MIN)
        return rows, bool(together[0])

    def _bridge_to(self, change: PlannedChange) -> MPI.Intracomm:
        """As sponsor, tell the newcomer to come; return its bridge. Else return `COMM_SELF`."""
        if change.newcomer is None or change.sponsor != self.me:
            return MPI.COMM_SELF
        guest = self._guests[change.newcomer]
        assert guest.bridge is not None
        guest.send(b"", COME)
        return guest.bridge

    # A sponsor and its newcomers.

    def sponsor(self, newcomer: WorkerId | None) -> str | None:
        """Have a thread spawn the newcomer: that blocks until it is there. See `Fabric.sponsor`."""
        for worker in self._guests.keys() - {newcomer}:
            (guest := self._guests.pop(worker)).let_go("it is to be given up")
            self._sending += guest.sent  # such as its charter, which may be under way
            self._retired.add(guest.bridge)
        if newcomer is None:
            return None
        if newcomer not in self._guests:
            if not threads():
                return _FEW_THREADS
            _LOG.info("newcomer %d is spawned", newcomer)
            guest = self._guests[newcomer] = Guest()
            program = [*self._stand_in, str(newcomer)]
            known = partial(self._follow, [newcomer])
            thread = threading.Thread(target=spawn, args=(guest, program, known), daemon=True)
            thread.start()
        return self._guests[newcomer].failure

    def brief(self, prospectus: Callable[[], bytes]) -> None:
        """Send the prospectus to newcomers that wait for it. Called in rounds of steps."""
        for guest in self._guests.values():
            spawned = guest.stage is Stage.SPAWNED and guest.failure is None
            if spawned and guest.bridge is not None:
                guest.stage = after(guest.stage, "ready")
                guest.briefed += 1
                guest.send(prospectus(), PROSPECTUS)

    def move_on(self) -> None:
        """Forget what was published, added up and signalled, and have newcomers briefed again."""
        self._models.move_on()
        self._plane.neighbours.move_on()
        self._signals.move_on()
        for guest in self._guests.values():
            if guest.stage in (Stage.BRIEFED, Stage.KNOCKING):
                guest.stage = Stage.SPAWNED

    def guest(self) -> WorkerId | None:
        """Return the newcomer that has knocked, or None."""
        for worker, guest in self._guests.items():
            if guest.stage is Stage.BRIEFED and guest.failure is None:
                self._listen_to(guest)
            if guest.stage is Stage.KNOCKING and guest.failure is None:
                return worker
        return None

    @staticmethod
    def _listen_to(guest: Guest) -> None:
        assert guest.bridge is not None
        try:
            said = take(guest.bridge, BRIDGE, READY)
            if said is not None and int(said) == guest.briefed:
                guest.stage = after(guest.stage, "knocks")
        except MPI.Exception as error:
            guest.failure = error.Get_error_string()

    # A newcomer.

    def _await(self, *tags: int) -> tuple[int, bytes]:
        """Return the first message that comes with one of ``tags``, after its tag. Blocks."""
        try:
            while True:
                for tag in tags:
                    if (data := take(self._bridge, 0, tag)) is not None:
                        return tag, data
                time.sleep(PAUSE)
        except MPI.Exception as error:
            raise peers_lost(error, self._bridge) from error

    def _meet(self) -> bytes:
        self._briefed += 1
        return self._await(PROSPECTUS)[1]

    def _knock(self) -> bytes:
        try:
            self._bridge.Send([str(self._briefed).encode(), MPI.BYTE], 0, READY)
        except MPI.Exception as error:
            raise peers_lost(error, self._bridge) from error
        tag, data = self._await(COME, PROSPECTUS)
        if tag == PROSPECTUS:
            self._briefed += 1
            return data
        alone, bridge = MPI.COMM_SELF, self._bridge
        between = collective(bridge, lambda: alone.Create_intercomm(0, bridge, 0, _TAG))
        between.Set_errhandler(MPI.ERRORS_RETURN)
        data = collective(between, lambda: between.Merge(high=True))
        data.Set_errhandler(MPI.ERRORS_RETURN)
        self._enter(data, *collective(data, lambda: self._furnish(data)))
        _, charter = self._await(CHARTER)
        self._retired.add(between, bridge)
        return charter

    def _shrink(
        self, comm: MPI.Intracomm, ids: list[WorkerId]
    ) -> tuple[MPI.Intracomm | None, list[WorkerId]]:
        try:
            shrunk = MPI.Intracomm(comm.Shrink())
        except MPI.Exception as error:
            peers_lost(error, comm)
            return None, []
        shrunk.Set_errhandler(MPI.ERRORS_RETURN)
        group = shrunk.Get_group()
        try:
            return shrunk, [ids[rank] for rank in ranks_of(group, comm)]
        finally:
            group.Free()

    def _agree(self, flag: bool) -> bool:
        """Return True if ``flag`` is True on all alive. All get one answer, even if one dies."""
        while True:
            self._control.Ack_failed()
            try:
                return bool(self._control.Agree(int(flag)))
            except MPI.Exception as error:
                # Not everybody had acknowledged a loss. All alive get this same error.
                peers_lost(error, self._control)


def _own_name() -> Name:
    """Return the name by which MPI knows this process."""
    space, rank = os.environ.get("PMIX_NAMESPACE", ""), os.environ.get("PMIX_RANK", "0")
    return Name(space.encode(), int(rank))
