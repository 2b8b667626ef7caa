"""The data plane: memory for rounds, and how what workers bring is summed.

A **part** of a round is one array: a *contribution*, which nobody writes to from when it is given
until it is through or given up, and a *result*, where the sum over all members arrives. Parts lie
in **arenas**, which the plane makes: they are allocated once and last through recoveries. A plane
may have the result arrive where the contribution was; then the contribution must be made again
after a failure, and `Arena.in_place` says so. Nothing else above the plane depends on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotmpi.arrays.backend import HOST, Backend, Buffer, fill
from spotmpi.arrays.narrowing import Narrowing
from spotmpi.errors import PeersLost
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.published_model import ModelForm, PublishedModel
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.trials import Choice

CARD_BYTES = 40

Handle = int
"""Names a part that was started, until it has been waited for or given up."""


class Shape(NamedTuple):
    """One array of an arena."""

    dtype: str
    size: int
    backend: Backend = HOST
    """Whose array it is. One of `HOST` lies in the memory of the host, whatever else there is."""
    narrowing: Narrowing | None = None
    """How its sums are narrowed where they travel between hosts; None: they are not."""


Move = Callable[[slice, Sequence[Buffer], Sequence[float]], None]
"""Does with a slice of a sum what is to be done with it: makes that slice of the next state. Given
what is summed there, and with what each is multiplied."""


class Part(NamedTuple):
    """One array of a round."""

    contribution: Buffer
    result: Buffer
    weight: float = 1.0
    """What the contribution is multiplied with while it is summed; 0 if it does not count, whatever
    it holds. Other than 1 only in arenas that weigh."""
    narrowing: Narrowing | None = None
    """Of its shape. If a plane narrows the sum, then nobody has the result before every member has
    written all that follows of its rest; given up, what follows holds rubbish."""
    move: Move | None = None
    """What the sum is for. A plane may do it slice by slice while it sums, and then leave the
    result as it is."""


class Arena:
    """Memory for rounds of one layout: what is brought, and two results that take turns."""

    def __init__(
        self,
        layout: Sequence[Shape],
        allocate: Callable[[], list[Buffer]],
        in_place: bool,
        state: DoubleBuffer | None = None,
    ) -> None:
        self.layout = layout
        self.state = state
        """What sums may go right into, with room for the next one."""
        self._moves: Sequence[Move] = ()
        self.in_place = in_place
        """The sum arrives where the contribution was: a failure leaves rubbish there."""
        self.weighs = False
        """The plane multiplies what is brought with its weight while it sums."""
        self.weight = 1.0
        """Of this worker's contributions to the open round."""
        self._results = [allocate(), allocate()]
        contributions = None if in_place else allocate()
        self._contributions = [contributions or results for results in self._results]
        self._parts = [
            list(map(Part, *both)) for both in zip(self._contributions, self._results, strict=True)
        ]

    @property
    def contributions(self) -> list[Buffer]:
        """What this worker brings to the open round."""
        return self._contributions[0]

    @property
    def results(self) -> list[Buffer]:
        """Where the open round's sums arrive. Nobody writes here but who sums: members that are not
        through the round yet may still read what this worker has of it, until the next one, or a
        build."""
        return self._results[0]

    @property
    def record(self) -> list[Buffer]:
        """The sums of the round that was committed last."""
        return self._results[1]

    @property
    def parts(self) -> list[Part]:
        """The open round's, with the weight that holds now."""
        moves: Sequence[Move | None] = self._moves or [None] * len(self.layout)
        return [
            part._replace(weight=self.weight, narrowing=shape.narrowing, move=move)
            for part, shape, move in zip(self._parts[0], self.layout, moves, strict=True)
        ]

    def fuse_update(self, moves: Sequence[Move], mark: int) -> bool:
        """Have the open round's sums go right into the next state, each by one of ``moves``.

        Whether they will: the same for all members. ``mark``: the same for all who do the same with
        sums, and not 0. Local.
        """
        if self.state is None or self.in_place:
            return False
        self.state.stand()
        self._moves = moves
        return True

    @property
    def fused(self) -> bool:
        """Whether the open round's sums go right into the next state."""
        return bool(self._moves)

    def unfuse(self) -> None:
        """The open round's sums are left as they are."""
        self._moves = ()

    def advance(self) -> None:
        """The round that was committed last was aimed: the next state counts now."""
        assert self.state is not None
        for move, total in zip(self._moves, self.record, strict=True):
            move(slice(None), [total], [1.0])
        self.state.exchange()

    def leave(self) -> None:
        """What counts is in memory of this worker's own from now on, until sums go there again."""
        if self.state is not None:
            self.state.unshare()

    def bring_nothing(self) -> None:
        """Add nothing to the open round's sums."""
        if self.weighs:
            self.weight = 0.0
        else:
            fill(self.contributions, 0)

    def every_contribution(self) -> Iterator[tuple[int, Buffer]]:
        """Of this round and of the next, if they are not the same: which array, and the array."""
        for contributions in self._contributions:
            yield from enumerate(contributions)

    def turn(self) -> None:
        """The open round is committed: its sums are the record."""
        for turns in (self._results, self._contributions, self._parts):
            turns.reverse()


