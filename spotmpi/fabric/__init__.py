"""The port between the driver and whatever connects the workers.

The driver and the trainer are generators: they *yield* the requests below and get back replies.
A fabric performs them. `fabric.mpi` blocks until each is done, `fabric.solo` has nobody to talk
to, `fabric.sim` runs hundreds of workers in one thread and may kill any of them at any request.
So the code that survives real revocations is, to the line, the code that the simulator checks.

What every fabric guarantees, and one contract suite holds:

- ``Start``, ``Wait``, ``Reduce`` and ``Share`` raise `PeersLost` when a member is dead or the
  fabric was revoked, and may do so on some members while they succeed on others. They never block
  for ever while a member is dead, provided that whoever is told revokes.
- All members start the same parts in the same order, each at its own time. After a failure
  whatever was started is given up with ``Cancel`` before the next ``Share`` or ``Rebuild``; then
  nothing touches its memory.
- ``Revoke`` reaches every member alive, also if the caller dies right after it.
- ``Poll`` waits until there is something to tell: each loss once to every member alive, each
  token once, the revocation of the control path once.
- ``Rebuild`` waits for every member alive; all get the same answer. A newcomer that dies, or that
  MPI cannot bring in, makes it fail for all alike, and is turned away. Whoever is through with it
  may be needed by those who are not: ``Depart`` waits for these, and for nobody who is dead.
- ``Publish`` and ``Fetch`` wait for nobody, and raise no `PeersLost`: who is dead, stopped or
  silent costs the others nothing. They go on past losses; between hosts not past a revocation,
  until the build. What was published in an earlier training is gone (`Fabric.move_on`).
- ``AddUp`` waits for nobody either, and raises no `PeersLost`. All members who make up a sum find
  the same number of them, as long as they are the same members. What was added in an earlier
  training is gone.
- ``Signal`` and ``Signals`` wait for nobody either, and raise no `PeersLost`. A mark may come late,
  where there is a build meanwhile never, and what is here may be of an earlier training.
- ``Meet`` and ``Knock`` raise `PeersLost` when nobody is left who could let the newcomer in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from spotmpi.arrays.backend import Buffer
from spotmpi.errors import PeersLost
from spotmpi.fabric.background import Background, InThread
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import (
    AddUp,
    Arena,
    Between,
    Cancel,
    Handle,
    Move,
    Part,
    Proceed,
    Reduce,
    Shape,
    Start,
    Wait,
)
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import NO_PLAN, PlannedChange, RevokeControl, Send

__all__ = [
    "MARK",
    "AddUp",
    "Arena",
    "Background",
    "Between",
    "Buffer",
    "Cancel",
    "Depart",
    "Fabric",
    "Fetch",
    "Fetched",
    "Handle",
    "Knock",
    "Meet",
    "Move",
    "Part",
    "Poll",
    "Proceed",
    "Publish",
    "Rebuild",
    "Reduce",
    "Request",
    "Revoke",
    "Shape",
    "Share",
    "Signal",
    "Signals",
    "Start",
    "Steps",
    "DoubleBuffer",
    "Wait",
    "Welcome",
    "Work",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """Copy ``buffers`` of worker ``source`` into ``buffers`` of all others. Collective."""

    source: WorkerId
    buffers: Sequence[Buffer]


@dataclass(frozen=True)
class Revoke:
    """Interrupt the data path of all members. Local, returns at once."""


@dataclass(frozen=True)
class Poll:
    """Wait for the next `recovery.Lost`, `recovery.Received` or `recovery.ControlRevoked`."""


@dataclass(frozen=True)
class Rebuild:
    """Make the data path of the members alive anew and seal it. Collective over those alive.

    Replies `recovery.Built`: sealed if every member alive came with the same ``members`` and
    these are just the ones alive; None never seals. Not sealed: the control path is new as well.
    ``change``: whoever leaves has its part in this and none in what is built; the newcomer is
    the last member of both paths from then on.
    """

    members: frozenset[WorkerId] | None
    change: PlannedChange = NO_PLAN


@dataclass(frozen=True)
class Depart:
    """Wait until every member alive has come out of the last `Rebuild` that this worker was in.

    Before its process may end: one that waits in there may have to ask it for the answer.
    """


@dataclass(frozen=True)
class Welcome:
    """Send the ``charter`` to the newcomer that was sealed in, as its sponsor. Returns at once."""

    newcomer: WorkerId
    charter: bytes


@dataclass(frozen=True)
class Meet:
    """Wait for the sponsor's prospectus, as a newcomer; replies its bytes."""


