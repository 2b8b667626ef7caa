"""The data path of a simulation: sums and copies over all members, which fail as badly as they may.

Parts of one round are summed side by side. A part that failed keeps writing to its result until it
is given up. A contribution that its worker changes during the round is found (`Misuse`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spotmpi.arrays.backend import backend_of, fill
from spotmpi.arrays.narrowing import narrowed_sum
from spotmpi.arrays.sums_of_hosts import sum_of_hosts
from spotmpi.arrays.word_view import WORDS_OF
from spotmpi.errors import PeersLost
from spotmpi.fabric import (
    Between,
    Buffer,
    Cancel,
    Handle,
    Part,
    Proceed,
    Reduce,
    Request,
    Share,
    Start,
    Steps,
    Wait,
)
from spotmpi.protocol.host_ring import RING, STRAIGHT, carried
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.recovery import Event
from spotmpi.protocol.trials import Trial

_WAYS, _TURNS = (STRAIGHT, RING), 1
"""Ways that are tried for every array, and the rounds of each way that count."""

RUBBISH = 77
"""What a collective that failed leaves in its result. Nobody may rely on it."""


Place = tuple[str, int]
"""An array of a named arena: the arena's name, and the array's index."""

LATER = object()
"""Stands for a reply that comes later."""


class Misuse(AssertionError):
    """A worker has touched memory that it must not touch, or has left something under way."""


@dataclass(eq=False)
class Collective:
    """One collective of all members, as far as it has come."""

    brought: dict[WorkerId, Buffer] = field(default_factory=dict)
    """Copies of contributions, as a worker that fails early may go on and change its own."""
    calls: dict[WorkerId, Call] = field(default_factory=dict)
    """Calls of all workers that have entered with a part."""
    entered: list[WorkerId] = field(default_factory=list)
    result: list[Buffer] | None = None


@dataclass(eq=False)
class Call:
    """One worker's side of a collective."""

    collective: Collective
    what: Part | Share
    way: str = ""
    """Way of a sum between hosts; empty if it is none."""
    given: Buffer = None
    """Copy of the contribution, which shows whether the worker changes it."""
    entered: bool = False
    done: bool = False
    lost: bool = False
    """True if its result holds rubbish, and more may come."""

    @property
    def targets(self) -> Sequence[Buffer]:
        """Arrays in which results arrive."""
        return self.what.buffers if isinstance(self.what, Share) else [self.what.result]


@dataclass
class Data:
    """One data communicator."""

    members: tuple[WorkerId, ...]
    everybody: frozenset[WorkerId] = field(init=False)
    """The members, without an order."""
    collectives: list[Collective] = field(default_factory=list)
    revoked: bool = False
    begun: dict[tuple[WorkerId, Place | None], int] = field(default_factory=dict)
    """Number of times that each worker has begun to sum each array of a named arena."""
    trials: dict[Place, Trial] = field(default_factory=dict)
    """Trials of ways, for each of these arrays."""

    def __post_init__(self) -> None:
        self.everybody = frozenset(self.members)


@dataclass
class Process:
    """One worker: its steps, and the events that it has not polled yet."""

    steps: Steps[Any]
    data: Data | None
    """Its data communicator. None until it is admitted."""
    calls: int = 0
    """Collectives started on ``data``."""
    under_way: dict[Handle, Call] = field(default_factory=dict)
    """Collectives that were started, but neither waited for to their end nor given up."""
    waiting: Request | None = None
    unnamed: bool = False
    """True if its request started what it waits for, so that the worker cannot give it up."""
    revoked: bool = False
    """True if it knows that its ``data`` is revoked."""
    dead_known: set[WorkerId] = field(default_factory=set)
    inbox: deque[Event] = field(default_factory=deque)
    control: int = 0
    """Number of its control path. Control paths are numbered from 0."""
    control_revoked: bool = False
    sent: int = 0
    """Tokens that it has sent since the last seal."""
    briefed: bool = False
    """True if this newcomer has had a prospectus."""
    behind: bool = False
    """True if this newcomer was briefed for an earlier training than the members' present one."""
    sponsor: WorkerId | None = None
    """Sponsor of this newcomer, as long as it has no charter."""
    alone: bool = False
    """True if this newcomer cannot be admitted any more: it has lost its sponsor, or was let go."""


