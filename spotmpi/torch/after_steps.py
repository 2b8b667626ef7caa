"""What a torch script has beside parameters, and what becomes of it after each step."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spotmpi.errors import CheckpointError, UsageError
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.plain_values import NONSENSE, pack, unpack
from spotmpi.torch.torch_optimizer import TorchOptimizer

__all__ = ["AfterSteps", "load_plain"]

_STATE, _ENDED, _OVERFLOWED = "torch/state", "torch/ended", "torch/overflowed"


class AfterSteps:
    """Settings of an optimizer's groups, schedulers, and a scaler of losses. They are plain values
    that survive: a checkpoint keeps them, and a newcomer gets them."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Any],
        scaler: torch.amp.GradScaler | None,
        mover: TorchOptimizer,
    ) -> None:
        self._optimizer = optimizer
        self._schedulers = schedulers
        self._scaler = scaler
        self._mover = mover
        self._good = 0
        """Steps with finite gradients since the scale of losses was changed."""
        self._ended = 0
        """Steps of the training that were taken when `end` was called last."""
        for one in schedulers:
            _check(one)
        self._counts = self._counted()
        """How often each scheduler has been stepped."""

    def check(self) -> None:
        """Raise UsageError if the script has stepped a scheduler since the last `end`."""
        if self._counts != self._counted():
            raise UsageError(
                "the script called scheduler.step(): opt.step() does that for its schedulers"
            )

    def end(self, steps: int) -> None:
        """Do what follows each step, alike on all workers: change the scale of losses, and step the
        schedulers. ``steps``: those of the training that are taken."""
        self._ended = steps
        if (scaler := self._scaler) is not None:
            self._good = 0 if self._mover.overflowed else self._good + 1
            if self._mover.overflowed:
                _set(scaler, scaler.get_scale() * scaler.get_backoff_factor())
            elif self._good >= scaler.get_growth_interval():
                _set(scaler, scaler.get_scale() * scaler.get_growth_factor())
                self._good = 0
        for one in self._schedulers:
            one.step()
        self._counts = self._counted()

    def kept(self) -> Mapping[str, Any]:
        """Return what a checkpoint keeps, by name."""
        overflowed = int(self._mover.overflowed)
        return {_STATE: self.snapshot(None), _ENDED: self._ended, _OVERFLOWED: overflowed}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on with what a checkpoint kept. Raises CheckpointError."""
        try:
            self.restore(found[_STATE])
            self._mover.overflowed = bool(found[_OVERFLOWED])
            if (steps := int(found["steps"])) > int(found[_ENDED]):
                self.end(steps)  # the checkpoint was written within the step
        except NONSENSE as error:
            raise CheckpointError(
                f"{where} does not have what belongs to this optimizer and its schedulers: "
                f"{error!r}"
            ) from error

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> str:
        """Return what a newcomer is told, as text."""
        groups = [_plain(group) for group in self._optimizer.param_groups]
        scale = None if self._scaler is None else self._scaler.get_scale()
        known = groups, [one.state_dict() for one in self._schedulers], scale, self._good
        return base64.b64encode(pack(known)).decode()

    def restore(self, told: str) -> None:
        """Go on from what was told."""
        groups, states, scale, good = unpack(base64.b64decode(told))
        for group, known in zip(self._optimizer.param_groups, groups, strict=True):
            group.update({name: known[name] for name in _plain(group)})
        for one, state in zip(self._schedulers, states, strict=True):
            load_plain(one, state)
        if self._scaler is not None:
            _set(self._scaler, float(scale))
        self._good = int(good)
        self._counts = self._counted()

    def _counted(self) -> list[Any]:
        return [one.state_dict().get("_step_count") for one in self._schedulers]


def _set(scaler: torch.amp.GradScaler, scale: float) -> None:
    """Let losses be multiplied by ``scale``, also if none has been yet."""
    scaler.load_state_dict({**scaler.state_dict(), "scale": scale})


def _check(one: Any) -> None:
    """Raise UsageError unless this is a scheduler whose state can be kept."""
    name = type(one).__name__
    if not all(hasattr(one, method) for method in ("step", "state_dict", "load_state_dict")):
        raise UsageError(f"schedulers has a {name}, expected schedulers of torch.optim")
    if isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau needs a measured value in each step: choose a scheduler that counts "
            "steps, or set the rates of the optimizer's groups, alike on all workers"
        )
    try:
        pack(one.state_dict())
    except UsageError as error:
        raise UsageError(f"the state of the scheduler {name} cannot be kept: {error}") from None


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group of parameters that are plain values."""
    found = {name: _value(value) for name, value in group.items() if name != "params"}
    return {name: value for name, value in found.items() if value is not _NOT_PLAIN}


_NOT_PLAIN = object()


def _value(value: Any) -> Any:
    """Return a setting as a plain value, or `_NOT_PLAIN`."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, tuple | list):
        parts = [_value(one) for one in value]
        return _NOT_PLAIN if _NOT_PLAIN in parts else type(value)(parts)
    return value if isinstance(value, bool | int | float | str | None) else _NOT_PLAIN


def load_plain(one: Any, state: Mapping[str, Any]) -> None:
    """Let a scheduler, or a scaler, go on from a state that was kept as plain values."""
    own = one.state_dict()
    one.load_state_dict({name: _like(own[name], state[name]) for name in own})


def _like(own: Any, value: Any) -> Any:
    """Return a value in the kinds of dict that it has here, at all levels."""
    if isinstance(own, dict) and isinstance(value, dict):
        return type(own)({name: _like(own.get(name), one) for name, one in value.items()})
    if isinstance(own, list) and isinstance(value, list) and len(own) == len(value):
        return [_like(here, one) for here, one in zip(own, value, strict=True)]
    return value
