"""Operators: one stage of synchronisation each, composed with ``>>``.

A step's chain has one collective operator. Before it, stages only prepare; what it contributes is
reduced in a round of the ledger; when the round is complete, `complete` runs through the chain
from there on, on every worker with the same bits. An operator gets what it needs in the step,
never in its constructor: neither the number of workers nor the buffers are frozen in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.buffers import Layout
from spotmpi.fabric import Buffer
from spotmpi.optimizers import Optimizer


@dataclass
class Step:
    """One training step on one worker, as its operators see it."""

    layout: Layout
    optimizer: Optimizer
    params: Sequence[Buffer]
    slots: Mapping[str, list[Buffer]]
    update: Sequence[Buffer] = ()
    """What the stages so far have made of the gradient: a sum ..."""
    scale: float = 1.0
    """... and what it is to be multiplied with."""
    rate: float = 0.0
    """The learning rate of this step."""


class Operator:
    """One stage of a chain."""

    collective = False
    """It contributes to the step's round."""

    def contribute(self, step: Step, grads: Any, weight: float, contribution: list[Buffer]) -> None:
        """Fill ``contribution`` from this worker's gradient. Collective operators only; local.

        Called again if the round is tried again: the same gradient, the same contribution.
        """
        raise NotImplementedError(f"{self} takes no part in a round")

    def complete(self, step: Step) -> None:
        """The round is complete: do this stage's part. Local, and the same on every worker."""

    def __rshift__(self, then: Operator | Chain) -> Chain:
        return Chain((self,)) >> then

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


@dataclass(frozen=True)
class Chain:
    """Operators in the order in which they run."""

    operators: tuple[Operator, ...]

    def __rshift__(self, then: Operator | Chain) -> Chain:
        return Chain((*self.operators, *(then.operators if isinstance(then, Chain) else (then,))))

    def __str__(self) -> str:
        return " >> ".join(map(str, self.operators))


class GradientAverage(Operator):
    """The average of all workers' gradients, weighted by samples: g = sum(w_i g_i) / sum(w_i)."""

    collective = True

    def contribute(self, step: Step, grads: Any, weight: float, contribution: list[Buffer]) -> None:
        """Pack w_i g_i; the division follows in the update, fused with it."""
        step.layout.pack(grads, contribution, weight)


class Apply(Operator):
    """The optimizer's update of the parameters with what the stages before made of the gradient."""

    def complete(self, step: Step) -> None:
        """One fused pass over the parameters."""
        step.optimizer.update(step.params, step.update, step.slots, step.rate, step.scale)