@dataclass(frozen=True)
class Delays:
    """The longest that things take, in seconds. Each time is drawn between 0 and this."""

    message: float = 0.001
    notice: float = 0.02
    """Time until a worker learns of a loss."""
    revoke: float = 0.003
    collective: float = 0.002
    compute: float = 0.005
    """Time before each data collective, in place of the gradient."""
    write: float = 0.005
    """Time of work in the background."""
    spawn: float = 0.02
    """Time until a newcomer is connected to its sponsor."""


USUAL = Delays()


class World(Protocol):
    """What the parts of a simulation need of the whole."""

    random: random.Random
    delays: Delays
    processes: dict[WorkerId, Process]

    def after(self, longest: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` within ``longest`` seconds."""

    def reply(self, worker: WorkerId, reply: Any = None, longest: float = 0.0) -> None:
        """Let the worker go on with this reply within ``longest`` seconds."""

    def advance(self, worker: WorkerId, reply: Any) -> None:
        """Let the worker go on with this reply now, if it is there."""


class DataPath:
    """All data collectives of one simulation."""

    def __init__(self, world: World, host_of: Callable[[WorkerId], int]) -> None:
        """``host_of`` returns the host of a worker. Sums go from host to host."""
        self._world = world
        self._host_of = host_of
        self._handles: Handle = 0
        self._ways: dict[tuple[WorkerId, Place | None], str] = {}
        """The last way of each array of each worker."""

    def between(
        self, worker: WorkerId, workers: Sequence[WorkerId], parts: Sequence[Part]
    ) -> Between | None:
        """Return how ``parts`` were summed when they were started last; None if on one host."""
        places = [self._place(part) for part in parts]
        ways = [self._ways.get((worker, place), "") for place in places]
        data = self._world.processes[worker].data
        assert data is not None
        tried = [None if place is None else data.trials.get(place) for place in places]
        choices = [
            trial.choice if trial and data.begun.get((worker, place), 0) >= trial.rounds else None
            for place, trial in zip(places, tried, strict=True)
        ]
        return Between(self.hosts(workers), ways, choices) if all(ways) else None

    def perform(
        self,
        worker: WorkerId,
        process: Process,
        request: Start | Proceed | Wait | Cancel | Reduce | Share,
    ) -> Any:
        """Perform ``request``. Returns the reply, or `LATER` if it comes later.

        What is started has no effect before some time has passed. So others cannot tell whether
        the worker dies right after it or a moment later.
        """
        match request:
            case Start(part):
                if fails(process) and self._world.random.random() < 0.5:
                    _spoil([part.result])
                    return PeersLost("simulated")
                return self._call(worker, process, part)
            case Proceed():
                return None  # what was started goes on at any time
            case Wait():
                process.waiting = request
                self._proceed(worker, process)
            case Cancel(handles):
                for handle in handles:
                    call = process.under_way.pop(handle, None)
                    if call is not None and not call.done:
                        _spoil(call.targets)
                        _spoil_rests(call)
                return None
            case Reduce(parts):
                process.unnamed = True
                process.waiting = Wait([self._call(worker, process, part) for part in parts])
            case Share():
                process.unnamed = True
                process.waiting = Wait([self._call(worker, process, request)])
        return LATER

    def _call(self, worker: WorkerId, process: Process, what: Part | Share) -> Handle:
        data = process.data
        assert data is not None
        if isinstance(what, Share) and process.under_way:
            raise Misuse(f"worker {worker} shares with collectives under way")
        if process.calls == len(data.collectives):
            data.collectives.append(Collective())
        call = Call(data.collectives[process.calls], what)
        if isinstance(what, Part):
            call.given = _copy(what.contribution)
            hosts = self.hosts(data.members)
            call.way = self._way(worker, data, what) if len(hosts) > 1 else ""
            self._ways[worker, self._place(what)] = call.way
            if what.narrowing is not None:
                what.narrowing.begin(_parts_of(worker, hosts, what) if call.way else [])
        process.calls += 1
        self._handles += 1
        process.under_way[self._handles] = call
        self._world.after(self._world.delays.compute, self._enter, worker, data, call)
        return self._handles

    @staticmethod
    def _place(part: Part) -> Place | None:
        arena = part.arena
        return None if arena is None or not arena.name else (arena.name, part.number)

    def _way(self, worker: WorkerId, data: Data, part: Part) -> str:
        """Return the way of a part between hosts: first all in turns, then one that is drawn."""
        place = self._place(part)
        if place is None:
            return ""
        data.begun[worker, place] = begun = data.begun.get((worker, place), 0) + 1
        if part.narrowing is not None:
            return RING
        if (trial := data.trials.get(place)) is None:
            hosts = [len(host) for host in self.hosts(data.members)]
            trial = data.trials[place] = Trial(_WAYS, hosts, _TURNS)
            chance = random.Random(f"{data.members}/{place}")
            times = [[chance.random() for _ in data.members] for _ in range(trial.rounds)]
            dtype, (size,) = backend_of(part.result).describe(part.result)
            trial.choose(4 * WORDS_OF[dtype] * size, times)
        return trial.way(begun - 1)

    def _enter(self, worker: WorkerId, data: Data, call: Call) -> None:
        process = self._world.processes.get(worker)
        if process is None or call not in process.under_way.values():
            return
        call.entered = True
        collective = call.collective
        collective.entered.append(worker)
        if isinstance(call.what, Part):
            _check_given(worker, call)
            collective.brought[worker] = _times(call.what.weight, call.given)
            collective.calls[worker] = call
        elif call.what.source == worker:
            collective.result = list(map(_copy, call.what.buffers))
        self._settle(data, collective)
        self.disturb(worker, process)

    def _settle(self, data: Data, collective: Collective) -> None:
        """Complete the collective on the workers that have entered, if it can be complete now."""
        if collective.result is None:
            if len(collective.brought) < len(data.members):
                return
            collective.result = self._sum(data, collective)
            if collective.result is None:
                return
            collective.brought = {}
        for worker in collective.entered:
            self._world.after(self._world.delays.collective, self._complete, worker, collective)
        collective.entered = []

    def hosts(self, members: Sequence[WorkerId]) -> list[list[WorkerId]]:
        """Return the members of each host. Hosts come in the order of their first members."""
        found: dict[int, list[WorkerId]] = {}
        for one in members:
            found.setdefault(self._host_of(one), []).append(one)
        return list(found.values())

    def _sum(self, data: Data, collective: Collective) -> list[Any] | None:
        """Return the sum. None if it is narrowed, which takes all workers, and one of them has
        failed or given up."""
        hosts = self.hosts(data.members)
        (way,) = {call.way for call in collective.calls.values()}
        brought = {one: collective.brought[one] for one in data.members}
        if not way:
            return [_sum([*brought.values()])]
        parts = [call.what for call in collective.calls.values()]
        if not any(isinstance(part, Part) and part.narrowing is not None for part in parts):
            return [sum_of_hosts(brought, hosts, way)]
        processes = self._world.processes
        for worker, call in collective.calls.items():
            process = processes.get(worker)
            if call.lost or (process is not None and call not in process.under_way.values()):
                return None
        found = {
            worker: call.what.narrowing
            for worker, call in collective.calls.items()
            if isinstance(call.what, Part) and call.what.narrowing is not None
        }
        return [narrowed_sum(brought, hosts, found)]

    def _complete(self, worker: WorkerId, collective: Collective) -> None:
        process = self._world.processes.get(worker)
        if process is None:
            return
        for call in process.under_way.values():
            if call.collective is not collective or call.lost:
                continue
            assert collective.result is not None
            _check_given(worker, call)
            if not (isinstance(call.what, Share) and call.what.source == worker):
                for target, value in zip(call.targets, collective.result, strict=True):
                    backend_of(target).from_host(target, value)
            call.done = True
            self._proceed(worker, process)
            return

    def _proceed(self, worker: WorkerId, process: Process) -> None:
        """Reply to the worker if all that it waits for is done, or any of it is lost."""
        if not isinstance(process.waiting, Wait):
            return
        calls = [process.under_way[handle] for handle in process.waiting.handles]
        lost = any(call.lost for call in calls)
        if not lost and not all(call.done for call in calls):
            return
        if not lost or process.unnamed:
            for handle in process.waiting.handles:
                del process.under_way[handle]
        process.waiting, process.unnamed = None, False
        self._world.reply(worker, PeersLost("simulated") if lost else None)

    def disturb(self, worker: WorkerId, process: Process) -> None:
        """Fail the worker's collectives if it knows of a loss or a revocation."""
        if process.data is None or not fails(process):
            return
        for handle, call in list(process.under_way.items()):
            if not call.entered or call.done or call.lost:
                continue
            if call.collective.result is not None and self._world.random.random() < 0.5:
                continue  # it is complete for this worker, and its result is under way
            call.lost = True
            if not (isinstance(call.what, Share) and call.what.source == worker):
                _spoil(call.targets)
                self._world.after(self._world.delays.collective, self._scribble, worker, handle)
        self._proceed(worker, process)

    def _scribble(self, worker: WorkerId, handle: Handle) -> None:
        """Write rubbish once more: a part that failed is not over before it is given up."""
        process = self._world.processes.get(worker)
        if process is not None and handle in process.under_way:
            _spoil(process.under_way[handle].targets)


def fails(process: Process) -> bool:
    """Return True if the worker knows that collectives must fail."""
    assert process.data is not None
    return process.revoked or not process.dead_known.isdisjoint(process.data.everybody)


def _spoil(targets: Sequence[Buffer]) -> None:
    fill(targets, RUBBISH)


def _spoil_rests(call: Call) -> None:
    """Write rubbish where the next rests go, unless all workers have done their part of the sum."""
    narrowing = call.what.narrowing if isinstance(call.what, Part) else None
    if narrowing is not None and call.collective.result is None:
        fill([narrowing.following[part] for part in narrowing.parts], RUBBISH)


def _copy(buffer: Buffer) -> Any:
    """Return a copy in the memory of the host."""
    return backend_of(buffer).to_host(buffer)


def _check_given(worker: WorkerId, call: Call) -> None:
    if isinstance(call.what, Share):
        return
    if _copy(call.what.contribution).tobytes() != call.given.tobytes():
        raise Misuse(f"worker {worker} has changed what it had given to a round")


def _parts_of(worker: WorkerId, hosts: Sequence[Sequence[WorkerId]], part: Part) -> list[slice]:
    """Return the slices of the part that ``worker`` narrows."""
    which = next(number for number, host in enumerate(hosts) if worker in host)
    workers = [len(host) for host in hosts]
    return carried(len(part.result), workers, which, list(hosts[which]).index(worker))


def _times(weight: float, given: Any) -> Any:
    product = weight * given
    if not weight:
        product.fill(0)  # a contribution that does not count may hold anything, even NaN
    return product


def _sum(brought: Sequence[Any]) -> Any:
    """Return the sum in ring order, the one order that a replay can repeat to the bit."""
    total = brought[0].copy()
    for flat in brought[1:]:
        total += flat
    return total
