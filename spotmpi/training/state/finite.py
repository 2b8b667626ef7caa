"""Watches whether the model is finite.

NaN and infinity do not heal: what is trained with them becomes like them, and so does every later
checkpoint. All workers look at the same piece of the model after each round of steps, at a new one
each time. If the mean loss is not finite they look at all of it. So all find it at once, mostly in
the round that it came with, and the worker that brought it can say so. What is not finite when the
training begins may stay so.
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
from spotmpi.training.model import OwnModel

_LOG = logging.getLogger(__name__)

_PIECES = 64
"""All of the model is looked at in this many rounds, or in fewer."""

_LEAST = 1 << 16
"""Elements that are looked at in a round, at least: this many take microseconds."""

_ON_A_DEVICE = 16
"""Rounds from one look to the next if the host must wait for a device."""

_MODEL, _SPARED = "params", "not_finite/"
"""Name of the model in the registry, and prefix of the arrays' names in what is kept."""


OWN_FINITE = "own_model/finite"
"""Name under which a model that only the script has says that it is finite."""


class _Found(NamedTuple):
    """An array that is not finite any more."""

    step: int
    array: str
    brought: bool
    """True if this worker brought NaN or infinity to the round."""

    @property
    def why(self) -> str:
        """What was found, what it means, and what to do."""
        return (
            f"{self.array} holds NaN or infinity, which no later step heals; the last finite "
            "checkpoint stays. With Trainer(check_finite=True) the job ends before such a gradient "
            "counts, and says whose it is and of which batch"
        )


class Finite:
    """One worker's watch over its model. Local, all of it."""

    def __init__(self, registry: Registry, params: str, refuses: bool) -> None:
        """``params``: what scripts call the model's arrays."""
        self._registry = registry
        self._called = params
        self.refuses = refuses
        """True if contributions with NaN or infinity are refused."""
        self._spared: frozenset[str] = frozenset()
        self._found: _Found | None = None
        self._told = False

    # The registered values.

    def kept(self) -> Mapping[str, Any]:
        """Return the spared arrays; mostly there are none."""
        return {_SPARED + name: True for name in self._spared}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Spare the arrays that the checkpoint names."""
        names = (name for name in found if name.startswith(_SPARED))
        self._spared = frozenset(name.removeprefix(_SPARED) for name in names)

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Return the names of the spared arrays."""
        return sorted(self._spared)

    def restore(self, told: Any) -> None:
        """Spare the arrays that the other workers spare."""
        self._spared = frozenset(map(str, told))

    # The model.

    def begin(self) -> None:
        """Spare the arrays that are not finite when the training begins."""
        layout, flats = self._registry.arrays(_MODEL)
        self._spared = frozenset(f"{_MODEL}/{key}" for key in layout.not_finite(flats))

    def look(self, number: int, step: int, loss: float | None, brought: Callable[[], bool]) -> None:
        """Look at the model after a round of steps. ``number``: the round. ``step``: its last step.
        ``loss``: its mean loss. ``brought``: says if this worker brought something not finite."""
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
        """Return the name of the first array that is not finite and not spared; None if none is."""
        layout, flats = self._registry.arrays(_MODEL)
        for key in layout.not_finite(flats):
            if f"{_MODEL}/{key}" not in self._spared:
                return called(self._called, key)
        return None

    def holds(self, state: Mapping[str, Any]) -> bool:
        """Return True if the model in a checkpoint's ``state`` is finite, but for what is spared.
        Any thread may call it."""
        return bool(state.get(OWN_FINITE, True)) and all(
            HOST.kernels.finite(array.reshape(-1))
            for name, array in state.items()
            if name.startswith(f"{_MODEL}/") and name not in self._spared
        )

    # Messages.

    def tell(self, channel: LauncherChannel, me: WorkerId, leads: bool) -> None:
        """Tell once what was found, if anything was."""
        if self._found is None or self._told:
            return
        self._told = True
        said = f"step {self._found.step}: {self._found.why}"
        _LOG.info("worker %d, %s", me, said)
        known = {"why": self._found.why, "brought": self._found.brought}
        channel.tell("not_finite", step=self._found.step, **known)
        if channel.mute and leads:
            warnings.warn(said, RuntimeWarning, stacklevel=2)

    def tell_end(self, channel: LauncherChannel, leads: bool, own: OwnModel | None) -> None:
        """Tell at the end of the training if its model is not finite. ``own``: the model that only
        the script has; the leader has kept its end, others may know an earlier one."""
        array = self._first()
        if array is None and own is not None and leads:
            array = own.broken
        if array is None:
            return
        why = f"{array} holds NaN or infinity"
        channel.tell("ends_not_finite", why=why)
        if channel.mute and leads:
            warnings.warn(f"the training is over, and {why}", RuntimeWarning, stacklevel=2)
