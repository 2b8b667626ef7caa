"""Operators: one stage of synchronisation each, composed with ``>>``.

An operator is a frozen declaration. `Operator.init` says what it remembers, `Operator.run` is its
part of one step: a generator of requests. `Contribute` opens the step's round and is answered with
its sums, on every worker with the same bits. `Publish` shows a model to the others, and `Fetch` is
answered with the latest one that came from another worker, if any has. `AddUp` puts something into
a sum that workers of a host make up between them. Nobody waits for any of these. A
local operator yields nothing. An operator gets what it needs in the step, never in its constructor:
neither the number of workers nor the buffers are frozen in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from spotmpi.arrays.backend import HOST, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.narrowing import FORMATS
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import Buffer
from spotmpi.operators.step import Bring, Contribute, Run, Step, Weighted
from spotmpi.optimizers.numbers import finite, whole

RESTS = ("narrow/rest", "narrow/following")
"""What `Narrow` remembers."""


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
    def carries(self) -> Literal["gradients", "models"] | None:
        """What its round brings together: gradients, or what workers have made of their models, so
        that they may move these before it. None: something else."""
        return None

    @property
    def leaves_apart(self) -> bool:
        """Whether workers go on with models of their own after its round."""
        return False

    @property
    def follows(self) -> Literal["gradients", "models"] | None:
        """What must be the same on all workers where it stands behind a round; None: nothing. What
        needs the same models does not stand before one."""
        return None

    @property
    def needs_before(self) -> Sequence[type[Operator]]:
        """One of these must stand before it in its chain; none: it needs none."""
        return ()

    @property
    def needs_behind(self) -> Sequence[type[Operator]]:
        """One of these must stand behind it; none: it needs none."""
        return ()

    @property
    def centre(self) -> str | None:
        """The name of what it remembers that is the model of all, if the parameters never are: a
        checkpoint keeps it, and newcomers begin with it."""
        return None

    @property
    def paced(self) -> bool:
        """Whether workers take as many steps as they can on the way to a round, and not all as
        many: nothing that it does needs another worker in the same step. It stands before the
        round."""
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

    def stages(self) -> Iterator[Operator]:
        """The operators that it is made of, in the order in which they run."""
        yield self

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


def _part(operator: Operator, step: Step) -> Run:
    """An operator's part of a step. UsageError if it is no generator: somebody forgot to yield."""
    part: object = operator.run(step)
    if not isinstance(part, Generator):
        raise UsageError(
            f"{operator}: its run returns {part!r}, and must be a generator, which has a yield in "
            "it: end it with `yield from ()` if it asks for nothing"
        )
    return part


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
        before = itertools.takewhile(lambda one: not one.collective, self.stages())
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
    def averages(self) -> bool:
        """Whether its round averages gradients."""
        return any(isinstance(one, GradientAverage) for one in self.operators)

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

    def stages(self) -> Iterator[Operator]:
        """Of all of them."""
        for operator in self.operators:
            yield from operator.stages()

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Of all of them."""
        found: dict[str, State] = {}
        for operator in self.operators:
            for name, state in operator.init(layout).items():
                if name in found:
                    raise UsageError(
                        f"two operators of {self} call what they remember {name}: leave out one of "
                        "them, or give it another name"
                    )
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
            yield from _part(operator, step)

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
        whole("Every: count", self.count, 1)

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

    def stages(self) -> Iterator[Operator]:
        """Of what comes now and then."""
        yield from self.then.stages()

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
            yield from _part(self.then, step)

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

    Before the round, g is this worker's own mean gradient, and after it the average of all, or
    their sum: ``Clip(1.0) >> GradientAverage() >> Apply()`` or
    ``GradientAverage() >> Clip(1.0) >> Apply()``.
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


class _OfGradients(Operator):
    """Its round carries what was made of the gradient."""

    @property
    def collective(self) -> bool:
        """It has a round."""
        return True

    @property
    def piecewise(self) -> bool:
        """What comes first in a chain is given the gradient itself."""
        return True

    @property
    def carries(self) -> Literal["gradients"]:
        """These."""
        return "gradients"


class GradientAverage(_OfGradients):
    """The average of all workers' gradients, weighted by samples: g = sum(w_i g_i) / sum(w_i)."""

    def run(self, step: Step) -> Run:
        """Sum w_i g_i; the division follows in the update, fused with it."""
        step.update = yield Contribute(step.bring)
        step.scale = 1.0 / step.weight


class GradientSum(_OfGradients):
    """The sum of all workers' mean gradients, each as it is: g = sum(g_i).

    A worker counts once, however many samples it was dealt; one that was dealt none brings nothing.
    The sum grows with the number of workers, so the learning rate should not:
    ``Trainer(scale_lr="none")``.
    """

    def run(self, step: Step) -> Run:
        """What there is stands for so many samples: divided by them it is g_i."""
        step.update = yield Contribute(_mean(step.bring, step.now.share))
        step.scale = 1.0


def _mean(bring: Bring, samples: float) -> Bring:
    """What brings a gradient times so many samples, without them; nothing if there are none."""
    if isinstance(bring, Weighted):
        return replace(bring, weight=bring.weight / samples if samples else 0.0)

    def divided(flats: Sequence[Buffer]) -> None:
        if not samples:
            fill(flats, 0)
            return
        bring(flats)
        for flat in flats:
            kernels_for(flat).blend(flat, flat, 1.0 / samples, 0.0)

    return divided


class Apply(Operator):
    """The optimizer's update of the parameters with what the stages before made of the gradient:
    after a round of the sums, before it of this worker's own."""

    @property
    def moves(self) -> bool:
        """It does."""
        return True

    @property
    def follows(self) -> Literal["gradients"]:
        """Their sums."""
        return "gradients"

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
