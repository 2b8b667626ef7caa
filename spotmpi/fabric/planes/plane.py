"""The data plane: memory for rounds, and how members of a job sum arrays.

A **part** of a round is one array: a *contribution* and a *result*. Nobody writes to a contribution
from the start of its part until the part is done or given up. The sum over all members arrives in
the result. Parts lie in **arenas**, which the plane makes: they are allocated once and last through
recoveries. In some planes the result arrives where the contribution was (`Arena.in_place`): after a
failure the contribution must be made again. Nothing else above the plane depends on this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotmpi.arrays.backend import HOST, Backend, Buffer, fill
from spotmpi.arrays.narrowing import Narrowing
from spotmpi.fabric.neighbours.neighbours import Neighbours
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.trials import Choice

Handle = int
"""The number of a part that was started, until it is waited for or given up."""


class Shape(NamedTuple):
    """What one array of an arena is like."""

    dtype: str
    size: int
    backend: Backend = HOST
    """The library of the array. An array of `HOST` always lies in the memory of the host."""
    narrowing: Narrowing | None = None
    """How its sums are narrowed where they travel between hosts; None: they are not."""
    by_one: bool = False
    """True if one worker brings it as a rule, with weight 1, and the others nothing. All arrays of
    such an arena are alike, and are brought before the first of them is started."""


Move = Callable[[slice, Sequence[Buffer], Sequence[float]], None]
"""Makes one slice of the next state from the same slice of a sum. Takes the slice, the arrays that
are summed there, and the weight of each."""


class Part(NamedTuple):
    """One array of a round."""

    contribution: Buffer
    result: Buffer
    weight: float = 1.0
    """The factor of the contribution in the sum. At 0 the contribution does not count, and may hold
    anything. It is 1 in arenas that do not weigh."""
    narrowing: Narrowing | None = None
    """The narrowing of its shape. If a plane narrows the sum, no member has the result before every
    member has written all of `Narrowing.following`. If the sum is given up, this holds rubbish."""
    move: Move | None = None
    """Makes the next state from the sum. A plane may do this slice by slice while it sums; then it
    need not write the result."""
    arena: Arena | None = None
    """The arena that it lies in; None: it lies in none."""
    number: int = 0
    """Its number in the arena."""


class Arena:
    """Memory for rounds of one layout: contributions, and two results that take turns."""

    def __init__(
        self,
        layout: Sequence[Shape],
        allocate: Callable[[], list[Buffer]],
        in_place: bool,
        state: DoubleBuffer | None = None,
    ) -> None:
        if any(shape.by_one for shape in layout) and any(shape != layout[0] for shape in layout):
            raise ValueError("arrays that one worker each brings must be alike")
        self.layout = layout
        self.state = state
        """The state that sums may go right into, with room for the next one."""
        self._moves: Sequence[Move] = ()
        self.in_place = in_place
        """True if the sum arrives where the contribution was: a failure leaves rubbish there."""
        self.weighs = False
        """True if the plane multiplies contributions by their weight while it sums."""
        self.weight = 1.0
        """The weight of this worker's contributions to the open round."""
        self.only: int | None = None
        """The one array to whose sum this worker adds something; None: it does so to all."""
        self._results = [allocate(), allocate()]
        contributions = None if in_place else allocate()
        self._contributions = [contributions or results for results in self._results]
        self.name = ""
        """The name by which members find each other's arenas; empty: they do not look for it."""

    @property
    def contributions(self) -> list[Buffer]:
        """What this worker adds to the open round's sums."""
        return self._contributions[0]

    @property
    def results(self) -> list[Buffer]:
        """Where the open round's sums arrive. Only the plane writes here. Members that are not done
        with the round may still read this worker's results, until the next round or build."""
        return self._results[0]

    @property
    def record(self) -> list[Buffer]:
        """The sums of the last committed round."""
        return self._results[1]

    @property
    def parts(self) -> list[Part]:
        """The open round's parts, with the present weight."""
        moves: Sequence[Move | None] = self._moves or [None] * len(self.layout)
        # Made each time: an arena that held them would be a cycle, and keep its memory for long.
        return [
            Part(contribution, result, self._weight_in(number), shape.narrowing, move, self, number)
            for number, (contribution, result, shape, move) in enumerate(
                zip(self.contributions, self.results, self.layout, moves, strict=True)
            )
        ]

    def _weight_in(self, number: int) -> float:
        """Return the weight of this worker's contribution to the sum of one array."""
        return self.weight if self.only in (None, number) else 0.0

    @property
    def fuses(self) -> bool:
        """True if the open round's sums can go right into the next state: the same for all."""
        return self.state is not None and not self.in_place

    def fuse_update(self, moves: Sequence[Move], mark: int) -> None:
        """Have the open round's sums go right into the next state, each by one of ``moves``. Call
        it only if the arena `fuses`. Local.

        ``mark``: a number that stands for what ``moves`` do, the same for all that do the same, and
        not 0.
        """
        assert self.state is not None
        self.state.stand()
        self._moves = moves

    @property
    def fused(self) -> bool:
        """True if the open round's sums go right into the next state."""
        return bool(self._moves)

    def unfuse(self) -> None:
        """Leave the open round's sums in the results."""
        self._moves = ()

    def advance(self) -> None:
        """Make the next state count. The last committed round must have been fused."""
        assert self.state is not None
        for move, total in zip(self._moves, self.record, strict=True):
            move(slice(None), [total], [1.0])
        self.state.exchange()

    def leave(self) -> None:
        """Keep the state in memory of this worker's own, until sums go there again."""
        if self.state is not None:
            self.state.unshare()

    def bring_nothing(self) -> None:
        """Add nothing to the open round's sums."""
        if self.weighs:
            self.weight = 0.0
        else:
            fill(self.contributions, 0)

    def bring_only(self, number: int) -> None:
        """Add something to the sum of this array, and nothing to the others."""
        self.bring_nothing()
        if self.weighs:
            self.weight, self.only = 1.0, number

    def turn(self) -> None:
        """Make the open round's sums the record: the round is committed."""
        for turns in (self._results, self._contributions):
            turns.reverse()


