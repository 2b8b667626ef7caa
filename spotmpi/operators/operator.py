"""Operators: what strategies are made of. ``>>`` composes them.

A `Stage` is local: it is this worker's own part of a step, or what all workers do alike with a
round's result. A `Meeting` has a round: it says what a worker contributes, and what all do with the
sums. `Every` says how often something is done, `Narrow` and `Quorum` how the round is held.

Each is a frozen declaration. `Operator.init` returns what it remembers. An operator finds all that
it needs in the step, never in its constructor: it freezes neither the number of workers nor the
buffers.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal

from spotmpi.arrays.layout import Layout
from spotmpi.arrays.narrowing import FORMATS
from spotmpi.arrays.registry import State
from spotmpi.errors import UsageError
from spotmpi.fabric import AddUp, Buffer, Fetch, Publish
from spotmpi.operators.step import Bring, Step
from spotmpi.optimizers.numbers import finite, whole, within

__all__ = ["Asking", "Chain", "Every", "Meeting", "Narrow", "Operator", "Quorum", "Stage"]

Asking = Generator[Publish | Fetch | AddUp, Any, None]
"""Requests of a stage. `Publish` shows a model to the other workers. The reply to `Fetch` is the
latest model that has arrived from another worker, if any has. `AddUp` adds something to a sum that
the workers of a host share. No worker waits for any of them."""

Kind = Literal["gradients", "models"]


class Operator:
    """A part of a strategy: a `Stage`, a `Meeting`, or what says something of the round.

    ``needs``: operators of which one must be in the same strategy; empty: it needs none.
    """

    needs: ClassVar[Sequence[type[Operator]]] = ()

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return what it remembers from step to step, with its first values, by its own names."""
        return {}

    def start(self, step: Step) -> None:
        """Make what it remembers of the parameters, when training begins and all workers hold the
        same. Not called if a checkpoint or the other workers give this state."""

    def __rshift__(self, then: Operator) -> Chain:
        if not isinstance(then, Operator):
            return NotImplemented  # then a strategy's own `__rrshift__` is called
        return Chain((self,)) >> then

    def __str__(self) -> str:
        values: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        said = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in values)
        return f"{type(self).__name__}({said})"


class Stage(Operator):
    """A local operator. Before the round it works on what is this worker's own, in each step. After
    the round all workers do the same with the same numbers. Its class says what it is:

    ``moves``: True if it changes parameters. Before the round this makes the workers' models
        differ, until the round brings them together.
    ``works_on``: "gradients" if it uses what earlier operators made of the gradient; "models" if it
        needs equal models, so it does not stand before the round; None: neither.
    ``accumulates``: True if it keeps gradients from step to step, until their round.
    ``asynchronous``: True if it needs no other worker in the same step. Then each worker takes as
        many steps as it can on the way to a round. It stands before the round.
    """

    moves: ClassVar[bool] = False
    works_on: ClassVar[Kind | None] = None
    accumulates: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False

    def run(self, step: Step) -> Asking | None:
        """Do its part of a step. It may be a generator of requests, before the round."""
        raise NotImplementedError


class Meeting(Operator):
    """An operator that has a round. Its class says what it is:

    ``carries``: the kind of arrays that its round carries: "gradients", or "models" (also changes
        of models). If it carries models, workers may move these before it. None: something else.
    ``averages``: True if its round averages gradients.
    ``piecewise``: True if it brings the gradient as it was given, times a factor. Then its round
        can begin before all of the gradient is there.
    ``alone``: True if only one contribution counts, from the first worker that was dealt samples.
        If that worker is lost before any other has the sums, the next one's counts.
    ``centre``: the name of the state that holds the model of all, if it is kept apart from the
        parameters. A checkpoint keeps it, and newcomers begin with it. None: the parameters are the
        model of all.
    ``delay``: steps from the making of a contribution to the end of its round, which carries
        models. In these steps nothing may change what all workers agree on: only `apply` may. It
        must not depend on `Step.rate`, `Step.many` and ``now.after``: a newcomer may be told those
        of a whole round, though the script has cut it short.
    ``fragments``: number of parts of the model that take turns: each round carries one
        (`Step.carried`).
    """

    carries: ClassVar[Kind | None] = None
    averages: ClassVar[bool] = False
    piecewise: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    centre: ClassVar[str | None] = None
    delay: int = 0
    fragments: int = 1

    @property
    def equalises(self) -> bool:
        """True if all workers go on with equal models after its round."""
        return True

    def contribute(self, step: Step) -> Bring:
        """Return a function that fills buffers with what this worker brings. It is asked for once
        for each round. A round that is tried again calls the function again, which must fill in the
        same. A worker without samples (``step.now.share`` is 0) brings zeros."""
        raise NotImplementedError

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Go on with the sums of the round. They have the same bits on all workers, and may only be
        read. Called when the round is complete, also on a worker that learns and brought nothing.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Chain(Operator):
    """Operators in the order in which they run."""

    operators: tuple[Operator, ...]

    def __rshift__(self, then: Operator) -> Chain:
        if not isinstance(then, Operator):
            return NotImplemented
        return Chain((*self.operators, *(then.operators if isinstance(then, Chain) else (then,))))

    def __str__(self) -> str:
        return " >> ".join(map(str, self.operators))


@dataclass(frozen=True)
class Every(Operator):
    """``then``, once in ``count`` steps.

    If ``then`` has a round, rounds are ``count`` steps long, or shorter at the end of a pass. If it
    is a stage, it runs whenever the number of steps has reached or passed a multiple of ``count``.
    """

    count: int
    then: Operator

    def __post_init__(self) -> None:
        whole("Every: count", self.count, 1)

    def __str__(self) -> str:
        return f"Every({self.count}, {self.then})"


@dataclass(frozen=True)
class Narrow(Operator):
    """Sums of float32 travel between hosts in a narrower ``form``: "bf16", "fp16" or "int8".

    This holds for the round of its strategy: ``Narrow("int8") >> SSGD()``. The worker that narrowed
    a sum adds what the format took away to the next sum (error feedback): see `arrays.narrowing`.
    Nothing is narrowed within a host, or where MPI sums small arrays.
    """

    form: str

    def __post_init__(self) -> None:
        if self.form not in FORMATS:
            raise UsageError(
                f"Narrow({self.form!r}) is no format, expected one of {', '.join(FORMATS)}"
            )

    def __str__(self) -> str:
        return f"Narrow({self.form!r})"


@dataclass(frozen=True)
class Quorum(Operator):
    """The round waits for no worker that is late. Once ``share`` of all workers have taken their
    steps, and ``grace`` seconds have passed since, every other worker takes no more steps of its
    own. It brings to the round what it has done so far::

        n_i: samples of the steps that worker i has taken, not all samples that it was dealt

    The rest of its samples are dealt again. A worker finds this out between two steps, by its own
    clock. It begins no step that would probably end too late. A worker that is to leave or to stop
    takes no further step, and then the others take none either.
    """

    share: float = 0.75
    grace: float = 0.5

    def __post_init__(self) -> None:
        within("quorum", self.share, 0, 1, above=True)
        if finite("grace", self.grace) < 0:
            raise UsageError(f"grace is {self.grace}, expected 0 or more seconds")

    def of(self, workers: int) -> int:
        """Return how many of this many workers make a quorum."""
        return math.ceil(round(self.share * workers, 9))
