"""Operators: each is one stage of synchronisation, and ``>>`` composes them.

An operator is a frozen declaration. `Operator.init` returns what it remembers. `Operator.run` is
its part of one step: a generator of requests. `Contribute` opens the step's round; the reply is the
round's sums, with the same bits on every worker. `Publish` shows a model to the others. The reply
to `Fetch` is the latest model that has arrived from another worker, if any has. `AddUp` adds
something to a sum that the workers of a host share. No worker waits for the last three. A local
operator yields nothing. An operator finds what it needs in the step, never in its constructor: it
freezes neither the number of workers nor the buffers.
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
"""Names of the states that `Narrow` remembers."""


class Operator:
    """One stage of a chain."""

    @property
    def collective(self) -> bool:
        """True if it takes part in rounds."""
        return False

    @property
    def piecewise(self) -> bool:
        """True if it brings the gradient to its round as it was given. Then the round can begin
        before all of the gradient is there."""
        return False

    @property
    def moves(self) -> bool:
        """True if it changes parameters. Before the round this makes the replicas differ, until the
        round brings them together."""
        return False

    @property
    def carries(self) -> Literal["gradients", "models"] | None:
        """The kind of arrays that its round carries: gradients, or models (also changes of models).
        If it carries models, workers may move these before it. None: something else."""
        return None

    @property
    def leaves_apart(self) -> bool:
        """True if workers go on with different models after its round."""
        return False

    @property
    def follows(self) -> Literal["gradients", "models"] | None:
        """What must be equal on all workers where it stands behind a round; None: nothing. An
        operator that needs equal models does not stand before a round."""
        return None

    @property
    def needs_before(self) -> Sequence[type[Operator]]:
        """Operators of which one must stand before it in its chain; empty: it needs none."""
        return ()

    @property
    def needs_behind(self) -> Sequence[type[Operator]]:
        """Operators of which one must stand behind it; empty: it needs none."""
        return ()

    @property
    def centre(self) -> str | None:
        """The name of the state that holds the model of all, if the operator keeps it apart from
        the parameters. A checkpoint keeps it, and newcomers begin with it. None: it keeps none."""
        return None

    @property
    def paced(self) -> bool:
        """True if each worker takes as many steps as it can on the way to a round, so their numbers
        differ. It needs no other worker in the same step. It stands before the round."""
        return False

    @property
    def at_once(self) -> bool:
        """True if nothing follows from a round's sums but the optimizer's update with their
        average. Then each element of the next state follows from the same element of the sums."""
        return False

    @property
    def steps(self) -> int:
        """Steps of one round, if this operator has a round; else 1."""
        return 1

    @property
    def ahead(self) -> int:
        """Steps from the making of its contribution to the end of the round. The contribution
        travels during these steps."""
        return 0

    @property
    def fragments(self) -> int:
        """Number of parts of the model that take turns: each round carries one."""
        return 1

    @property
    def narrow(self) -> str | None:
        """The format in which sums of its rounds travel between hosts; None: as they are."""
        return None

    def stages(self) -> Iterator[Operator]:
        """Yield the operators that it is made of, in the order in which they run."""
        yield self

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return what it remembers from step to step, with its first values, by its own names."""
        return {}

    def start(self, step: Step) -> None:
        """Make what it remembers of the parameters, when training begins and all workers hold the
        same. Not called if a checkpoint or the other workers give this state."""

    def early(self, step: Step) -> Contribute | None:
        """Return its contribution, in the step where `StepPosition.sends`; None: it is not
        `ahead`."""
        return None

    def run(self, step: Step) -> Run:
        """Do its part of a step. The code before the request runs once for each step. The code
        after it runs when the round is complete, on every worker alike."""
        yield from ()

    def follow(self, step: Step) -> Iterator[Operator]:
        """Yield those of its operators that a worker without a gradient runs. Such a worker learns:
        it does what all do with the round's result."""
        yield self

    def __rshift__(self, then: Operator) -> Chain:
        if not isinstance(then, Operator):
            return NotImplemented  # then a strategy's own `__rrshift__` is called
        return Chain((self,)) >> then

    def __str__(self) -> str:
        values: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        said = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in values)
        return f"{type(self).__name__}({said})"


