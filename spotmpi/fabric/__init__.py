"""The port between the driver and whatever connects the workers.

The driver and the trainer are generators: they *yield* the requests below and get back replies.
A fabric performs them. `fabric.mpi` blocks until each is done, `fabric.solo` has nobody to talk
to, `fabric.sim` runs hundreds of workers in one thread and may kill any of them at any request.
So the code that survives real revocations is, to the line, the code that the simulator checks.

What every fabric guarantees, and one contract suite holds:

- ``Reduce`` and ``Share`` raise `PeersLost` when a member is dead or the fabric was revoked, and
  may do so on some members while they succeed on others. They never block for ever while a
  member is dead, provided that whoever is told revokes.
- ``Revoke`` reaches every member alive, also if the caller dies right after it.
- ``Poll`` waits until there is something to tell: each loss once to every member alive, each
  token once, the revocation of the control path once.
- ``Rebuild`` waits for every member alive; all get the same answer. A newcomer that dies, or that
  MPI cannot bring in, makes it fail for all alike, and is turned away.
- ``Meet`` and ``Knock`` raise `PeersLost` when nobody is left who could let the newcomer in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from spotmpi.errors import PeersLost
from spotmpi.membership import Membership, WorkerId
from spotmpi.recovery import NO_PLAN, Plan, RevokeControl, Send

Buffer = Any
"""A one-dimensional array; what kind, only the kernels and the fabric at hand know."""

T = TypeVar("T")


@dataclass(frozen=True)
class Reduce:
    """Sum ``buffers`` over all members, each in place. Collective. Lost, they hold rubbish."""

    buffers: Sequence[Buffer]


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
    change: Plan = NO_PLAN


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
    """Wait to be admitted, as a newcomer; replies the charter's bytes."""


Request = Reduce | Share | Revoke | Poll | Rebuild | Send | RevokeControl | Welcome | Meet | Knock
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

    # A sponsor's side of a newcomer. All local, and done at once.

    def sponsor(self, newcomer: WorkerId | None) -> str | None:
        """Bring this newcomer in, in the background; give up any other.

        To be said again and again; returns why nothing will come of it, if that is known.
        """
        return None

    def brief(self, prospectus: Callable[[], bytes]) -> None:
        """Send the prospectus to a newcomer that waits for it, if there is one."""
        return

    def guest(self) -> WorkerId | None:
        """The newcomer that waits to be admitted now."""
        return None

    @abstractmethod
    def clock(self) -> float:
        """Seconds, comparable between the workers of one host."""

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
