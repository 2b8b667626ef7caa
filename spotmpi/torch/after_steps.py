"""What a torch script has beside parameters, and what becomes of it after each step."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spotmpi.errors import CheckpointError, UsageError
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.plain_values import pack, unpack

__all__ = ["AfterSteps"]

_STATE, _DUE = "torch/state", "torch/due"


class AfterSteps:
    """Settings of an optimizer's groups, schedulers, and a scaler of losses: plain values that
    survive. A checkpoint keeps them, and a newcomer gets them.

    ``overflowed``: returns True if the last step was left out, as gradients were not finite.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Any],
        scaler: torch.amp.GradScaler | None,
        overflowed: Callable[[], bool],
    ) -> None:
        self._optimizer = optimizer
        self._schedulers = schedulers
        self._scaler = scaler
        self._overflowed = overflowed
        self._good = 0
        """Steps with finite gradients since the scale of losses was changed."""
        self._within = False
        """True in a step, the end of which is to come."""
        self.due: bool | None = None
        """After a resume: True or False as the last step was left out or not, if its end was to
        come when the checkpoint was written; else None."""
        for one in schedulers:
            _check(one)
        self._counts = self._counted()
        """How often each scheduler has been stepped."""

    def begin(self) -> None:
        """Note that a step has begun. Raises UsageError if the script has stepped a scheduler."""
        if self._counts != self._counted():
            raise UsageError(
                "the script called scheduler.step(): opt.step() does that for its schedulers"
            )
        self._within = True

    def end(self, overflowed: bool) -> None:
        """Do what follows each step, alike on all workers: change the scale of losses, and step the
        schedulers."""
        self._within = False
        if (scaler := self._scaler) is not None:
            self._good = 0 if overflowed else self._good + 1
            if overflowed:
                scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
            elif self._good >= scaler.get_growth_interval():
                scaler.update(scaler.get_scale() * scaler.get_growth_factor())
                self._good = 0
        for one in self._schedulers:
            one.step()
        self._counts = self._counted()

    def kept(self) -> Mapping[str, Any]:
        """Return what a checkpoint keeps, by name."""
        due = "none" if not self._within else "overflow" if self._overflowed() else "step"
        return {_STATE: self.snapshot(None), _DUE: due}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on with what a checkpoint kept. Raises CheckpointError."""
        try:
            self.restore(found[_STATE])
            self.due = {"none": None, "overflow": True, "step": False}[found[_DUE]]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
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
            group.update(known)
        for one, state in zip(self._schedulers, states, strict=True):
            own = one.state_dict()
            one.load_state_dict({key: _like(own.get(key), value) for key, value in state.items()})
        if self._scaler is not None:
            self._scaler.update(float(scale))
        self._good = int(good)
        self._counts = self._counted()

    def _counted(self) -> list[Any]:
        return [one.state_dict().get("_step_count") for one in self._schedulers]


def _check(one: Any) -> None:
    """Raise UsageError unless this is a scheduler whose state can be kept."""
    name = type(one).__name__
    if not all(hasattr(one, method) for method in ("step", "state_dict", "load_state_dict")):
        raise UsageError(f"schedulers has a {name}, expected schedulers of torch.optim")
    try:
        pack(one.state_dict())
    except UsageError as error:
        raise UsageError(f"the state of the scheduler {name} cannot be kept: {error}") from None


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group of parameters that are plain values."""
    found = {}
    for name, value in group.items():
        number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if name != "params" and isinstance(number, bool | int | float | str | tuple | list | None):
            found[name] = number
    return found


def _like(own: Any, value: Any) -> Any:
    """Return a value in the kind of dict that it has here."""
    return type(own)(value) if isinstance(own, dict) and isinstance(value, dict) else value
