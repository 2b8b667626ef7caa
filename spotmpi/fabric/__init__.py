"""The interface between the driver and the communication of the workers.

The driver and the trainer are generators: they *yield* the requests below and get back replies.
A fabric performs the requests. `fabric.mpi` blocks until each is done. `fabric.solo` serves one
worker alone. `fabric.sim` runs hundreds of workers in one thread and may kill any of them at any
request. So the simulator checks exactly the code that must survive real revocations.

Every fabric guarantees the following, and one suite of contract tests checks it:

- ``Start``, ``Wait`` and ``Share`` raise `PeersLost` if a member is dead or the fabric
  was revoked. They may raise it on some members and succeed on others. They never block for ever
  while a member is dead, provided that each worker that learns of it revokes.
- All members start the same parts in the same order, each at its own time. After a failure a
  worker gives up all parts that it started, with ``Cancel``, before the next ``Share`` or
  ``Rebuild``. From then on nothing touches their memory.
- ``Revoke`` reaches every member alive, even if the caller dies right after it.
- ``Poll`` waits for an event. It reports each loss once to every member alive, each token once,
  and the revocation of the control path once.
- ``Rebuild`` waits for every member alive, and all get the same answer. If a newcomer dies, or MPI
  cannot connect it, the build fails for all alike and the newcomer is turned away. A member that
  has come out of the build may be needed by one that has not. ``Depart`` waits for members that
  have not, unless they are dead.
- ``Publish`` and ``Fetch`` never wait and never raise `PeersLost`: a worker that is dead, stopped
  or silent costs the others nothing. Losses do not stop them. Between hosts a revocation stops
  them until the next build. `Fabric.move_on` drops what was published in an earlier training.
- ``AddUp`` never waits and never raises `PeersLost`. All members that share a sum get the same
  number of such members, while these stay the same. What was added in an earlier training is gone.
- ``Signal`` and ``Signals`` never wait and never raise `PeersLost`. A mark may come late, or never
  if there is a build meanwhile. A mark may be from an earlier training.
- ``Post`` never waits and never raises `PeersLost`. What one worker posts to another arrives once
  and in order, as long as both live, even if others are lost. ``Receive`` raises `PeersLost` as
  ``Wait`` does, unless a message has come.
- ``Meet`` and ``Knock`` raise `PeersLost` when nobody remains who could admit the newcomer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from spotmpi.arrays.backend import Buffer
from spotmpi.errors import PeersLost
from spotmpi.fabric.background import Background, InThread
from spotmpi.fabric.neighbours.common_sums import AddUp
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import (
    Arena,
    Between,
    Cancel,
    Handle,
    Move,
    Part,
    Proceed,
    Shape,
    Start,
    Wait,
)
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import NO_PLAN, PlannedChange, RevokeControl, Send

__all__ = [
    "KEY",
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
    "Message",
    "Move",
    "Part",
    "Poll",
    "Post",
    "Proceed",
    "Publish",
    "Rebuild",
    "Receive",
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
    """Build a new data path of the members alive, and seal it. Collective over those alive.

    Replies with `recovery.Built`. It is sealed if every member alive came with the same
    ``members``, and exactly these are alive. None never seals. If it is not sealed, the control
    path is new as well. ``change``: a worker that leaves takes part in this build, but not in the
    new path. The newcomer is the last member of both paths from then on.
    """

    members: frozenset[WorkerId] | None
    change: PlannedChange = NO_PLAN


@dataclass(frozen=True)
class Depart:
    """Wait until every member alive has come out of the last `Rebuild` that this worker was in.

    A worker does this before it ends: a member in the build may have to ask it for the answer.
    """


@dataclass(frozen=True)
class Welcome:
    """Send the ``briefing`` to the newcomer that was admitted. For its sponsor; returns at once."""

    newcomer: WorkerId
    briefing: bytes


@dataclass(frozen=True)
class Meet:
    """Wait for the sponsor's briefing, as a newcomer. Replies with its bytes."""


@dataclass(frozen=True)
class Knock:
    """Wait to be admitted, as a newcomer. Replies with the bytes of the briefing on its admission.
    If the members have moved on to another training, it replies with a briefing for that one."""


@dataclass(frozen=True)
class Work:
    """Call ``work``, however long it takes, and reply with what it returns. Local.

    For work of a script, which may be lost: this worker can die in the middle of it.
    """

    work: Callable[[], Any]


@dataclass(frozen=True)
class Publish:
    """Show the arrays of this worker's model to the others, in place of its last publication.

    Copies the arrays and returns. Local. A reader gets all of one publication.
    """

    model: Sequence[Buffer]


