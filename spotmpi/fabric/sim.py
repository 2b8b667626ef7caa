"""A seeded fabric in memory: many workers in one thread, any of which may die at any event.

It behaves as badly as MPI with ULFM may, not as well as Open MPI usually does:

- everything takes a random time; only messages between the same two workers keep their order;
- each worker learns of each loss separately, in any order, sooner or later;
- if a worker dies in a collective that all have entered, it completes on some members and fails
  on others; a collective that a dead member never entered fails on all;
- parts of one round are summed side by side, and complete in any order;
- a part that failed keeps writing to its result until it is given up;
- a ``Share`` may complete on its source long before the others enter it;
- the last messages of a dying worker may or may not arrive; its revocations always do;
- a worker that must ask another one for the answer of a build waits for ever if that one has ended
  without dying (see `simulated.builds`);
- work in the background is done at one moment, if its worker lives until then;
- it is drawn whether two workers fetch models as neighbours or between hosts.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from spotmpi.errors import PeersLost
from spotmpi.fabric import (
    AddUp,
    Arena,
    Background,
    Between,
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
    Steps,
    Wait,
    Welcome,
    Work,
)
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import private_arena
from spotmpi.fabric.simulated.background import Errand
from spotmpi.fabric.simulated.builds import Builds
from spotmpi.fabric.simulated.data import LATER, USUAL, Data, DataPath, Delays, Misuse, Process
from spotmpi.fabric.simulated.models import Models
from spotmpi.fabric.simulated.newcomers import Newcomers
from spotmpi.fabric.simulated.transcript import described
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import (
    ControlRevoked,
    Event,
    Lost,
    Received,
    RevokeControl,
    Send,
    TokenKind,
)

Watch = Callable[[WorkerId, str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Kill:
    """A fault: ``worker`` dies at event number ``at`` of the simulation."""

    worker: WorkerId
    at: int


@dataclass(frozen=True)
class Arrival:
    """A newcomer: ``worker`` comes at event number ``at`` of the simulation."""

    worker: WorkerId
    at: int


@dataclass(frozen=True)
class LeaveNotice:
    """A notice: ``worker`` is told to leave at event number ``at`` of the simulation."""

    worker: WorkerId
    at: int


class SimulatedFabric(Fabric):
    """One worker's place in a simulation, which performs the worker's steps as a whole."""

    def __init__(self, me: WorkerId, simulation: Simulation) -> None:
        self.me = me
        self.membership = simulation.membership
        self.simulation = simulation

    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Return memory that the simulation makes."""
        return self.simulation.arena(layout, name, state)

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return how the simulation summed ``parts``."""
        return self.simulation.between(self.me, workers, parts)

    def sponsor(self, newcomer: WorkerId | None) -> str | None:
        """Sponsor a newcomer of the simulation."""
        return self.simulation.newcomers.sponsor(self.me, newcomer)

    def guest(self) -> WorkerId | None:
        """Return the newcomer that waits to be admitted, or None."""
        return self.simulation.newcomers.guest(self.me)

    def brief(self, prospectus: Callable[[], bytes]) -> None:
        """Send the prospectus to newcomers that wait for it."""
        self.simulation.newcomers.brief(self.me, prospectus)

    def move_on(self) -> None:
        """Begin another training."""
        self.simulation.newcomers.move_on(self.me)
        self.simulation.models.move_on(self.me)

    def background(self, work: Callable[[], T], name: str) -> Background[T]:
        """Have the simulation do ``work`` some time later."""
        return self.simulation.background(self.me, work)

    def clock(self) -> float:
        """Return simulated seconds."""
        return self.simulation.now

    def perform(self, request: Request) -> Any:
        """Raise NotImplementedError: a single request would have to wait."""
        raise NotImplementedError("a simulation performs whole generators: see Simulation.start")


class Hang(AssertionError):
    """Workers remain that wait for something that will never come."""


class Simulation:
    """Runs one generator of requests per worker until all have returned or died."""

    def __init__(
        self,
        membership: Membership,
        seed: int,
        kills: Iterable[Kill] = (),
        delays: Delays = USUAL,
        arrivals: Iterable[Arrival] = (),
        notices: Iterable[LeaveNotice] = (),
        in_place: bool = False,
        weighs: bool = False,
        hosts: int = 3,
        stop: int | None = None,
    ) -> None:
        """``in_place``: the data plane sums in place; else its results are apart. ``weighs``: it
        multiplies contributions to rounds of named arenas with their weights. ``hosts``: number of
        hosts of the workers. ``stop``: event number at which all are told to stop."""
        self._in_place = in_place
        self._weighs = weighs
        self.membership = membership
        self.random = random.Random(seed)
        self.delays = delays
        self.now = 0.0
        self.events = 0
        self.processes: dict[WorkerId, Process] = {}
        self.returned: dict[WorkerId, Any] = {}
        self.deaths: dict[WorkerId, float] = {}
        """Workers that died, and when, in simulated seconds."""
        self.watch: list[Watch] = []
        """Called after every event with the worker it happened to and what happened."""
        self.transcript: list[str] | None = None
        self.newcomer: Callable[[WorkerId], Steps[Any]]
        """Makes the steps of a newcomer. Must be set if there are arrivals."""
        self._stop = stop
        self._kills = sorted(kills, key=lambda kill: kill.at)
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival.at)
        self._notices = {notice.worker: notice.at for notice in notices}
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Actions that come next, before time goes on."""
        self.newcomers = Newcomers(self)
        """The workers that have no charter yet."""
        self.models = Models(self, lambda worker: worker % hosts)
        self.arrived: Callable[[WorkerId], None] = self._arrive
        """Called where the schedule has a newcomer."""
        self.ended: Callable[[WorkerId, bool], None] = lambda worker, died: None
        """Called when a worker ends, with True if it died."""
        self._ticket = 0
        self._arrival: dict[tuple[WorkerId, WorkerId], float] = {}
        self._in_flight: dict[WorkerId, dict[int, WorkerId]] = {}
        self._control_revocations = 0
        """Number of control paths that have been revoked. Control paths are numbered from 0."""
        self.builds = Builds(self, membership.ids)
        self._data_path = DataPath(self, lambda worker: worker % hosts)

    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Return memory for rounds."""
        made = private_arena(layout, self._in_place, state)
        made.weighs = self._weighs and bool(name)
        made.name = name
        return made

    def between(
        self, worker: WorkerId, workers: Sequence[WorkerId], parts: Sequence[Part]
    ) -> Between | None:
        """Return how a worker's parts were summed over ``workers``; None if all are on one host."""
        return self._data_path.between(worker, workers, parts)

    def clock(self) -> float:
        """Return simulated seconds."""
        return self.now

    def background(self, worker: WorkerId, work: Callable[[], T]) -> Background[T]:
        """Have ``work`` done some time later, if ``worker`` is there then."""
        errand = Errand(work)
        self.after(self.delays.write, self._do, worker, errand)
        return errand

    def start(self, worker: WorkerId, steps: Steps[Any]) -> None:
        """Let ``worker``, a member of the first membership, begin."""
        if not self.processes:
            self._first = Data(self.membership.ids)
        self.processes[worker] = Process(steps, self._first)
        self.builds.begin()
        self.after(self.delays.compute, self.advance, worker, None)

    def noticed(self, worker: WorkerId) -> bool:
        """Return True if ``worker`` is told to leave."""
        return self._notices.get(worker, self.events + 1) <= self.events

    @property
    def stopping(self) -> bool:
        """True if all are told to stop."""
        return self._stop is not None and self._stop <= self.events

    def kill(self, worker: WorkerId) -> None:
        """Let ``worker`` die now, if it lives. Its own steps must not call this."""
        self._kill(worker)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` after exactly ``seconds``."""
        self._at(self.now + seconds, action)

    def doom(self, worker: WorkerId) -> None:
        """Let ``worker`` die as soon as the present event is over."""
        self._kills.insert(0, Kill(worker, self.events))

    def run(self, limit: int = 10_000_000) -> None:
        """Run until every worker has returned or died. Raises `Hang` if that never happens."""
        soon, queue = self._soon, self._queue
        while soon or queue:
            if soon:
                action, arguments = soon.popleft()
            else:
                self.now, _, action, arguments = heapq.heappop(queue)
            self.events += 1
            action(*arguments)
            while self._kills and self._kills[0].at <= self.events:
                self._kill(self._kills.pop(0).worker)
            while self._arrivals and self._arrivals[0].at <= self.events:
                self.arrived(self._arrivals.pop(0).worker)
            if self.events > limit:
                raise Hang(f"no end after {limit} events; waiting: {self._waiting()}")
        if self.processes:
            raise Hang(f"nothing can happen any more; waiting: {self._waiting()}")

    def close(self) -> None:
        """Close the steps of the workers that remain after a run that failed."""
        for process in self.processes.values():
            process.steps.close()

    def _waiting(self) -> str:
        rows = (f"{w} on {p.waiting}" for w, p in list(self.processes.items())[:20])
        return "; ".join(rows)

    # Newcomers.

    def _arrive(self, worker: WorkerId) -> None:
        """Let a newcomer come without a launcher: the first member alive is its sponsor at once."""
        members = [w for w in self.builds.ring if w in self.processes]
        if members:
            self._tell(worker, f"comes, to {members[0]}")
            self.come(worker, members[0])

    def come(self, worker: WorkerId, sponsor: WorkerId | None = None) -> None:
        """Let a newcomer begin. Without a sponsor it waits for one."""
        process = Process(self.newcomer(worker), None, sponsor=sponsor, waiting=None)
        self.processes[worker] = process
        self.newcomers.come(worker, process)
        self.after(self.delays.compute, self.advance, worker, None)

    # Scheduling.

    def after(self, longest: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` within ``longest`` seconds."""
        # Squared, so that most things happen quickly and some much later.
        self._at(self.now + longest * self.random.random() ** 2, action, *arguments)

    def _at(self, moment: float, action: Callable[..., None], *arguments: Any) -> int:
        self._ticket += 1
        heapq.heappush(self._queue, (moment, self._ticket, action, arguments))
        return self._ticket

    def _tell(self, worker: WorkerId, what: str) -> None:
        if self.transcript is not None:
            self.transcript.append(f"{self.events:6d} {self.now:9.4f} worker {worker}: {what}")
        for watch in self.watch:
            watch(worker, what)

    # Workers.

    def _do(self, worker: WorkerId, errand: Errand[Any]) -> None:
        if worker in self.processes:
            errand.do()

    def _work(self, worker: WorkerId, work: Callable[[], Any]) -> None:
        """Do ``work``. It stays done, even if its worker dies before the reply."""
        if worker in self.processes:
            self.reply(worker, work(), self.delays.compute)

    def advance(self, worker: WorkerId, reply: Any) -> None:
        """Let the worker go on with this reply now, if it is there."""
        process = self.processes.get(worker)
        if process is None:
            return
        steps, watched = process.steps, self.transcript is not None or bool(self.watch)
        process.waiting = None
        try:
            while reply is not LATER:
                if isinstance(reply, PeersLost):
                    request = steps.throw(reply)
                else:
                    request = steps.send(reply)
                if watched:
                    self._tell(worker, described(request))
                reply = self._perform(worker, process, request)
        except StopIteration as stop:
            self.returned[worker] = stop.value
            self._remove(worker)
            self._tell(worker, "returns")
            self.ended(worker, False)
            # MPI takes a worker that ended without a word for a dead one. Usually all end
            # together, so that nobody remains who could be told.
            self._at(self.now + self.delays.collective, self._gone, worker)

    def reply(self, worker: WorkerId, reply: Any = None, longest: float = 0.0) -> None:
        """Let the worker go on with this reply within ``longest`` seconds."""
        if longest:
            self.after(longest, self.advance, worker, reply)
        else:
            self._soon.append((self.advance, (worker, reply)))

    def _remove(self, worker: WorkerId) -> Process | None:
        """Remove the worker. Returns its process, if it was there."""
        process = self.processes.pop(worker, None)
        self.newcomers.gone(worker)
        if process is not None:
            self.builds.gone(worker, process)
        return process

    def _kill(self, worker: WorkerId) -> None:
        process = self._remove(worker)
        if process is None:
            return
        process.steps.close()
        self.deaths[worker] = self.now
        self._tell(worker, "dies")
        # Only some of its last messages arrive. Order is kept, so the list is cut once.
        for receiver in set(self._in_flight.get(worker, {}).values()):
            tickets = [t for t, to in self._in_flight[worker].items() if to == receiver]
            for ticket in tickets[self.random.randint(0, len(tickets)) :]:
                del self._in_flight[worker][ticket]
        self.ended(worker, True)
        self._gone(worker)

    def _gone(self, worker: WorkerId) -> None:
        for peer in self.processes:
            self.after(self.delays.notice, self._learn, peer, worker)
        self.after(self.delays.notice, self.builds.attempt)

    def _learn(self, worker: WorkerId, lost: WorkerId) -> None:
        process = self.processes.get(worker)
        if process is None:
            return
        process.dead_known.add(lost)
        self._hear(worker, process, Lost(frozenset({lost})))
        self._data_path.disturb(worker, process)

    # Performing requests.

    def _perform(self, worker: WorkerId, process: Process, request: Request) -> Any:
        """Return the reply if nobody could tell whether the worker dies before it, else `LATER`."""
        if isinstance(request, Start | Proceed | Wait | Cancel | Reduce | Share):
            return self._data_path.perform(worker, process, request)
        if isinstance(request, Poll) and process.inbox:
            reply = process.inbox.popleft()
            if not self._kills or self._kills[0].at > self.events:
                return reply
            self.reply(worker, reply)  # the worker may be the one that dies now
        process.waiting = request
        match request:
            case Revoke():
                self._revoke(worker, process)
                self.reply(worker)
            case RevokeControl():
                self._revoke_control(worker, process)
                self.reply(worker)
            case Send(to, token):
                process.sent += 1
                if token.kind is TokenKind.RECONCILE and not token.lost:
                    self.builds.unasked = True
                self._send(worker, to, Received(token), process.control)
                self.reply(worker)
            case Rebuild():
                if process.under_way:
                    raise Misuse(f"worker {worker} builds with collectives under way")
                self.builds.come(worker, request)
            case Depart():
                return self.builds.depart(worker)
            case Welcome(newcomer, charter):
                self.newcomers.welcome(worker, newcomer, charter)
                self.reply(worker)
            case Knock() | Meet():
                self.newcomers.wait(worker, process)
            case Work(work):
                self.after(self.delays.compute, self._work, worker, work)
            case Publish() | Fetch():
                self.reply(worker, self.models.perform(worker, request), self.delays.message)
            case Signal() | Signals():
                self.reply(worker, self.models.marks.perform(worker, request))
            case AddUp():
                self.models.sums.add_up(worker, request)
        return LATER

    def _send(self, worker: WorkerId, to: WorkerId, event: Event, control: int) -> None:
        earliest = self.now + self.delays.message * self.random.random() ** 2
        moment = max(earliest, self._arrival.get((worker, to), 0.0))
        self._arrival[worker, to] = moment
        ticket = self._ticket + 1
        self._in_flight.setdefault(worker, {})[ticket] = to
        self._at(moment, self._deliver, worker, ticket, to, event, control)

    def _deliver(
        self, sender: WorkerId, ticket: int, to: WorkerId, event: Event, control: int
    ) -> None:
        if self._in_flight[sender].pop(ticket, None) is None:
            return
        process = self.processes.get(to)
        if process is not None and process.control == control:
            self._hear(to, process, event)

    def _hear(self, worker: WorkerId, process: Process, event: Event) -> None:
        if isinstance(process.waiting, Poll) and not process.inbox:
            self.advance(worker, event)
        else:
            process.inbox.append(event)

    def _revoke_control(self, worker: WorkerId, process: Process) -> None:
        process.control_revoked = True
        if self._control_revocations > process.control:
            return
        self._control_revocations = process.control + 1
        for peer in self.processes:
            if peer != worker:
                known = process.control, process.data
                self.after(self.delays.revoke, self._control_revoked, peer, *known)

    def _control_revoked(self, worker: WorkerId, control: int, data: Data | None) -> None:
        process = self.processes.get(worker)
        if process is None or process.control != control or process.control_revoked:
            return
        process.control_revoked = True
        self.builds.late |= (
            process.data is not data
        )  # its sender has died, and it comes after a seal
        self._hear(worker, process, ControlRevoked())

    def _revoke(self, worker: WorkerId, process: Process) -> None:
        process.revoked = True
        assert process.data is not None
        if process.data.revoked:
            return  # the revocation is under way to everybody already
        process.data.revoked = True
        for peer in process.data.members:
            if peer != worker and peer in self.processes:
                self.after(self.delays.revoke, self._revoked, peer, process.data)

    def _revoked(self, worker: WorkerId, data: Data) -> None:
        process = self.processes.get(worker)
        if process is None or process.data is not data or process.revoked:
            return
        process.revoked = True
        self._data_path.disturb(worker, process)