class Start(NamedTuple):
    """Begin to sum ``part``, of an arena of this fabric, over all members; replies a handle.

    Collective. Lost or given up, its result holds rubbish.
    """

    part: Part


@dataclass(frozen=True)
class Proceed:
    """Go on with what was started while the worker does something else. Local, returns at once.

    As far as the plane can: it may leave all of it to `Wait`.
    """


class Wait(NamedTuple):
    """Wait until all of these are through."""

    handles: Sequence[Handle]


@dataclass(frozen=True)
class Cancel:
    """Give these up, whatever became of them. Local; replies when their memory is at peace."""

    handles: Sequence[Handle]


@dataclass(frozen=True)
class Reduce:
    """Start ``parts`` and wait for them, where nothing is to be done meanwhile. Collective."""

    parts: Sequence[Part]


@dataclass(frozen=True)
class AddUp:
    """Have ``part`` in a sum that this worker makes up with its neighbours, in place of what it
    had in there before, and copy that sum to ``total``, as it is just now. Local; waits for nobody.

    Replies how many of the workers ``among`` make it up: this one, and those that share memory with
    it. If that is nobody else, nothing is done.

    There are no locks: all add to the same memory, element by element, whenever they like. What two
    add to an element at the same moment may be there only once, and ``total`` may have some of what
    is being added. What a worker has in the sum stays there when it dies; if it dies over it, some
    elements have it and others do not. So what must be right, nobody may take from there. Each
    ``round`` has a sum of its own, that begins with nothing: no worker comes to a round before all
    have done with the one before.
    """

    part: Sequence[Buffer]
    total: Sequence[Buffer]
    """Of the same dtypes and sizes."""
    round: int
    among: Sequence[WorkerId]


Sum = Callable[[Part], None]
"""Sums one part over all members, blocking; raises `PeersLost`."""


class Line(ABC):
    """Messages between this worker and others. Those of one ring from one worker to another come in
    the order in which they were sent."""

    @abstractmethod
    def send(self, to: WorkerId, ring: int, what: Buffer) -> Handle:
        """Begin to send; ``what`` stays as it is until this is through. May raise `PeersLost`."""

    @abstractmethod
    def receive(self, source: WorkerId, ring: int, room: Buffer) -> Handle:
        """Have a message come to ``room``, which has its size. May raise `PeersLost`."""

    @abstractmethod
    def through(self) -> list[Handle]:
        """Wait until some of what is under way is through, or for a moment: then there is none.
        Raises `PeersLost`."""

    @abstractmethod
    def give_up(self) -> None:
        """Forget all that is under way. Some of it may still be read, or come to its room."""


class Ways(NamedTuple):
    """What a plane has of the fabric that it belongs to."""

    total: Sum
    """The slow way that always works."""
    broken: Callable[[], bool]
    """Whether a member is lost, as far as is known here, or has met a loss. Local."""
    line: Line | None = None
    """From worker to worker, where there is such a thing."""
    threads: bool = True
    """Whether both may be used by any thread."""


class Between(NamedTuple):
    """How some parts were summed between hosts."""

    hosts: list[list[WorkerId]]
    """Where workers are: host by host, in the order of summation."""
    ways: list[str]
    """Of each part, as `protocol.host_ring` has it."""
    choices: list[Choice | None]
    """Of each part, why it goes its way from now on, if several were tried among these members."""


