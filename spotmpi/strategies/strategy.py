"""A strategy: a chain of operators, of which one has a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import State
from spotmpi.errors import UsageError
from spotmpi.fabric import Buffer
from spotmpi.fabric import Steps as Asks
from spotmpi.operators import Chain, Contribute, Narrow, Operator, Quorum, Run, Step, misfit, unsaid

__all__ = ["Strategy", "complete"]


class Strategy:
    """A chain with one collective operator. ``Strategy(GradientAverage() >> Apply())``.

    UsageError for operators that do not fit together: which one needs what, and where.
    """

    def __init__(self, chain: Operator) -> None:
        self.name: str | None = None
        """As ``--strategy`` takes it: of the strategies that come with spotmpi, and of no other."""
        self.chain = chain if isinstance(chain, Chain) else Chain((chain,))
        stages = list(self.chain.stages())
        collective = sum(operator.collective for operator in stages)
        if collective != 1:
            raise UsageError(
                f"a strategy has exactly one collective operator, and {chain} has "
                f"{collective}: begin with GradientAverage() >> Apply()"
            )
        if (why := misfit(self.chain)) is not None:
            raise UsageError(f"the operators of {chain} do not fit together: {why}")
        for one in stages:
            if hidden := unsaid(one):
                raise UsageError(
                    f"{one} has {', '.join(hidden)}, which its name does not say, so workers could "
                    f"not tell it from another one: write @dataclass(frozen=True) over the class "
                    f"{type(one).__name__}, with all that it has as fields"
                )
        self.steps = self.chain.steps
        """A round is so many steps long, and comes with the last of them."""
        self.piecewise = self.chain.piecewise
        """A round can begin before all of the gradient is there."""
        self.at_once = self.chain.at_once
        """The next state can be made while gradients are summed."""
        self.averages = self.chain.averages
        """A round carries gradients, and their average counts."""
        self.apart = self.chain.apart
        """Workers move their parameters, and what the optimizer remembers, each for itself."""
        self.ahead = self.chain.ahead
        """What is brought to a round is made so many steps before it ends."""
        self.fragments = self.chain.fragments
        """A round carries one of so many parts of the model."""
        self.paced = self.chain.paced
        """On the way to a round workers take as many steps as they can in the same time."""
        if self.paced and (self.ahead or not self.apart):
            raise UsageError(
                f"{chain}: workers that go at their own pace must train their own models, and "
                "bring them to a round when it is due: begin with Apply(), and have no delay"
            )
        self.quorum = next((one for one in stages if isinstance(one, Quorum)), None)
        """What is enough for a round, though some are late; None: it waits for all."""
        self.centre = self.chain.centre
        """The name of the model of all, if it is none that anybody trains; None: after a round
        parameters are equal on all workers."""
        forms = sum(operator.narrow is not None for operator in stages)
        if forms > 1:
            raise UsageError(f"{chain} narrows {forms} times, expected at most once")
        self.narrow = self.chain.narrow
        """The format in which its sums travel between hosts; None: as they are."""

    @property
    def called(self) -> str:
        """Its name, or else what it is made of: two strategies that differ are called different."""
        return self.name or str(self)

    def init(self, layout: Layout) -> Mapping[str, State]:
        """What its operators remember."""
        return self.chain.init(layout)

    def start(self, step: Step) -> None:
        """All begin to train, with equal parameters."""
        self.chain.start(step)

    def early(self, step: Step) -> Contribute:
        """What is brought to the round of a strategy that is `ahead`, in the step that sends it."""
        found = self.chain.early(step)
        assert found is not None
        return found

    def begin(self, step: Step) -> Asks[tuple[Contribute | None, Run]]:
        """All of ``step`` up to its round; None and a run that is over if it has none. Local."""
        return (yield from _first(self.chain.run(step)))

    def follow(self, step: Step) -> Run:
        """The same for a worker that learns, at its round: only what comes after that."""
        run = Chain(tuple(self.chain.follow(step))).run(step)
        next(run, None)
        return run

    def __rrshift__(self, before: Operator) -> Strategy:
        found = Strategy(before >> self.chain)
        if self.name is not None and isinstance(before, Narrow):
            found.name = f"{self.name}{',' if ':' in self.name else ':'}narrow={before.form}"
        return found

    def __str__(self) -> str:
        return str(self.chain)


def _first(run: Run) -> Asks[tuple[Contribute | None, Run]]:
    reply: Any = None
    try:
        while not isinstance(asked := run.send(reply), Contribute):
            reply = yield asked
    except StopIteration:
        return None, run
    return asked, run


def complete(run: Run, sums: Sequence[Buffer]) -> None:
    """The round is complete with these sums: the rest of the step. Local, alike on all workers."""
    try:
        run.send(sums)
    except StopIteration:
        return
    raise UsageError("an operator asks for something after the round of its step")