def _part(operator: Operator, step: Step) -> Run:
    """Return an operator's part of a step. Raises UsageError if that is no generator."""
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
        """True if one of its operators is collective."""
        return any(operator.collective for operator in self.operators)

    @property
    def piecewise(self) -> bool:
        """True if its first operator is piecewise, not counting those that narrow."""
        first = (one for one in self.operators if one.narrow is None)
        return any(one.piecewise for one in itertools.islice(first, 1))

    @property
    def moves(self) -> bool:
        """True if one of its operators changes parameters."""
        return any(operator.moves for operator in self.operators)

    @property
    def apart(self) -> bool:
        """True if workers change their parameters, each for itself, before the round."""
        before = itertools.takewhile(lambda one: not one.collective, self.stages())
        return any(operator.moves for operator in before)

    @property
    def centre(self) -> str | None:
        """The centre of its first operator that has one."""
        return next((one.centre for one in self.operators if one.centre is not None), None)

    @property
    def paced(self) -> bool:
        """True if one of its operators is paced."""
        return any(operator.paced for operator in self.operators)

    @property
    def at_once(self) -> bool:
        """True if it is an average and its application, and nothing more but narrowing."""
        stages = [type(one) for one in self.operators if one.narrow is None]
        return stages == [GradientAverage, Apply]

    @property
    def averages(self) -> bool:
        """True if its round averages gradients."""
        return any(isinstance(one, GradientAverage) for one in self.operators)

    @property
    def steps(self) -> int:
        """Steps of one round, from the collective operator."""
        return max(operator.steps for operator in self.operators)

    @property
    def ahead(self) -> int:
        """Steps from contribution to end of round, as the collective operator says."""
        return max(operator.ahead for operator in self.operators)

    @property
    def fragments(self) -> int:
        """Number of parts that take turns, as the collective operator says."""
        return max(operator.fragments for operator in self.operators)

    @property
    def narrow(self) -> str | None:
        """The format of its first operator that narrows."""
        return next((one.narrow for one in self.operators if one.narrow is not None), None)

    def stages(self) -> Iterator[Operator]:
        """Yield the stages of all its operators, in order."""
        for operator in self.operators:
            yield from operator.stages()

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return what all its operators remember. Raises UsageError if two use the same name."""
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
        """Start all its operators."""
        for operator in self.operators:
            operator.start(step)

    def early(self, step: Step) -> Contribute | None:
        """Return the contribution of the collective operator."""
        found = (operator.early(step) for operator in self.operators)
        return next((one for one in found if one is not None), None)

    def run(self, step: Step) -> Run:
        """Run its operators one after the other."""
        for operator in self.operators:
            yield from _part(operator, step)

    def follow(self, step: Step) -> Iterator[Operator]:
        """Yield its operators from the collective one on."""
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
    """``then``, once in ``count`` steps; in the other steps it does nothing.

    If ``then`` has a round, rounds are ``count`` steps long, or shorter at the end of a pass.
    Otherwise ``then`` runs whenever the number of steps has reached or passed a multiple of
    ``count``.
    """

    count: int
    then: Operator

    def __post_init__(self) -> None:
        whole("Every: count", self.count, 1)

    @property
    def collective(self) -> bool:
        """True if ``then`` is collective."""
        return self.then.collective

    @property
    def moves(self) -> bool:
        """True if ``then`` changes parameters."""
        return self.then.moves

    @property
    def paced(self) -> bool:
        """True if ``then`` is paced."""
        return self.then.paced

    @property
    def centre(self) -> str | None:
        """The centre of ``then``."""
        return self.then.centre

    @property
    def steps(self) -> int:
        """Steps of one round: ``count`` if ``then`` has a round, else 1."""
        return self.count if self.collective else 1

    @property
    def ahead(self) -> int:
        """Steps from contribution to end of round, as ``then`` says, but within one round."""
        return min(self.then.ahead, self.count - 1)

    @property
    def fragments(self) -> int:
        """Number of parts that take turns, as ``then`` says."""
        return self.then.fragments

    @property
    def narrow(self) -> str | None:
        """The format of ``then``."""
        return self.then.narrow

    def stages(self) -> Iterator[Operator]:
        """Yield the stages of ``then``."""
        yield from self.then.stages()

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return what ``then`` remembers."""
        return self.then.init(layout)

    def start(self, step: Step) -> None:
        """Start ``then``."""
        self.then.start(step)

    def early(self, step: Step) -> Contribute | None:
        """Return the contribution of ``then``."""
        return self.then.early(step)

    def run(self, step: Step) -> Run:
        """Run ``then`` if it is due in this step."""
        if self._due(step):
            yield from _part(self.then, step)

    def follow(self, step: Step) -> Iterator[Operator]:
        """Yield what a learning worker runs: it sees rounds only, not the steps between them."""
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

    This holds for the round of its chain: ``Narrow("int8") >> SSGD()``. The worker that narrowed a
    sum adds what the format took away to the next sum (error feedback): see `arrays.narrowing`.
    Nothing is narrowed within a host, or where MPI sums small arrays.
    """

    form: str

    def __post_init__(self) -> None:
        if self.form not in FORMATS:
            raise UsageError(
                f"Narrow({self.form!r}) is no format, expected one of {', '.join(FORMATS)}"
            )

    @property
    def narrow(self) -> str | None:
        """The format in which sums travel: ``form``."""
        return self.form

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return what the format has taken from this worker's sums, in two sets that take turns.
        They are in the memory of the host, as sums travel from there."""
        there = replace(layout, backend=HOST)
        return {name: State(there.allocate(), Scope.LOCAL) for name in RESTS}

    def __str__(self) -> str:
        return f"Narrow({self.form!r})"


