"""One worker's replica of the model: its buffers, and what a committed round does to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from spotmpi.buffers import Layout, Tape, digest_of, kept, read_only
from spotmpi.errors import UsageError
from spotmpi.fabric import Arena, Buffer, Shape
from spotmpi.operators import Step
from spotmpi.optimizers import Optimizer
from spotmpi.strategies import Strategy

P = TypeVar("P")


class Replica(Generic[P]):
    """Parameters, the optimizer's memory, and the arrays of rounds. Local, all of it.

    What is kept for a retry, if the data plane works in place, are the arrays that a contribution
    was packed from: they are the script's, and the script waits (docs/adr/0005).
    """

    def __init__(self, params: P, optimizer: Optimizer, strategy: Strategy) -> None:
        self._layout = layout = Layout.of(cast(Any, params))
        self._params = layout.allocate()
        layout.pack(cast(Any, params), self._params, 1.0, what="params")
        self.params = cast(P, read_only(layout.views(self._params)))
        self._slots = {name: layout.allocate() for name in optimizer.slots}
        self._strategy = strategy
        self._step = Step(layout, optimizer, self._params, self._slots)
        self.arena: Arena
        """Of the rounds that move parameters; `furnish` makes it."""

    def furnish(self, arena: Callable[[Sequence[Shape]], Arena]) -> None:
        """Get memory for rounds, from the data plane."""
        self.arena = arena([Shape(bucket.dtype, bucket.size) for bucket in self._layout.buckets])

    @property
    def signature(self) -> int:
        """Equal on two workers if their parameters have the same structure."""
        return self._layout.signature

    @property
    def size(self) -> int:
        """Parameters, counted as numbers."""
        return sum(bucket.size for bucket in self._layout.buckets)

    def tape(self) -> tuple[Tape, int]:
        """The registered state, as one row of words that are the live ones; and in how many sets
        of the parameters' size. In each the larger elements come first, so that none of them
        begins at an odd word."""
        sets = [sorted(flats, key=_largest_first) for flats in self._registered().values()]
        return Tape([flat for flats in sets for flat in flats]), len(sets)

    # Before a round: what this worker brings.

    def bring(self, grads: Any, weight: float) -> None:
        """A gradient that stands for ``weight`` samples; UsageError if it does not fit."""
        self._strategy.contribute(self._step, grads, weight, self.arena.contributions)

    def bring_nothing(self) -> None:
        """Nothing to add to the sum."""
        for flat in self.arena.contributions:
            flat[...] = 0

    def bring_params(self, mine: bool) -> None:
        """The parameters themselves if they are the ones that count, else nothing."""
        self.bring_nothing()
        if mine:
            for flat, params in zip(self.arena.contributions, self._params, strict=True):
                flat[...] = params

    def first_not_finite(self) -> str | None:
        """The name of an array of the gradient that holds a NaN or an infinity."""
        return self._layout.check_finite(self.arena.contributions)

    # After a round: what its result does.

    def apply(self, rate: float, scale: float) -> None:
        """Move the parameters by the step whose sum is the record, all at once."""
        step = self._step
        step.update, step.rate, step.scale = self.arena.record, rate, scale
        self._strategy.complete(step)

    def rehearse(self, grads: Any) -> None:
        """All that a step does here, of a replica whose state counts for nothing yet: so that
        nobody waits for kernels to load and for memory to come when it does."""
        for _ in range(2):
            self.bring(grads, 1.0)
            self.arena.turn()
        self.apply(0.0, 1.0)
        self.digest()

    def take_params(self) -> None:
        """The record holds the parameters to begin with."""
        for params, flat in zip(self._params, self.arena.record, strict=True):
            params[...] = flat

    def digest(self) -> int:
        """64 bits over the parameters' bits; one pass over memory."""
        return digest_of(self._params)

    # The registered state.

    def state(self) -> dict[str, Any]:
        """Parameters and the optimizer's memory by name: live arrays, to be copied or written."""
        found: dict[str, Any] = {}
        for name, flats in self._registered().items():
            views = self._layout.views(flats)
            items = views.items() if isinstance(views, dict) else enumerate(views)
            found.update({f"{name}/{key}": view for key, view in items})
        return found

    def restore(self, state: Mapping[str, Any], where: str) -> None:
        """Take over what `state` held; UsageError if it is of another model or optimizer."""
        for name, array in self.state().items():
            found = kept(state.get(name))
            if found is None or found.shape != array.shape or found.dtype != array.dtype:
                got = "nothing" if found is None else f"{found.dtype} of shape {found.shape}"
                raise UsageError(
                    f"the checkpoint {where} holds {got} for {name}, and this run needs "
                    f"{array.dtype} of shape {array.shape}: resume with the script, the model and "
                    "the optimizer that it was written by, or train without --resume"
                )
            array[...] = found

    def _registered(self) -> dict[str, list[Buffer]]:
        slots = {f"optimizer/{name}": flats for name, flats in self._slots.items()}
        return {"params": self._params, **slots}


def _largest_first(flat: Buffer) -> int:
    return -int(flat.itemsize)
