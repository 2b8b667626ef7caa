"""Whether the model is finite. NaN and infinity do not heal: what is trained with them becomes like
them, and so does every checkpoint from then on.

All workers look at the same piece of the model after each round of steps, at another one each time,
and at all of it where the mean loss is not finite. So each of them finds it at once, mostly in the
round that it came with, and whoever brought it can say so. What is not finite when the training
begins may stay so.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from spotmpi.arrays.backend import HOST
from spotmpi.arrays.registry import Registry
from spotmpi.arrays.structure import called
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.protocol.membership import WorkerId

_LOG = logging.getLogger(__name__)

_PIECES = 64
"""The model is looked at in so many rounds, ..."""

_LEAST = 1 << 16
"""... or in fewer: so many elements at a time, which takes microseconds."""

_ON_A_DEVICE = 16
"""Rounds from one look to the next where the host would have to wait for it."""

_MODEL, _SPARED = "params", "not_finite/"
"""In the registry, and before the names of arrays in what is kept."""


class _Found(NamedTuple):
    """What was not finite any more, ..."""

    step: int
    array: str
    brought: bool
    """... and whether this worker had brought something like it to the round."""

    @property
    def why(self) -> str:
        """What that means, and what to do."""
        return (
            f"{self.array} holds NaN or infinity, which no later step heals; the last finite "
            "checkpoint stays. With Trainer(check_finite=True) the job ends before such a gradient "
            "counts, and says whose it is and of which batch"
        )


class Finite:
    """One worker's watch over its model. Local, all of it."""

    def __init__(self, registry: Registry, params: str) -> None:
        """``params``: what scripts call them."""
        self._registry = registry
        self._called = params
        self._spared: frozenset[str] = frozenset()
        self._found: _Found | None = None
        self._told = False

    # What must survive.

    def kept(self) -> Mapping[str, Any]:
        """The arrays that are spared, which mostly are none."""
        return {_SPARED + name: True for name in self._spared}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """The same are."""
        names = (name for name in found if name.startswith(_SPARED))
        self._spared = frozenset(name.removeprefix(_SPARED) for name in names)

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Their names."""
        return sorted(self._spared)

    def restore(self, told: Any) -> None:
        """As the others have them."""
        self._spared = frozenset(map(str, told))

    # The model.

    def begin(self) -> None:
        """Training begins with this model."""
        layout, flats = self._registry.arrays(_MODEL)
        self._spared = frozenset(f"{_MODEL}/{key}" for key in layout.not_finite(flats))

    def look(self, number: int, step: int, loss: float | None, brought: Callable[[], bool]) -> None:
        """A round of steps is complete: of this ``number``, with this ``step``, and this mean
        ``loss``. ``brought``: whether this worker brought something that is not finite."""
        if self._found is not None or self._seems_finite(number, loss):
            return
        if (array := self._first()) is not None:
            self._found = _Found(step, array, brought())

    def _seems_finite(self, number: int, loss: float | None) -> bool:
        if loss is not None and not math.isfinite(loss):
            return False
        layout, flats = self._registry.arrays(_MODEL)
        if layout.backend is not HOST:
            number, rest = divmod(number, _ON_A_DEVICE)
            if rest:
                return True
        piece = max(_LEAST, -(-layout.size // _PIECES))
        start = number % max(1, -(-layout.size // piece)) * piece
        return layout.is_finite(flats, slice(start, start + piece))

    def _first(self) -> str | None:
        """The name of the first array that is not finite, and should be."""
        layout, flats = self._registry.arrays(_MODEL)
        for key in layout.not_finite(flats):
            if f"{_MODEL}/{key}" not in self._spared:
                return called(self._called, key)
        return None

    def holds(self, state: Mapping[str, Any]) -> bool:
        """Whether the model in a checkpoint's ``state`` is finite, but for what is spared. Any
        thread may call it."""
        return all(
            HOST.kernels.finite(array.reshape(-1))
            for name, array in state.items()
            if name.startswith(f"{_MODEL}/") and name not in self._spared
        )

    # Who is to know.

    def tell(self, channel: LauncherChannel, me: WorkerId, leads: bool) -> None:
        """Say once what was found, if anything was."""
        if self._found is None or self._told:
            return
        self._told = True
        said = f"step {self._found.step}: {self._found.why}"
        _LOG.info("worker %d, %s", me, said)
        known = {"why": self._found.why, "brought": self._found.brought}
        channel.tell("not_finite", step=self._found.step, **known)
        if channel.mute and leads:
            warnings.warn(said, RuntimeWarning, stacklevel=2)

    def tell_end(self, channel: LauncherChannel, leads: bool) -> None:
        """Training is over: say so if the model that it leaves is not finite."""
        if (array := self._first()) is None:
            return
        why = f"{array} holds NaN or infinity"
        channel.tell("ends_not_finite", why=why)
        if channel.mute and leads:
            warnings.warn(f"the training is over, and {why}", RuntimeWarning, stacklevel=2)
