"""Operators: one stage of synchronisation each, composed with ``>>``.

An operator is a frozen declaration. `Operator.init` says what it remembers, `Operator.run` is its
part of one step: a generator of requests. `Contribute` opens the step's round and is answered with
its sums, on every worker with the same bits. `Publish` shows a model to the others, and `Fetch` is
answered with the latest one that came from another worker, if any has: nobody waits for either. A
local operator yields nothing. An operator gets what it needs in the step, never in its constructor:
neither the number of workers nor the buffers are frozen in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from typing import Any

from spotmpi.arrays.backend import HOST, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.narrowing import FORMATS
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import Buffer, Fetch, Publish
from spotmpi.optimizers import Optimizer
from spotmpi.optimizers.numbers import finite
from spotmpi.protocol.membership import WorkerId

RESTS = ("narrow/rest", "narrow/following")
"""What `Narrow` remembers."""

Bring = Callable[[Sequence[Buffer]], None]
"""Fills buffers of the layout; as often as it is called, with the same."""


def fragment(buckets: int, fragments: int, number: int) -> range:
    """The buckets that the round of this number carries, if fragments of the model take turns."""
    many = min(fragments, buckets)
    return range(number % many, buckets, many)


@dataclass(frozen=True)
class Weighted:
    """What brings ``weight`` times what ``pack`` fills buffers with: the weight is the number of
    the gradient's samples, or less where it was clipped.

    A data plane that multiplies while it sums takes the two apart (`spotmpi.fabric.Arena.weighs`).
    """

    pack: Callable[[Sequence[Buffer], float], None]
    """Fills buffers with so many times what there is; with 1, it may find it there already."""
    weight: float
    """0: it brings nothing, whatever there is."""

    def __call__(self, flats: Sequence[Buffer]) -> None:
        """As any `Bring`."""
        if self.weight:
            self.pack(flats, self.weight)
        else:
            fill(flats, 0)


@dataclass(frozen=True)
class Moment:
    """Where one step of one worker stands: in the training, and in its round."""

    samples: float = 1.0
    """What this worker's gradient stands for; 0: it has none that counts."""
    share: float = 1.0
    """The same of all its steps of the round."""
    last: bool = True
    """The last step of a round: the one that has it."""
    after: int = 1
    """So many steps of the training are taken with it."""
    rate: float = 0.0
    """The learning rate of a step that a worker takes for itself."""
    round: int = 0
    """Rounds of steps before this one."""
    sends: bool = False
    """What the round is brought is made with this step, though steps may follow before it ends: of
    a strategy with operators that are `Operator.ahead`."""
    many: int = 1
    """Of the steps that are taken with it so many are new: one, but where workers are
    `Operator.paced`; and only there: ..."""
    others: Sequence[WorkerId] = ()
    """... who else is in the training, ..."""
    chance: float = 0.0
    """... and a number of this worker and this step, at least 0 and less than 1, at random."""


@dataclass
class Step:
    """One training step on one worker, as its operators see it."""

    layout: Layout
    optimizer: Optimizer | None
    params: Sequence[Buffer]
    """This worker's own."""
    memory: Mapping[str, Sequence[Buffer]] = field(default_factory=dict)
    """What the optimizer remembers, by name."""
    state: Mapping[str, Sequence[Buffer]] = field(default_factory=dict)
    """What the operators remember, by the names that they gave it."""
    room: Callable[[], Sequence[Buffer]] = tuple
    """Memory for what is made of the gradient before the round; `own` uses it."""
    now: Moment = Moment()
    bring: Bring = lambda _buffers: None
    """What the stages so far have made of this worker's gradient, times its samples ..."""
    update: Sequence[Buffer] | None = None
    """... and of the round's sums, or, before the round, of that gradient; None: nothing yet."""
    scale: float = 1.0
    """What `update` is to be multiplied with."""
    rate: float = 0.0
    """The learning rate that holds: before the round this worker's own, then the round's."""
    weight: float = 1.0
    """Samples of all workers who brought something to the round's sums."""
    active: int = 1
    """Workers who brought something to them."""
    many: int = 1
    """Steps that are being taken: one before the round, then all of the round."""

    def own(self) -> None:
        """Make this worker's own mean gradient the `update`; only where it counts."""
        flats = self.room()
        if isinstance(self.bring, Weighted):
            self.bring.pack(flats, 1.0)
            self.scale = self.bring.weight / self.now.samples
        else:
            self.bring(flats)
            self.scale = 1.0 / self.now.samples
        self.update = flats