@dataclass(frozen=True)
class Fetch:
    """Reply with the latest model of another worker that is here, as `Fetched`, or with None.

    Local; never waits. The model of a neighbour, which shares memory with this worker, is here at
    once. Any other worker is asked, and its model is the reply to a later `Fetch`, even if that one
    names another worker. One worker is asked at a time, and the next one as soon as its model has
    come. The reply is also None if the worker is lost, is no member or has published nothing, or if
    this worker has published nothing.
    """

    worker: WorkerId
    unread: bool = False
    """True: of all workers that say so, at most one gets a publication. The others get None in its
    place. Say the same in all fetches of one kind of model: an ask that is under way stays what it
    was."""


@dataclass(frozen=True)
class Signal:
    """Tell the others ``mark``, `MARK` bytes at most, in place of the last one.

    A mark is a hint: it may come late, or never if a worker dies meanwhile. The sender does not
    learn whether it has come. Local, returns at once.
    """

    mark: bytes


@dataclass(frozen=True)
class Signals:
    """Reply with the last mark that has come from each other member, by worker; None if none has.

    Members that are known to be dead are left out. Local, never waits.
    """


MARK = 32
"""Longest mark, in bytes."""


@dataclass(frozen=True)
class Post:
    """Send ``content`` to another member, and then what is ``lent``. Copies the content and returns
    at once. Local.

    Those that are posted to one worker arrive in order, each once, while both live. What is posted
    to a dead one is dropped.
    """

    to: WorkerId
    key: bytes
    """What it is for, in `KEY` bytes: only who asks for this key gets it."""
    content: Buffer
    """Bytes, flat, in memory of the host."""
    lent: Sequence[Buffer] = ()
    """More of them, which may be sent from where they are. They stay as they are until the receiver
    has them, or has no use for them any more."""


@dataclass(frozen=True)
class Receive:
    """Wait for the next message of this key from any of these workers. Replies with a `Message`.

    Raises `PeersLost` if none has come, and a member is dead or the fabric was revoked.
    """

    senders: Sequence[WorkerId]
    key: bytes
    waits: bool = True
    """False: reply None if none has come and nothing is wrong."""


KEY = 16
"""Length of a key, in bytes."""


class Message(NamedTuple):
    """What another worker has posted."""

    sender: WorkerId
    content: memoryview
    """Its memory can be written, and is used again when nobody has a view of it."""


class Fetched(NamedTuple):
    """A model that another worker has published."""

    worker: WorkerId
    number: int
    """How many models ``worker`` had published before this one, in this training."""
    model: Sequence[Buffer]
    """Its arrays, with the dtypes and sizes of the fetching worker's own model. They stay as they
    are until the fetching worker's next `Fetch`."""


Request = (
    Start
    | Proceed
    | Wait
    | Cancel
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
    | Post
    | Receive
)
Steps = Generator[Request, Any, T]
"""A generator of requests that returns a T. The driver and the trainer consist of these."""


class Fabric(ABC):
    """Live communication of this worker with the others."""

    me: WorkerId
    membership: Membership
    """The membership that the fabric was started with."""

    @abstractmethod
    def perform(self, request: Request) -> Any:
        """Perform ``request``, however long it takes; return the reply or raise PeersLost."""

    @abstractmethod
    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return memory for rounds of this ``layout``, from the data plane. Local.

        ``name``: set for an arena of many rounds. In these, each worker uses the arena that it
        gave this name last. ``state``: the double buffer that sums may go straight into.
        """

    def release(self, arena: Arena) -> None:
        """Forget an arena with a name, which no worker uses again: its memory is free with the last
        reference to it. Local."""
        return

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return how ``parts`` of one arena were summed over ``workers``. Local. None if they were
        summed in the order of the workers, or by MPI."""
        return None

    # For the sponsor of a newcomer. All of these are local and return at once.

    def sponsor(self, newcomer: WorkerId | None) -> str | None:
        """Connect ``newcomer`` to MPI, in the background, and give up any other newcomer.

        A sponsor calls this repeatedly. Returns why the newcomer cannot come, if that is known.
        """
        return None

    def brief(self, briefing: Callable[[], bytes]) -> None:
        """Send the briefing to a newcomer that waits for it, if there is one."""
        return

    def move_on(self) -> None:
        """Begin another training: forget what was published, added up or posted in the last one,
        and brief its newcomers again.

        All members do this before a round that all enter. After that round they find nothing old.
        """
        return

    def guest(self) -> WorkerId | None:
        """Return the newcomer that waits to be admitted now, or None."""
        return None

    def background(self, work: Callable[[], T], name: str) -> Background[T]:
        """Begin ``work``, which runs beside the training and dies with this worker. Local."""
        return InThread(work, name)

    @abstractmethod
    def clock(self) -> float:
        """Return seconds, comparable between the workers of one host. For any thread."""

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
