"""A strategy: a chain of operators, exactly one of which has a round."""

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
    """A chain with one collective operator: ``Strategy(GradientAverage() >> Apply())``.

    Raises UsageError for operators that do not fit together: it says which one needs what, and
    where.
    """

    def __init__(self, chain: Operator) -> None:
        self.name: str | None = None
        """Its name for ``--strategy``; None for a strategy that does not come with spotmpi."""
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
        """Steps of one round. The round comes with the last of them."""
        self.piecewise = self.chain.piecewise
        """True if a round can begin before all of the gradient is there."""
        self.at_once = self.chain.at_once
        """True if the next state can be made while gradients are summed."""
        self.averages = self.chain.averages
        """True if a round averages gradients."""
        self.apart = self.chain.apart
        """True if workers move parameters and the optimizer's memory before the round, each for
        itself."""
        self.ahead = self.chain.ahead
        """Steps from the making of a contribution to the end of its round."""
        self.fragments = self.chain.fragments
        """Number of parts of the model that take turns: each round carries one."""
        self.paced = self.chain.paced
        """True if workers take as many steps as they can on the way to a round."""
        if self.paced and (self.ahead or not self.apart):
            raise UsageError(
                f"{chain}: workers that go at their own pace must train their own models, and "
                "bring them to a round when it is due: begin with Apply(), and have no delay"
            )
        self.quorum = next((one for one in stages if isinstance(one, Quorum)), None)
        """Says how many workers are enough for a round; None: it waits for all."""
        self.centre = self.chain.centre
        """The name of the model of all, if no worker trains that model itself; None: parameters are
        equal on all workers after a round."""
        forms = sum(operator.narrow is not None for operator in stages)
        if forms > 1:
            raise UsageError(f"{chain} narrows {forms} times, expected at most once")
        self.narrow = self.chain.narrow
        """The format in which its sums travel between hosts; None: as they are."""

    @property
    def called(self) -> str:
        """Its name, or else its chain. Two strategies that differ are called differently."""
        return self.name or str(self)

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return what its operators remember."""
        return self.chain.init(layout)

    def start(self, step: Step) -> None:
        """Start its operators: all workers begin to train, with equal parameters."""
        self.chain.start(step)

    def early(self, step: Step) -> Contribute:
        """Return the contribution of a strategy that is `ahead`, in the step that sends it."""
        found = self.chain.early(step)
        assert found is not None
        return found

    def begin(self, step: Step) -> Asks[tuple[Contribute | None, Run]]:
        """Do ``step`` up to its round. Returns the contribution, or None if the step has no round,
        and the run of the operators. Local."""
        return (yield from _first(self.chain.run(step)))

    def follow(self, step: Step) -> Run:
        """Return a run for a worker that learns: only what comes after the round."""
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
    """Do the rest of the step, with the sums of its complete round. Local, alike on all workers.
    Raises UsageError if an operator asks for something after the round."""
    try:
        run.send(sums)
    except StopIteration:
        return
    raise UsageError("an operator asks for something after the round of its step")