class Start(NamedTuple):
    """Begin to sum ``part``, of an arena of this fabric, over all members; replies a handle.

    Collective. If a member is lost or the sum is given up, the result holds rubbish.
    """

    part: Part


@dataclass(frozen=True)
class Proceed:
    """Go on with the started parts while the worker does something else. Local, returns at once.

    A plane does what it can: it may leave all of it to `Wait`.
    """


class Wait(NamedTuple):
    """Wait until all of these are done."""

    handles: Sequence[Handle]


@dataclass(frozen=True)
class Cancel:
    """Give these up, done or not. Local; replies when nothing touches their memory any more."""

    handles: Sequence[Handle]


Sum = Callable[[Sequence[Part]], None]
"""Sums these parts over all members, blocking; raises `PeersLost`. All give the same ones, in the
same order."""


class Line(ABC):
    """Messages between this worker and others. Messages in one ring from one worker to another come
    in the order in which they were sent."""

    @abstractmethod
    def send(self, to: WorkerId, ring: int, what: Buffer) -> Handle:
        """Begin to send ``what``. Do not change it before this is done. May raise `PeersLost`."""

    @abstractmethod
    def receive(self, source: WorkerId, ring: int, room: Buffer) -> Handle:
        """Begin to receive a message of the size of ``room`` there. May raise `PeersLost`."""

    @abstractmethod
    def through(self) -> list[Handle]:
        """Wait until some messages are done, but only for a moment; return those that are done, if
        any. Raises `PeersLost`."""

    @abstractmethod
    def give_up(self) -> None:
        """Forget all that is under way. Some of it may still be read, or come to its room."""


class Ways(NamedTuple):
    """What a plane gets from the fabric that it belongs to."""

    total: Sum
    """Sums in the slow way that always works."""
    broken: Callable[[], bool]
    """True if a member is known here to be lost, or to have met a loss. Local."""
    line: Line | None = None
    """Messages from worker to worker; None where there are none."""
    threads: bool = True
    """True if any thread may use these."""


class Between(NamedTuple):
    """How some parts were summed between hosts."""

    hosts: list[list[WorkerId]]
    """The workers of each host, in the order of summation."""
    ways: list[str]
    """The way of each part, by its name in `protocol.host_ring`."""
    choices: list[Choice | None]
    """For each part, why it goes its way from now on; None unless these members tried several."""


class Plane(ABC):
    """One way to sum over all members. Each plane sets `neighbours`."""

    neighbours: Neighbours
    """Knows who shares memory with this worker, and on which hosts all members are."""

    @abstractmethod
    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Sum over these members from now on, in this order. Nothing may be under way. Local.

        ``together``: all of them have said, when they came, that they can reach their neighbours.
        """

    @abstractmethod
    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return memory for rounds of this ``layout``, all zero. Local.

        ``name``: the name of an arena for many rounds. In these all workers use the last arena that
        they gave this name. A plane may do more for an arena with a name. ``state``: sums may go
        right into it.
        """

    def release(self, arena: Arena) -> None:
        """Forget an arena with a name, which no worker uses again: its memory is free with the last
        reference to it. Local."""
        return

    @abstractmethod
    def start(self, part: Part) -> Handle:
        """Begin to sum ``part``. May take as long as the sum does, and raise `PeersLost`."""

    @abstractmethod
    def wait(self, handles: Sequence[Handle]) -> None:
        """Return when the results of all of these are there. Raises `PeersLost`."""

    @abstractmethod
    def cancel(self, handles: Sequence[Handle]) -> None:
        """Give these up. When it returns, nothing touches their memory any more."""

    def proceed(self) -> None:
        """Go on with the started parts, beside the caller, until they are waited for or given up.
        Local, returns at once; `start` or `wait` raises what goes wrong."""
        return

    def interrupt(self) -> None:
        """Have others look at once if the data path is revoked. Local."""
        return

    def is_everywhere(self, buffer: Buffer) -> bool:
        """Return True if ``buffer`` is the same memory for all members. Local, and the same for
        all."""
        return False

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return how these parts of one arena were summed over these workers; None if in the order
        of the workers, or as MPI does it. Local."""
        return None


def private_arena(
    layout: Sequence[Shape], in_place: bool, state: DoubleBuffer | None = None
) -> Arena:
    """Return an arena in memory of this process alone."""

    def allocate() -> list[Buffer]:
        return [shape.backend.zeros(shape.dtype, shape.size) for shape in layout]

    return Arena(layout, allocate, in_place, state)