@dataclass(frozen=True)
class Contribute:
    """Open the round of this step: sum what ``bring`` writes over all workers. Replies the sums.

    ``bring`` may be called again if the round is tried again.
    """

    bring: Bring


Run = Generator[Contribute | Publish | Fetch, Any, None]


class Operator:
    """One stage of a chain."""

    @property
    def collective(self) -> bool:
        """Whether it takes part in rounds."""
        return False

    @property
    def piecewise(self) -> bool:
        """Whether it brings the gradient to its round as it was given, so that the round can begin
        before all of it is there."""
        return False

    @property
    def moves(self) -> bool:
        """Whether it changes parameters: before the round that makes the replicas differ, until
        the round brings them together."""
        return False

    @property
    def centre(self) -> str | None:
        """The name of what it remembers that is the model of all, if the parameters never are: a
        checkpoint keeps it, and newcomers begin with it."""
        return None

    @property
    def paced(self) -> bool:
        """Whether workers take as many steps as they can on the way to a round, and not all as
        many: nothing that it does needs another worker in the same step."""
        return False

    @property
    def at_once(self) -> bool:
        """Whether all that follows from a round's sums is the optimizer's update with their
        average: then each element of the next state follows from that element of the sums."""
        return False

    @property
    def steps(self) -> int:
        """How many steps a round is long, as far as this operator has one."""
        return 1

    @property
    def ahead(self) -> int:
        """What it brings to a round is made so many steps before the round ends, and travels while
        they are taken."""
        return 0

    @property
    def fragments(self) -> int:
        """A round carries one of so many parts of the model; they take turns."""
        return 1

    @property
    def narrow(self) -> str | None:
        """The format in which sums of its rounds travel between hosts; None: as they are."""
        return None

    def init(self, layout: Layout) -> Mapping[str, State]:
        """What it remembers from step to step, as it is at first; the names are its own."""
        return {}

    def start(self, step: Step) -> None:
        """Training begins, and all hold the same parameters: what it remembers of them is made
        here. Not called where it is given: by a checkpoint, or by the others."""

    def early(self, step: Step) -> Contribute | None:
        """What it brings to the round, in the step that `Moment.sends` it; if it is `ahead`."""
        return None

    def run(self, step: Step) -> Run:
        """Its part of a step. What comes before the request is done once for each step, what
        comes after it when the round is complete, on every worker alike."""
        yield from ()

    def follow(self, step: Step) -> Iterator[Operator]:
        """The operators of it that a worker runs which has no gradient: it learns from the
        round's result, and does what all do with it."""
        yield self

    def __rshift__(self, then: Operator) -> Chain:
        if not isinstance(then, Operator):
            return NotImplemented  # a strategy, which knows how to begin with this
        return Chain((self,)) >> then

    def __str__(self) -> str:
        values: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        said = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in values)
        return f"{type(self).__name__}({said})"