@dataclass(frozen=True)
class Clip(Operator):
    """A gradient g that is longer than ``norm`` is made that long (Pascanu et al. 2013)::

        g <- g * min(1, norm / |g|),  |g| = sqrt(sum(g**2)) over all arrays

    Before the round, g is this worker's own mean gradient. After it, g is the average or the sum of
    all: ``Clip(1.0) >> GradientAverage() >> Apply()`` or
    ``GradientAverage() >> Clip(1.0) >> Apply()``. The sum of squares is made in float64. A gradient
    with NaN or infinity in it keeps some.
    """

    norm: float

    def __post_init__(self) -> None:
        if finite("Clip: norm", self.norm) <= 0:
            raise UsageError(f"Clip: norm is {self.norm}, expected more than 0, as 1.0")

    def run(self, step: Step) -> Run:
        """Read the gradient once. Only its factor changes, and later passes multiply with it."""
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
    """An operator whose round carries what was made of gradients."""

    @property
    def collective(self) -> bool:
        """True: it has a round."""
        return True

    @property
    def piecewise(self) -> bool:
        """True: the first operator of a chain is given the gradient itself."""
        return True

    @property
    def carries(self) -> Literal["gradients"]:
        """The kind of arrays that its round carries: gradients."""
        return "gradients"


class GradientAverage(_OfGradients):
    """The average of all workers' gradients, weighted by samples: g = sum(w_i g_i) / sum(w_i)."""

    def run(self, step: Step) -> Run:
        """Sum w_i g_i. The update does the division, in the same pass."""
        step.update = yield Contribute(step.bring)
        step.scale = 1.0 / step.weight


class GradientSum(_OfGradients):
    """The sum of all workers' mean gradients, without weights: g = sum(g_i).

    A worker counts once, however many samples it was dealt. A worker that was dealt none brings
    nothing. The sum grows with the number of workers, so the learning rate should not:
    ``Trainer(scale_lr="none")``.
    """

    def run(self, step: Step) -> Run:
        """Divide the gradient by its number of samples, which makes it g_i, and sum that."""
        step.update = yield Contribute(_mean(step.bring, step.now.share))
        step.scale = 1.0


def _mean(bring: Bring, samples: float) -> Bring:
    """Return a `Bring` of a gradient divided by its number of samples; zeros if there are none."""
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
    """The optimizer's update of the parameters with what earlier stages made of the gradient:
    behind a round of its sums, before a round of this worker's own gradient."""

    @property
    def moves(self) -> bool:
        """True: it changes the parameters."""
        return True

    @property
    def follows(self) -> Literal["gradients"]:
        """Gradients: behind a round, all workers must have the same sums of them."""
        return "gradients"

    def run(self, step: Step) -> Run:
        """Update the parameters in one fused pass."""
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
