"""The learning rate: what the script wants, and how it follows the number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from spotmpi.optimizers.schedules import pack, rate_at, unpack
from spotmpi.protocol.membership import WorkerId
from spotmpi.training.state.progress import Progress

__all__ = ["SCALES", "Rate"]

SCALES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda share: share,
    "sqrt": math.sqrt,
    "none": lambda _share: 1.0,
}
"""Factor of the learning rate, by the share that the present workers are of the reference."""


class Factor(NamedTuple):
    """Factor of the learning rate that the script wants, on its way from one value to another."""

    value: float
    start: float
    end: float
    taken: int
    """Steps since it left ``start``."""
    whole: int
    """Steps of all the way from ``start`` to ``end``."""

    def towards(self, end: float, steps: int, warmup: int) -> Factor:
        """Return the factor after ``steps`` more steps. The way to a new ``end`` takes ``warmup``
        steps, or what remains of the way that it was on."""
        start, taken, whole = self.start, self.taken, self.whole
        if end != self.end:
            start, taken, whole = self.value, 0, max(warmup, whole - taken)
        taken = min(taken + steps, whole)
        value = end if taken == whole else start + (end - start) * taken / whole
        return Factor(value, start, end, taken, whole)


class Rate:
    """The learning rate that the script wants, and how it follows the number of workers."""

    def __init__(
        self, lr: Any, reference: int | None = None, scale: str = "linear", warmup: int = 0
    ) -> None:
        """``lr``: has the rate as ``lr``, which may be set. ``scale``: one of `SCALES`. ``warmup``:
        steps in which the rate comes to a new value when the number of workers changes."""
        self._lr = lr
        self.reference = reference
        """Number of workers that the rate is meant for; None until it is known."""
        self._scale = scale
        self._warmup = warmup
        self._factor: Factor | None = None
        """Factor of the last step; None before the first."""
        self._drawn: Factor | None = None
        """Factor of the next round, as `now` computed it."""
        self._progress = Progress(0)

    def follow(self, progress: Progress) -> None:
        """Take the number of the step, for schedules, from ``progress``."""
        self._progress = progress

    @property
    def how(self) -> str:
        """How the rate follows the workers, as text: equal on workers that do the same."""
        return f"scale_lr={self._scale!r}, lr_warmup={self._warmup}"

    @property
    def asked(self) -> float:
        """Rate that the script wants for the next step. The script may change it between steps."""
        return rate_at(self._lr.lr, self._progress.steps)

    def now(self, active: int, asked: float, steps: int = 1) -> float:
        """Return the rate of a round of ``steps`` steps, to which ``active`` slots contribute."""
        assert self.reference is not None
        end = SCALES[self._scale](active / self.reference)
        self._drawn = Factor(end, end, end, self._warmup, self._warmup)
        if self._factor is not None:
            self._drawn = self._factor.towards(end, steps, self._warmup)
        return asked * self._drawn.value

    def taken(self) -> None:
        """Keep the factor that `now` computed: its round has moved the parameters."""
        self._factor = self._drawn

    def begin_again(self, steps: int) -> None:
        """Let the rate rise from 0 to its value in the next ``steps`` steps."""
        if steps and self._factor is not None:
            whole = max(steps, self._factor.whole - self._factor.taken)
            self._factor = self._factor._replace(value=0.0, start=0.0, taken=0, whole=whole)

    def kept(self) -> Mapping[str, Any]:
        """Return the reference and the factor. The rate itself is the script's."""
        factor = {} if self._factor is None else self._factor._asdict()
        return {
            "lr/reference": self.reference,
            **{f"lr/factor/{name}": value for name, value in factor.items()},
        }

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on with a checkpoint's factor, and its reference unless the script gives one."""
        if self.reference is None:
            self.reference = int(str(found["lr/reference"]))
        names = {name: f"lr/factor/{name}" for name in Factor._fields}
        known = {name: found[key] for name, key in names.items() if key in found}
        if known.keys() | {"whole"} == names.keys():  # an earlier version kept no `whole`
            self._factor = Factor(**{"whole": self._warmup, **known})

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Return the reference, the rate and the factor."""
        factor = self._factor if contributors is None else self._drawn
        return [self.reference, pack(self._lr.lr), factor]

    def restore(self, told: Any) -> None:
        """Take the other workers' rate, even if the script has changed its own meanwhile."""
        reference, lr, factor = told
        self.reference = int(reference)
        self._factor = None if factor is None else Factor(*factor)
        if lr is not None:
            self._lr.lr = unpack(lr)