@dataclass(frozen=True)
class Chain(Operator):
    """Operators in the order in which they run."""

    operators: tuple[Operator, ...]

    @property
    def collective(self) -> bool:
        """Whether one of them is."""
        return any(operator.collective for operator in self.operators)

    @property
    def piecewise(self) -> bool:
        """Whether the first one does that has to do with the gradient."""
        first = (one for one in self.operators if one.narrow is None)
        return any(one.piecewise for one in itertools.islice(first, 1))

    @property
    def moves(self) -> bool:
        """Whether one of them does."""
        return any(operator.moves for operator in self.operators)

    @property
    def apart(self) -> bool:
        """Whether workers change their parameters each for itself, before the round."""
        before = itertools.takewhile(lambda one: not one.collective, self.operators)
        return any(operator.moves for operator in before)

    @property
    def centre(self) -> str | None:
        """Of the one that has it."""
        return next((one.centre for one in self.operators if one.centre is not None), None)

    @property
    def paced(self) -> bool:
        """Whether one of them has it so."""
        return any(operator.paced for operator in self.operators)

    @property
    def at_once(self) -> bool:
        """Whether it is an average and its application, and nothing more."""
        stages = [type(one) for one in self.operators if one.narrow is None]
        return stages == [GradientAverage, Apply]

    @property
    def steps(self) -> int:
        """Of the collective one."""
        return max(operator.steps for operator in self.operators)

    @property
    def ahead(self) -> int:
        """Of the collective one."""
        return max(operator.ahead for operator in self.operators)

    @property
    def fragments(self) -> int:
        """Of the collective one."""
        return max(operator.fragments for operator in self.operators)

    @property
    def narrow(self) -> str | None:
        """Of the one that says so."""
        return next((one.narrow for one in self.operators if one.narrow is not None), None)

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Of all of them."""
        found: dict[str, State] = {}
        for operator in self.operators:
            for name, state in operator.init(layout).items():
                if name in found:
                    raise ValueError(f"two operators of {self} call what they remember {name}")
                found[name] = state
        return found

    def start(self, step: Step) -> None:
        """All of them."""
        for operator in self.operators:
            operator.start(step)

    def early(self, step: Step) -> Contribute | None:
        """Of the collective one."""
        found = (operator.early(step) for operator in self.operators)
        return next((one for one in found if one is not None), None)

    def run(self, step: Step) -> Run:
        """One after the other."""
        for operator in self.operators:
            yield from operator.run(step)

    def follow(self, step: Step) -> Iterator[Operator]:
        """From the collective one on."""
        begun = False
        for operator in self.operators:
            begun = begun or operator.collective
            if begun:
                yield from operator.follow(step)

    def __rshift__(self, then: Operator) -> Chain:
        if not isinstance(then, Operator):
            return NotImplemented
        return Chain((*self.operators, *(then.operators if isinstance(then, Chain) else (then,))))

    def __str__(self) -> str:
        return " >> ".join(map(str, self.operators))


@dataclass(frozen=True)
class Every(Operator):
    """``then``, once in so many steps; in the others nothing.

    If it has a round, rounds are so many steps long, or shorter at the end of a pass. Else it comes
    whenever the number of steps has reached or passed a multiple of ``count``.
    """

    count: int
    then: Operator

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"Every({self.count}, {self.then}) counts steps, expected at least 1")

    @property
    def collective(self) -> bool:
        """Whether what comes now and then is."""
        return self.then.collective

    @property
    def moves(self) -> bool:
        """Whether what comes now and then does."""
        return self.then.moves

    @property
    def paced(self) -> bool:
        """Whether what comes now and then has it so."""
        return self.then.paced

    @property
    def centre(self) -> str | None:
        """Of what comes now and then."""
        return self.then.centre

    @property
    def steps(self) -> int:
        """As many as it says, if they end with a round."""
        return self.count if self.collective else 1

    @property
    def ahead(self) -> int:
        """Of what comes now and then, within one round."""
        return min(self.then.ahead, self.count - 1)

    @property
    def fragments(self) -> int:
        """Of what comes now and then."""
        return self.then.fragments

    @property
    def narrow(self) -> str | None:
        """Of what comes now and then."""
        return self.then.narrow

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Of what comes now and then."""
        return self.then.init(layout)

    def start(self, step: Step) -> None:
        """Of what comes now and then."""
        self.then.start(step)

    def early(self, step: Step) -> Contribute | None:
        """Of what comes now and then."""
        return self.then.early(step)

    def run(self, step: Step) -> Run:
        """Where it is due."""
        if self._due(step):
            yield from self.then.run(step)

    def follow(self, step: Step) -> Iterator[Operator]:
        """Who learns sees rounds only."""
        if self.collective:
            yield from self.then.follow(step)
        else:
            yield self

    def _due(self, step: Step) -> bool:
        if self.collective:
            return step.now.last or step.now.sends
        return step.now.after // self.count > (step.now.after - step.many) // self.count

    def __str__(self) -> str:
        return f"Every({self.count}, {self.then})"