@dataclass(frozen=True)
class Knock:
    """Wait to be admitted, as a newcomer; replies the charter's bytes, or those of another
    prospectus, if the members have moved on."""


@dataclass(frozen=True)
class Work:
    """Do ``work``, for as long as it takes; replies what it returns. Local.

    Of what is a script's and may be done in vain: this worker can die in the middle of it.
    """

    work: Callable[[], Any]


@dataclass(frozen=True)
class Publish:
    """Show these arrays, this worker's model, to the others, in place of what it published last.

    Copies them; local, returns when they are copied. Whoever reads gets all of one publication.
    """

    model: Sequence[Buffer]


@dataclass(frozen=True)
class Fetch:
    """Reply with the latest model of another worker that is here, as `Fetched`, or None: never
    waits.

    A neighbour's model is here at once. A worker on another host is asked first, and its model is
    the reply to a later `Fetch`, whichever worker that one names (one is asked at a time; the next
    is asked as soon as one has come). None also where the worker is lost, is no member or has
    published nothing, and as long as this worker has published nothing itself. Local.
    """

    worker: WorkerId


@dataclass(frozen=True)
class Signal:
    """Tell the others this ``mark``, `MARK` bytes or less, in place of what was told last.

    A hint: it may come late, or never if somebody dies meanwhile, and nobody is told whether it
    has. Local, returns at once.
    """

    mark: bytes


@dataclass(frozen=True)
class Signals:
    """Reply with the last mark of each other member that has come from it, by worker; None of who
    has told nothing. Members that are known to be dead are not among them. Local, never waits.
    """


MARK = 32
"""Bytes of a mark, at most."""


class Fetched(NamedTuple):
    """A model that another worker has published."""

    worker: WorkerId
    number: int
    """Of the publication: how many this worker had published before it, in this training."""
    model: Sequence[Buffer]
    """As the fetching worker published its own: same dtypes and sizes. Stays as it is until this
    worker's next `Fetch`."""


Request = (
    Start
    | Proceed
    | Wait
    | Cancel
    | Reduce
    | Share
    | Revoke
    | Poll
    | Rebuild
    | Depart
    | Send
    | RevokeControl
    | Welcome
    | Meet
    | Knock
    | Work
    | Publish
    | Fetch
    | AddUp
    | Signal
    | Signals
)
Steps = Generator[Request, Any, T]
"""What the driver and the trainer are made of: a generator of requests that returns a T."""


class Fabric(ABC):
    """The live communication of this worker with the others."""

    me: WorkerId
    membership: Membership
    """The members that the fabric was started with."""

    @abstractmethod
    def perform(self, request: Request) -> Any:
        """Do what is asked, waiting as long as it takes; return the reply or raise PeersLost."""

    @abstractmethod
    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Memory for rounds of this ``layout``, from the data plane. Local.

        ``name``: of an arena for many rounds, in which all workers use the one that they gave this
        name last. ``state``: what its sums may go right into.
        """

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """How these parts of one arena were summed over these workers; None if it was in their
        order, or as MPI does it. Local."""
        return None

    # A sponsor's side of a newcomer. All local, and done at once.

    def sponsor(self, newcomer: WorkerId | None) -> str | None:
        """Bring this newcomer in, in the background; give up any other.

        To be said again and again; returns why nothing will come of it, if that is known.
        """
        return None

    def brief(self, prospectus: Callable[[], bytes]) -> None:
        """Send the prospectus to a newcomer that waits for it, if there is one."""
        return

    def move_on(self) -> None:
        """The members are in another training from now on: newcomers that were briefed for the last
        one are briefed anew, and what was published or added up in it is forgotten.

        All do this before a round that all enter: who is through that one finds nothing old.
        """
        return

    def guest(self) -> WorkerId | None:
        """The newcomer that waits to be admitted now."""
        return None

    def background(self, work: Callable[[], T], name: str) -> Background[T]:
        """Begin ``work``, which goes on beside the training and dies with this worker. Local."""
        return InThread(work, name)

    @abstractmethod
    def clock(self) -> float:
        """Seconds, comparable between the workers of one host. From any thread."""

    def run(self, steps: Steps[T]) -> T:
        """Perform ``steps`` to their end; return what they return."""
        try:
            request = next(steps)
            while True:
                try:
                    reply = self.perform(request)
                except PeersLost as lost:
                    request = steps.throw(lost)
                else:
                    request = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
