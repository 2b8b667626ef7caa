"""A strategy: what workers do before a round, in it, and after it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spotmpi.arrays.backend import HOST, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import Buffer
from spotmpi.fabric import Steps as Asks
from spotmpi.operators import (
    Apply,
    Asking,
    Bring,
    GradientAverage,
    Narrow,
    Operator,
    Step,
)
from spotmpi.strategies.fitting import lacks, misfits, unsaid
from spotmpi.strategies.slots import Due, slots_of

__all__ = ["RESTS", "Strategy"]

RESTS = ("narrow/rest", "narrow/following")
"""Names of the states that hold what a narrow format has taken from this worker's sums: two sets
that take turns."""
_SENT = "sent"
"""Name of the state that holds a contribution that is made before the end of its round."""


class Strategy:
    """Operators with exactly one round: ``Strategy(GradientAverage() >> Apply())``.

    Raises UsageError for operators that do not fit together: it says which one needs what, and
    where.
    """

    def __init__(self, chain: Operator) -> None:
        self.name: str | None = None
        """Its name for ``--strategy``; None for a strategy that does not come with spotmpi."""
        slots = slots_of(chain)
        self.before, self.meeting, self.after, self.every, self.wire, self.quorum = slots
        """See `Slots`."""
        self.chain = slots.chain
        if (why := next(misfits(slots), None)) is not None:
            raise UsageError(f"the operators of {chain} do not fit together: {why}")
        stages = [due.stage for due in self.before]
        self._operators = *stages, self.meeting, *(due.stage for due in self.after)
        for one in self._operators:
            if (lacking := lacks(one)) is not None:
                raise UsageError(f"{one} has no {lacking}: write one in its class")
            if hidden := unsaid(one):
                raise UsageError(
                    f"{one} has {', '.join(hidden)}, which its name does not say, so workers could "
                    f"not tell it from another one: write @dataclass(frozen=True) over the class "
                    f"{type(one).__name__}, with all that it has as fields"
                )
        self.delay, self.fragments = self.meeting.delay, self.meeting.fragments
        self.local_models = any(one.moves for one in stages)
        """True if workers move parameters and the optimizer's memory before the round, each for
        itself."""
        self.asynchronous = self.quorum is not None or any(one.asynchronous for one in stages)
        """True if workers take as many steps as they can on the way to a round."""
        self.piecewise = self.meeting.piecewise and not stages and self.every == 1
        """True if a round can begin before all of the gradient is there."""
        averages = type(self.meeting).apply is GradientAverage.apply
        self.fusable = averages and [type(due.stage) for due in self.after] == [Apply]
        """True if nothing follows from a round's sums but the optimizer's update with their
        average. Then each element of the next state follows from the same element of the sums."""

    @property
    def called(self) -> str:
        """Its name, or else its operators. Two strategies that differ are called differently."""
        return self.name or str(self)

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return what its operators remember. Raises UsageError if two use the same name."""
        found: dict[str, State] = {}
        if self.wire is not None:  # sums travel from the memory of the host
            there = replace(layout, backend=HOST)
            found |= {name: State(there.allocate(), Scope.LOCAL) for name in RESTS}
        if self.delay:
            found[_SENT] = State(layout.allocate(), Scope.LOCAL)
        for operator in self._operators:
            for name, state in operator.init(layout).items():
                if name in found:
                    raise UsageError(
                        f"two operators of {self} call what they remember {name}: leave out one of "
                        "them, or give it another name"
                    )
                found[name] = state
        return found

    def start(self, step: Step) -> None:
        """Start its operators: all workers begin to train, with equal parameters."""
        for operator in self._operators:
            operator.start(step)

    def prepare(self, step: Step) -> Asks[None]:
        """Do what this worker does by itself in a step, before its round if it has one. Local."""
        for due in self.before:
            if due.now(step) and (asking := _run(due, step)) is not None:
                yield from asking

    def contribute(self, step: Step) -> Bring:
        """Return what this worker brings to the round: in its last step, and before that in the one
        where `StepPosition.sends`."""
        if not self.delay:
            return self.meeting.contribute(step)
        sent = [step.state[_SENT][number] for number in step.carried(self.fragments)]
        if step.now.sends:
            self.meeting.contribute(step)(sent)

        def again(flats: Sequence[Buffer]) -> None:
            if not step.now.share:
                fill(flats, 0)
                return
            for flat, made in zip(flats, sent, strict=True):
                kernels_for(flat).pack(flat, [made], 1.0)

        return again

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Do the rest of a step, with the sums of its complete round. Local, alike on all workers,
        also on one that learns and brought nothing. Raises UsageError if a stage asks for
        something."""
        self.meeting.apply(step, sums)
        for due in self.after:
            if due.now(step) and (asking := _run(due, step)) is not None:
                for _ in asking:
                    raise UsageError(f"{due.stage} asks for something after the round of its step")

    def __rrshift__(self, before: Operator) -> Strategy:
        found = Strategy(before >> self.chain)
        if self.name is not None and isinstance(before, Narrow):
            found.name = f"{self.name}{',' if ':' in self.name else ':'}narrow={before.form}"
        return found

    def __str__(self) -> str:
        return str(self.chain)


def _run(due: Due, step: Step) -> Asking | None:
    """Return a stage's requests in a step. Raises UsageError if it returns something else."""
    asking: Any = due.stage.run(step)
    if asking is None or isinstance(asking, Generator):
        return asking
    raise UsageError(
        f"{due.stage}: its run returns {asking!r}, expected nothing, or a generator of requests"
    )