@dataclass(frozen=True)
class Narrow(Operator):
    """Sums of float32 travel between hosts in a narrower ``form``: "bf16", "fp16" or "int8".

    It holds for the round of its chain: ``Narrow("int8") >> SSGD()``. What the format takes away
    from a sum, the worker that narrowed it adds to the next one (error feedback): see
    `arrays.narrowing`. Within a host, and where MPI sums what is small, nothing is narrowed.
    """

    form: str

    def __post_init__(self) -> None:
        if self.form not in FORMATS:
            raise UsageError(
                f"Narrow({self.form!r}) is no format, expected one of {', '.join(FORMATS)}"
            )

    @property
    def narrow(self) -> str | None:
        """It says so."""
        return self.form

    def init(self, layout: Layout) -> Mapping[str, State]:
        """The rest that this worker has, in two sets that take turns. In the memory of the host,
        where sums travel from."""
        there = replace(layout, backend=HOST)
        return {name: State(there.allocate(), Scope.LOCAL) for name in RESTS}

    def __str__(self) -> str:
        return f"Narrow({self.form!r})"


@dataclass(frozen=True)
class Clip(Operator):
    """A gradient g that is longer than ``norm`` is made that long (Pascanu et al. 2013)::

        g <- g * min(1, norm / |g|),  |g| = sqrt(sum(g**2)) over all arrays

    Before the round, g is this worker's own mean gradient, and after it the average of all:
    ``Clip(1.0) >> GradientAverage() >> Apply()`` or ``GradientAverage() >> Clip(1.0) >> Apply()``.
    The sum is made in float64. A gradient with NaN or infinity in it keeps some.
    """

    norm: float

    def __post_init__(self) -> None:
        if finite("Clip: norm", self.norm) <= 0:
            raise UsageError(f"Clip: norm is {self.norm}, expected more than 0, as 1.0")

    def run(self, step: Step) -> Run:
        """One pass that reads: what is multiplied is what the gradient is multiplied with later."""
        yield from ()
        if step.update is not None:
            step.scale *= self._factor(step.update, step.scale)
            return
        brought = step.bring
        if not isinstance(brought, Weighted):
            raise UsageError(
                f"{self} finds no gradient of this worker's own, as an operator before it has "
                "changed that: put it first, or behind GradientAverage()"
            )
        if brought.weight:
            room = step.room()
            brought.pack(room, 1.0)
            step.bring = Weighted(brought.pack, brought.weight * self._factor(room, 1.0))

    def _factor(self, flats: Sequence[Buffer], scale: float) -> float:
        squares = 0.0
        for flat in flats:
            squares += kernels_for(flat).sum_of_squares(flat)
        length = scale * math.sqrt(squares)
        return self.norm / length if length > self.norm else 1.0

    def __str__(self) -> str:
        return f"Clip({self.norm})"


class GradientAverage(Operator):
    """The average of all workers' gradients, weighted by samples: g = sum(w_i g_i) / sum(w_i)."""

    @property
    def collective(self) -> bool:
        """It has a round."""
        return True

    @property
    def piecewise(self) -> bool:
        """What comes first in a chain is given the gradient itself."""
        return True

    def run(self, step: Step) -> Run:
        """Sum w_i g_i; the division follows in the update, fused with it."""
        step.update = yield Contribute(step.bring)
        step.scale = 1.0 / step.weight


class Apply(Operator):
    """The optimizer's update of the parameters with what the stages before made of the gradient:
    after a round of the sums, before it of this worker's own."""

    @property
    def moves(self) -> bool:
        """It does."""
        return True

    def run(self, step: Step) -> Run:
        """One fused pass over the parameters."""
        if step.optimizer is None:
            raise UsageError(f"{self} needs an optimizer, and a group has none: use a Trainer")
        yield from ()
        if step.update is None:
            if not step.now.samples:
                return
            step.own()
        assert step.update is not None
        known = step.params, step.update, step.memory, step.rate, step.scale
        step.optimizer.apply(step.layout, *known)
