"""An optimizer of torch as one of spotmpi's: it moves whatever arrays a strategy gives it."""

from __future__ import annotations

import copy
import operator
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from spotmpi.arrays.backend import Buffer
from spotmpi.arrays.layout import Bucket, Key, Layout
from spotmpi.errors import UsageError
from spotmpi.optimizers import Optimizer
from spotmpi.torch.tensors import tensor_of

__all__ = ["TorchOptimizer", "as_trained"]

_UPDATES = "updates"
"""Number of updates since its memory was empty."""
_SCALE = "scale"
"""What the losses were multiplied by."""
_SIDE = (2, 3, 4, 5, 6, 7, 8)
"""Sides of the parameters that show what an optimizer remembers."""


class TorchOptimizer(Optimizer):
    """Moves arrays by a torch optimizer, whose memory is in slots and counts of spotmpi.

    ``inner``: the torch optimizer of the script, whose settings may change between steps.
    ``params``: its parameters by name. ``means``: names of other arrays. They take the mean of what
    the workers have: their "gradient" is what they had before, less what they have now.
    ``scaler``: multiplies the losses, and so the gradients.
    """

    elementwise = False

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        params: Mapping[str, torch.nn.Parameter],
        means: Collection[str],
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self._inner = inner
        self._params = params
        self._means = means
        tensors, self._numbers = _remembered(inner)
        self._memory = sorted(tensors)
        self._begun = bool(inner.state)
        """True if it remembers something before its first update: a loaded state, for example."""
        self._names: Sequence[Key] = ()
        """Names of the arrays that `update` is given, in order."""
        self._room: Sequence[Buffer] = ()
        """Memory for the gradients that the torch optimizer is given."""
        self._cut: dict[str, tuple[Sequence[Buffer], list[torch.Tensor]]] = {}
        """Memory of the last step, by what it holds, and the arrays in it as tensors."""
        self._scaler = scaler
        self._moves = False
        """True while `update` calls the torch optimizer."""
        self.overflowed = False
        """True if the update of this step, or of the last one, was left out, as gradients were not
        finite."""

    @property
    def kind(self) -> str:
        """The torch optimizer's class."""
        return f"{type(self._inner).__module__}.{type(self._inner).__qualname__}"

    @property
    def slots(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the tensors that it remembers for each parameter."""
        return tuple(self._memory)

    @property
    def counts(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the numbers that it remembers."""
        return (*sorted(self._numbers), *self._settings(), _UPDATES)

    @property
    def rises(self) -> int:  # type: ignore[override]
        """As for `spotmpi.optimizers.Adam`, if it is one of that kind."""
        return 20 if "exp_avg_sq" in self._memory else 0

    @property
    def lr(self) -> float:
        """The learning rate of the first group. The others keep their ratio to it."""
        return float(self._inner.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        times = value / self.lr if self.lr else 1.0
        for group in self._inner.param_groups[1:]:
            group["lr"] = float(group["lr"]) * times
        self._inner.param_groups[0]["lr"] = value

    def _settings(self) -> dict[str, float]:
        """Return all numbers in the settings of its groups and of the scaler, by name."""
        found = {
            f"{number}/{name}": value
            for number, group in enumerate(self._inner.param_groups)
            for name, value in _flat(group)
        }
        return found if self._scaler is None else {**found, _SCALE: self._scaler.get_scale()}

    def note(self, memory: Mapping[str, Sequence[Buffer]]) -> None:
        """Write the present settings into ``memory``, before each step: `update` goes by them. So a
        newcomer is told them in each round in which it learns, and all workers compare them."""
        self.overflowed = False
        for name, value in self._settings().items():
            memory[name][0][0] = value

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Return a block in which it is a UsageError if the script moves anything by itself. After
        it the torch optimizer remembers tensors of the parameters' types, as it does alone."""
        hook = self._inner.register_step_pre_hook(self._check)
        try:
            yield
        finally:
            hook.remove()
            for param in self._params.values():
                state = self._inner.state.get(param, {})
                for one in self._memory:
                    if state.get(one) is not None:
                        state[one] = state[one].to(param.dtype)

    def begin(self, layout: Layout, memory: Mapping[str, Sequence[Buffer]]) -> None:
        """Fill ``memory`` with what the torch optimizer remembers before the training."""
        if not self._begun:
            return
        for name in self._memory:
            arrays = layout.named(memory[name])
            for key, param in self._params.items():
                if (found := self._inner.state[param].get(name)) is not None:
                    tensor_of(arrays[key]).copy_(found)
        self._keep_numbers(memory)
        memory[_UPDATES][0][0] = 1

    def apply(
        self,
        layout: Layout,
        params: Sequence[Buffer],
        grads: Sequence[Buffer],
        memory: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        """Move the arrays that are means, and the parameters by `update`. No parameter moves if the
        gradient of a scaled loss is not finite."""
        kernels, buckets, times = layout.backend.kernels, layout.buckets, 1.0
        self._names = [entry.key for bucket in buckets for entry in bucket.entries]
        if self._scaler is not None:
            times = float(memory[_SCALE][0][0])
            parts = [
                flat[run]
                for runs, flat in zip(self._runs(buckets), grads, strict=True)
                for run in runs
            ]
            self.overflowed = not all(kernels.finite(part) for part in parts)
        if not self._room:
            self._room = layout.allocate()
        for copied, flat in zip(self._room, grads, strict=True):  # others read the gradients
            kernels.scaled_sum(copied, [flat], [scale / times])
        w, g = self._tensors("params", layout, params), self._tensors("grads", layout, self._room)
        for name, own, moved in zip(self._names, w, g, strict=True):
            if name in self._means:
                own.sub_(moved, alpha=times)
        if not self.overflowed:
            slots = {
                name: self._tensors(f"slot {name}", layout, memory[name]) for name in self._memory
            }
            self.update(w, g, {**memory, **slots}, rate, 1.0)

    def update(
        self,
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        slots: Mapping[str, Sequence[Any]],
        rate: float,
        scale: float,
    ) -> None:
        """Move the parameters by a step of the torch optimizer, which may overwrite ``grads``. All
        arrays are tensors, but for counts. ``scale``: 1, as `apply` has multiplied the gradients.
        """
        begun = self._begun or slots[_UPDATES][0][0] > 0
        with torch.no_grad(), self._groups(slots, rate), self._parameters():
            for number, (name, w, g) in enumerate(zip(self._names, params, grads, strict=True)):
                if name in self._means:
                    continue
                param = self._params[str(name)]
                param.data, param.grad = w, g
                self._inner.state.pop(param, None)
                if begun:
                    self._inner.state[param] = self._state(number, slots)
            self._moves = True
            try:
                self._inner.step()
            finally:
                self._moves = False
            self._keep(slots)
        slots[_UPDATES][0][0] += 1

    def _runs(self, buckets: Sequence[Bucket]) -> Iterator[list[slice]]:
        """Yield where parameters lie in each bucket, in stretches as long as can be."""
        for bucket in buckets:
            runs: list[slice] = []
            for entry in bucket.entries:
                if entry.key in self._means:
                    continue
                if runs and runs[-1].stop == entry.start:
                    runs[-1] = slice(runs[-1].start, entry.stop)
                else:
                    runs.append(slice(entry.start, entry.stop))
            yield runs

    def _tensors(self, what: str, layout: Layout, flats: Sequence[Buffer]) -> list[torch.Tensor]:
        """Return the arrays in these buckets as tensors: those of the last step, if it had the same
        memory for ``what``."""
        known = self._cut.get(what)
        if known is None or not all(map(operator.is_, known[0], flats)):
            parts = []
            for bucket, flat in zip(layout.buckets, flats, strict=True):
                whole = tensor_of(flat)
                parts += [whole[one.start : one.stop].view(one.shape) for one in bucket.entries]
            known = self._cut[what] = [*flats], parts
        return known[1]

    def _check(self, *_: Any) -> None:
        if not self._moves:
            raise UsageError(
                "the script called optimizer.step() inside the block: call opt.step(loss) alone, "
                "which averages the gradients first (and with a scaler no scaler.step())"
            )

    def _state(self, number: int, slots: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return what torch remembers of one parameter: tensors that share memory with ``slots``,
        and numbers."""
        tensors = {one: slots[one][number] for one in self._memory}
        return {**tensors, **{one: self._number(one, slots) for one in self._numbers}}

    def _keep(self, slots: Mapping[str, Sequence[Buffer]]) -> None:
        """Copy to ``slots`` what the torch optimizer has replaced or begun to remember."""
        for number, name in enumerate(self._names):
            if name in self._means:
                continue
            state = self._inner.state[self._params[str(name)]]
            for one in self._memory:
                if (tensor := state.get(one)) is None:
                    continue
                there = slots[one][number]
                if there.data_ptr() != tensor.data_ptr():
                    there.copy_(tensor)
        self._keep_numbers(slots)

    def _keep_numbers(self, slots: Mapping[str, Sequence[Buffer]]) -> None:
        for one in self._numbers:
            for param in self._params.values():
                if (found := self._inner.state[param].get(one)) is not None:
                    slots[one][0][0] = float(found)
                    break

    def _number(self, name: str, slots: Mapping[str, Sequence[Buffer]]) -> Any:
        like, value = self._numbers[name], float(slots[name][0][0])
        return torch.full_like(like, value) if isinstance(like, torch.Tensor) else like(value)

    @contextmanager
    def _groups(self, slots: Mapping[str, Sequence[Buffer]], rate: float) -> Iterator[None]:
        """Give the groups the settings that were noted, with ``rate`` as the first one's rate."""
        groups = self._inner.param_groups
        before = [dict(group) for group in groups]
        first = float(slots["0/lr"][0][0])
        for number, group in enumerate(groups):
            for name, value in group.items():
                if name != "params":
                    group[name] = _noted(value, f"{number}/{name}", slots)
            group["lr"] *= rate / first if first else 1.0
        try:
            yield
        finally:
            for group, known in zip(groups, before, strict=True):
                group.update(known)

    @contextmanager
    def _parameters(self) -> Iterator[None]:
        """Give the parameters their own memory and gradients again afterwards."""
        before = [(param, param.data, param.grad) for param in self._params.values()]
        try:
            yield
        finally:
            for param, data, grad in before:
                param.data, param.grad = data, grad


def as_trained(param: torch.Tensor) -> torch.dtype:
    """Return the type in which a parameter is trained: half precision in float32."""
    return torch.promote_types(param.dtype, torch.float32)


def _flat(group: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a group's settings, with their names."""
    for name, value in group.items():
        if name == "params":
            continue
        for place, one in enumerate(value) if isinstance(value, tuple | list) else [("", value)]:
            number = one.item() if isinstance(one, torch.Tensor) and one.numel() == 1 else one
            if isinstance(number, int | float) and not isinstance(number, bool):
                yield f"{name}{place}", float(number)


def _noted(value: Any, name: str, slots: Mapping[str, Sequence[Buffer]]) -> Any:
    """Return a setting as it was noted, or this value if it is no number."""
    if isinstance(value, tuple | list):
        return type(value)(_noted(one, f"{name}{at}", slots) for at, one in enumerate(value))
    if isinstance(value, bool) or name not in slots:
        return value
    noted = float(slots[name][0][0])
    return int(noted) if isinstance(value, int) else noted


def _remembered(inner: torch.optim.Optimizer) -> tuple[set[str], dict[str, Any]]:
    """Return the names of the tensors that it remembers for each parameter, and of the numbers,
    with one like it or its type. Raises UsageError if it remembers something else."""
    kind = type(inner).__name__
    tensors: set[str] = set()
    numbers: dict[str, Any] = {}
    for group in inner.param_groups:
        moved = [param for param in group["params"] if param.requires_grad]
        first = max(moved, key=lambda param: param.dim(), default=None)
        if first is None:
            continue
        sides = _SIDE[: max(1, first.dim())]
        probe = torch.nn.Parameter(first.new_ones(sides, dtype=as_trained(first)))
        for name, value in _state_of(inner, group, first, probe).items():
            if value is None:
                continue
            if isinstance(value, torch.Tensor) and value.shape == probe.shape:
                tensors.add(name)
            elif isinstance(value, torch.Tensor) and value.numel() == 1:
                numbers[name] = value
            elif isinstance(value, bool | int | float):
                numbers[name] = type(value)
            else:
                shape = tuple(getattr(value, "shape", ()))
                raise UsageError(
                    f"{kind} remembers {name} of shape {shape} for a parameter of shape "
                    f"{tuple(probe.shape)}: spotmpi keeps tensors of the parameter's shape, and "
                    "numbers"
                )
    return tensors, numbers


def _state_of(
    inner: torch.optim.Optimizer,
    group: Mapping[str, Any],
    first: torch.Tensor,
    probe: torch.nn.Parameter,
) -> Mapping[str, Any]:
    """Return what the optimizer remembers of ``probe`` after a step of it, in the place of the
    ``first`` parameter of its ``group``. The optimizer stays as it is."""
    double = copy.copy(inner)
    double.param_groups = [{**group, "params": [probe]}]
    double.state = defaultdict(dict)
    for name, value in inner.state.get(first, {}).items():
        if isinstance(value, torch.Tensor):
            value = torch.zeros_like(probe) if value.shape == first.shape else value.clone()
        double.state[probe][name] = value
    probe.grad = torch.ones_like(probe)
    try:
        type(inner).step(double)
    except Exception as error:
        raise UsageError(
            f"{type(inner).__name__} does not move a parameter by a dense gradient alone, as "
            f"spotmpi needs it: {error}"
        ) from error
    state: Mapping[str, Any] = double.state[probe]
    return state
