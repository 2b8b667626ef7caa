"""What a torch script trains with, found by itself, and how a newcomer gets all of it.

These are the modules in DistributedDataParallel, optimizers, learning rate schedulers, scalers, the
numbers of Hugging Face's Trainer, and Lightning's best models so far, in the order in which the
script has made them. All that live are alike on all workers.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from spotmpi.errors import UsageError
from spotmpi.protocol.plain_values import NONSENSE, pack, unpack
from spotmpi.torch.after_steps import load_plain
from spotmpi.torch.tensors import Numbers, read_bytes, write_bytes
from spotmpi.torch_hooks.calls import MADE

__all__ = ["Belongings", "Expected"]

_TENSOR = "\0tensor"
"""Marks the place of a tensor among plain values; its type, shape and kind of device follow."""
_LARGE = torch.nn.Module, torch.optim.Optimizer
"""Classes with the most tensors. What else has one may share it with others."""


class Belongings:
    """All that this worker's script trains with: as rows of bytes with a description."""

    def __init__(self) -> None:
        """Begin with what the script has by then; `look` looks again."""
        self._tensors: list[torch.Tensor] = []
        self._text = b""
        self._looked: tuple[int, int] | None = None
        """How much had been made, and the ``when``, as garbage was collected last."""

    def look(self, when: int | None = None, theirs: Collection[Sequence[str]] = ()) -> None:
        """Find what there is now. Raises UsageError if some of it cannot be given.

        What the script no longer uses is still there until Python collects garbage. That goes
        through all objects of this process: with those of torch alone it takes 0.1 to 0.2 s. So it
        is done once for each value of ``when``, and once more if the script has made something
        since. With None it is always done, unless ``theirs``, the `kinds` of others after `tidy`,
        say what is still used: that is so if they are those of this script, each once.
        """
        now = None if when is None else (len(MADE), when)
        mine = self.kinds
        sure = theirs and all([*one] == mine == [*dict.fromkeys(mine)] for one in theirs)
        if (now is None or now != self._looked) and not sure:
            self.tidy()
            self._looked = now
        self._tensors = []
        self._text = pack([(type(one).__name__, self._plain(_said(one))) for one in _those()])

    @property
    def kinds(self) -> list[str]:
        """The classes of all that the script trains with, and of what it no longer uses, if that is
        there."""
        return [type(one).__name__ for one in _those()]

    @staticmethod
    def tidy() -> None:
        """Free what the script no longer uses: other workers may have freed it already."""
        gc.collect()

    @property
    def has_optimizer(self) -> bool:
        """True if the script has an optimizer of torch."""
        return any(isinstance(one, torch.optim.Optimizer) for one in _those())

    @property
    def described(self) -> bytes:
        """A description of all, without the tensors' numbers."""
        return self._text

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(one.nbytes for one in self._tensors)

    def read(self, begin: int, out: Numbers, more: Sequence[torch.Tensor] = ()) -> None:
        """Fill ``out`` with the bytes of all tensors' numbers from ``begin`` on. ``more``: tensors
        that follow."""
        read_bytes([*self._tensors, *more], begin, out)

    @property
    def numbers(self) -> Numbers:
        """The bytes of all tensors' numbers: a copy."""
        found = np.empty(self.size, np.uint8)
        self.read(0, found)
        return found

    @property
    def broken(self) -> str | None:
        """The first parameter that is trained and holds NaN or infinity; None if there is none."""
        for module in (one for one in _those() if isinstance(one, torch.nn.Module)):
            for name, param in module.named_parameters():
                if param.requires_grad and not bool(torch.isfinite(param).all()):
                    return f"parameter {name.removeprefix('module.')}"
        return None

    def check(self, described: bytes) -> None:
        """Raise UsageError unless this script has what another worker has described, beside
        numbers. `tidy` comes before it."""
        mine, theirs = _those(), unpack(described)
        if (kinds := self.kinds) != (others := [kind for kind, _ in theirs]):
            raise UsageError(
                f"its script trains with {_names(kinds)}, and the others' with {_names(others)}"
            )
        for one, (kind, said) in zip(mine, theirs, strict=True):
            if isinstance(one, torch.nn.Module):
                own = [(name, *_like(there)) for name, there in _held(one).items()]
                if own != [(name, *marks[1:3]) for name, marks in said]:
                    raise UsageError(f"its {kind} has other parameters or buffers than the others'")

    def take(self, described: bytes, numbers: Numbers) -> None:
        """Let this script have what another worker has described, with these bytes of tensors.
        Raises UsageError if they do not fit."""
        there = self.expect(described, len(numbers))
        write_bytes(there.tensors, 0, numbers)
        there.settle()

    def expect(self, described: bytes, size: int) -> Expected:
        """Return what another worker has described, with so many bytes of tensors, before these are
        there. Raises UsageError if it does not fit."""
        return Expected(described, size)

    def _plain(self, value: Any) -> Any:
        """Return a value in which marks take the place of tensors; those are noted in order."""
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            return _mark(value)
        if isinstance(value, Mapping):
            return {name: self._plain(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._plain(one) for one in value)
        return value


class Expected:
    """What this script is to have from another worker, before the tensors have their numbers."""

    def __init__(self, described: bytes, size: int) -> None:
        """Raises UsageError if it does not fit."""
        self.tensors: list[torch.Tensor] = []
        """Those that get the numbers: those of the script's modules and optimizers, where they are
        alike, as memory that is new takes more time than to fill it."""
        self._left = size
        """Bytes that no tensor is there for yet."""
        self._used: set[int] = set()
        """Where ``tensors`` begin in memory."""
        with _fitting():
            self._those = [
                (one, self._filled(said, _said(one) if isinstance(one, _LARGE) else None))
                for one, (_, said) in zip(_those(), unpack(described), strict=True)
            ]
            if self._left:
                raise ValueError("there are too many numbers")

    def settle(self) -> None:
        """Let the script have it. Raises UsageError if it does not fit."""
        with _fitting():
            for one, found in self._those:
                _fill(one, found)

    def _filled(self, said: Any, own: Any) -> Any:
        """Return a description with tensors in place of their marks. ``own``: what is there now."""
        if isinstance(said, tuple) and said[:1] == (_TENSOR,):
            return self._tensor(said, own)
        if isinstance(said, dict):
            known = own if isinstance(own, Mapping) else {}
            return {name: self._filled(one, known.get(name)) for name, one in said.items()}
        if isinstance(said, list | tuple):
            alike = isinstance(own, list | tuple) and len(own) == len(said)
            those = own if alike else [None] * len(said)
            return type(said)(self._filled(*both) for both in zip(said, those, strict=True))
        return said

    def _tensor(self, mark: tuple[Any, ...], own: Any) -> torch.Tensor:
        _, kind, shape, where = mark
        type_ = getattr(torch, kind)
        if not isinstance(type_, torch.dtype) or min(shape, default=0) < 0:
            raise ValueError(f"there is no tensor of {kind} {shape}")
        self._left -= math.prod(shape) * type_.itemsize
        if self._left < 0:
            raise ValueError("there are too few numbers")
        alike = isinstance(own, torch.Tensor) and _mark(own) == mark
        if not alike or own.data_ptr() in self._used:  # one may stand in two places
            own = torch.empty(tuple(shape), dtype=type_, device=where)
        self._used.add(own.data_ptr())
        self.tensors.append(own)
        return own


@contextmanager
def _fitting() -> Iterator[None]:
    """Raise UsageError for what does not fit."""
    try:
        yield
    except NONSENSE as error:
        raise UsageError(f"what its script trains with does not fit: {error!r}") from error


def _said(one: Any) -> Any:
    """Return what there is to say of one thing that a script trains with. Raises UsageError if it
    cannot be given."""
    if isinstance(one, torch.nn.Module):
        return [*_held(one).items()]
    if isinstance(one, torch.optim.Optimizer):
        if any(hasattr(param, "full_tensor") for param in _params(one)):
            raise UsageError(
                "no worker has all of the parameters, as they are sharded: spotmpi cannot keep "
                "them in checkpoints, or give them to newcomers"
            )
        groups = [{n: v for n, v in group.items() if n != "params"} for group in _groups(one)]
        return groups, [one.state.get(param, {}) for param in _params(one)]
    if dataclasses.is_dataclass(one):
        return {name: getattr(one, name) for name in _shared_fields(one)}
    return one.state_dict()


def _those() -> list[Any]:
    """Return what the script trains with, and what it no longer uses until that is freed."""
    found = {id(one): one for ref in MADE if (one := ref()) is not None}
    return [*found.values()]


def _held(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's parameters and buffers by name, each once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    return groups


def _params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in _groups(optimizer):
        yield from group["params"]


def _fill(one: Any, found: Any) -> None:
    """Let one thing that a script trains with be as another worker's."""
    if isinstance(one, torch.nn.Module):
        with torch.no_grad():
            for there, (_, new) in zip(_held(one).values(), found, strict=True):
                if new is not there:
                    there.copy_(new)
                there.grad = None  # of the rehearsal
    elif isinstance(one, torch.optim.Optimizer):
        groups, states = found
        for group, known in zip(_groups(one), groups, strict=True):
            group.update(known)
        for param, state in zip(_params(one), states, strict=True):
            one.state.pop(param, None)
            if state:
                one.state[param] = state
            param.grad = None
    elif dataclasses.is_dataclass(one):
        for name in _shared_fields(one):
            setattr(one, name, found[name])
    else:
        load_plain(one, found)


def _shared_fields(state: Any) -> list[str]:
    """Return what all workers have alike of the state of Hugging Face's Trainer."""
    names = [one.name for one in dataclasses.fields(state)]
    return [name for name in names if not name.endswith("process_zero")]


def _mark(tensor: torch.Tensor) -> tuple[str, str, list[int], str]:
    """Return what takes the place of a tensor among plain values."""
    return _TENSOR, *_like(tensor), tensor.device.type


def _like(tensor: torch.Tensor) -> tuple[str, list[int]]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _names(kinds: Sequence[str]) -> str:
    return ", ".join(kinds) or "nothing"