class Plane(ABC):
    """One way to sum over all members. It is told who they are, and finds out where they are."""

    def card(self) -> bytes:
        """What others must know to share memory with this worker, in `CARD_BYTES` at most."""
        return b""

    def reach(self, cards: Mapping[WorkerId, bytes]) -> bool:
        """Whether this worker can share memory with all of these. Local."""
        return False

    @abstractmethod
    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """From now on these are summed over, in this order; nothing is under way. Local.

        ``together``: all of them have said, when they came, that they can reach all others.
        """

    @abstractmethod
    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Memory for rounds of this ``layout``, all zero. Local.

        ``name``: of an arena for many rounds, in which all workers use the one that they gave this
        name last. A plane may do more for it than for one without. ``state``: what its sums may go
        right into.
        """

    @abstractmethod
    def start(self, part: Part) -> Handle:
        """Begin to sum ``part``; may take as long as the sum does, and raise `PeersLost`."""

    @abstractmethod
    def wait(self, handles: Sequence[Handle]) -> None:
        """Return once the results of all of these are there. Raises `PeersLost`."""

    @abstractmethod
    def cancel(self, handles: Sequence[Handle]) -> None:
        """Give these up: once it returns, nothing touches their memory any more."""

    def proceed(self) -> None:
        """Go on with what was started, beside the caller, until it is waited for or given up.
        Local, returns at once; what goes wrong is raised by `start` or `wait`."""
        return

    def dead(self) -> Collection[WorkerId]:
        """Members that are dead for certain, as far as this plane sees it by itself. Local."""
        return ()

    def interrupt(self) -> None:
        """Have others look at once whether the data path is revoked. Local."""
        return

    def is_everywhere(self, buffer: Buffer) -> bool:
        """Whether it is the same memory for all members. Local, and the same for all."""
        return False

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """How these parts of one arena were summed over these workers; None if it was in their
        order, or as MPI does it. Local."""
        return None

    # Boards.

    def show(self, board: PublishedModel | None) -> None:
        """This is where neighbours find this worker's model from now on; None: nowhere. Local."""
        return

    def is_near(self, worker: WorkerId) -> bool:
        """Whether this worker's and that one's boards can be read by both. Local, and both find
        the same."""
        return False

    def board_of(self, worker: WorkerId, form: ModelForm) -> PublishedModel | None:
        """A near worker's; None if it has none of this form, or is dead. Local."""
        return None

    # Sums without locks.

    def add_up(self, asked: AddUp) -> int:
        """As `AddUp`; by itself a plane shares no memory."""
        return 1

    def move_on(self) -> None:
        """The members are in another training from now on: what was added up counts no more."""
        return

    def perform(self, request: Start | Proceed | Wait | Cancel | Reduce | AddUp) -> int | None:
        """Do what is asked; returns the handle of what is started, or how many add up."""
        match request:
            case Start(part):
                return self.start(part)
            case Proceed():
                self.proceed()
            case Wait(handles):
                self.wait(handles)
            case Cancel(handles):
                self.cancel(handles)
            case Reduce(parts):
                self._reduce(parts)
            case AddUp():
                return self.add_up(request)
        return None

    def _reduce(self, parts: Sequence[Part]) -> None:
        started: list[Handle] = []
        try:
            for part in parts:
                started.append(self.start(part))
            self.wait(started)
        except PeersLost:
            self.cancel(started)
            raise


def private_arena(
    layout: Sequence[Shape], in_place: bool, state: DoubleBuffer | None = None
) -> Arena:
    """An arena in memory of this process alone."""

    def allocate() -> list[Buffer]:
        return [shape.backend.zeros(shape.dtype, shape.size) for shape in layout]

    return Arena(layout, allocate, in_place, state)


class InPlacePlane(Plane):
    """Part by part, each at once and in place: the least memory, and what MPI does fastest."""

    def __init__(self, ways: Ways) -> None:
        self._total = ways.total

    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Results where the contributions were."""
        return private_arena(layout, in_place=True)

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Nothing depends on who they are."""

    def start(self, part: Part) -> Handle:
        """Returns when the result is there."""
        self._total(part)
        return 0

    def wait(self, handles: Sequence[Handle]) -> None:
        """They are there already."""

    def cancel(self, handles: Sequence[Handle]) -> None:
        """None of them is under way."""


class Apart(Plane):
    """Results apart from contributions, and nothing is summed before it is waited for.

    No faster than `InPlacePlane`. To the layers above it is as faster planes are, and so tests hold
    them against it.
    """

    def __init__(self, ways: Ways) -> None:
        self._total = ways.total
        self._started: dict[Handle, Part] = {}
        self._last = 0

    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Contributions that stay as they are."""
        return private_arena(layout, in_place=False, state=state)

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Whatever was under way for others must have been given up."""
        if self._started:
            raise RuntimeError(f"{len(self._started)} parts are under way among other members")

    def start(self, part: Part) -> Handle:
        """Returns at once."""
        self._last += 1
        self._started[self._last] = part
        return self._last

    def wait(self, handles: Sequence[Handle]) -> None:
        """In the order in which they were started: the same for all members."""
        for handle in sorted(handles):
            self._total(self._started[handle])
            del self._started[handle]

    def cancel(self, handles: Sequence[Handle]) -> None:
        """They are forgotten."""
        for handle in handles:
            self._started.pop(handle, None)
