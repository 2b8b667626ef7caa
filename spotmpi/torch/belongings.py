"""What a torch script trains with, found by itself, and how a newcomer gets all of it.

These are the modules in DistributedDataParallel, optimizers, learning rate schedulers, scalers, and
the numbers of Hugging Face's Trainer, in the order in which the script has made them. All that live
are alike on all workers.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from spotmpi.errors import UsageError
from spotmpi.protocol.plain_values import NONSENSE, pack, unpack
from spotmpi.torch.after_steps import load_plain
from spotmpi.torch.tensors import Numbers, from_bytes, read_bytes
from spotmpi.torch_hooks.calls import MADE

__all__ = ["Belongings"]

_TENSOR = "\0tensor"
"""Marks the place of a tensor among plain values; its type, shape and kind of device follow."""


class Belongings:
    """All that this worker's script trains with: as rows of bytes with a description."""

    def __init__(self) -> None:
        """Begin with what the script has by then; `look` looks again."""
        self._tensors: list[torch.Tensor] = []
        self._text = b""
        self._looked: tuple[int, int] | None = None
        """How much had been made, and the ``when``, as garbage was collected last."""

    def look(self, when: int | None = None) -> None:
        """Find what there is now. Raises UsageError if some of it cannot be given.

        What the script no longer uses is still there until Python collects garbage. That goes
        through all objects of this process: with those of torch alone it takes 0.1 to 0.2 s. So it
        is done once for each value of ``when``, and once more if the script has made something
        since. With None it is always done.
        """
        now = None if when is None else (len(MADE), when)
        if now is None or now != self._looked:
            self.tidy()
            self._looked = now
        self._tensors = []
        self._text = pack([self._described(one) for one in _those()])

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
        if [type(one).__name__ for one in mine] != [kind for kind, _ in theirs]:
            raise UsageError(
                f"its script trains with {_names(type(one).__name__ for one in mine)}, and the "
                f"others' with {_names(kind for kind, _ in theirs)}"
            )
        for one, (kind, said) in zip(mine, theirs, strict=True):
            if isinstance(one, torch.nn.Module):
                own = [(name, *_like(there)) for name, there in _held(one).items()]
                if own != [(name, *marks[1:3]) for name, marks in said]:
                    raise UsageError(f"its {kind} has other parameters or buffers than the others'")

    def take(self, described: bytes, numbers: Numbers) -> None:
        """Let this script have what another worker has described, with these bytes of tensors."""
        left = _Reader(numbers)
        try:
            for one, (_, said) in zip(_those(), unpack(described), strict=True):
                _fill(one, left.filled(said))
        except NONSENSE as error:
            raise UsageError(f"what its script trains with does not fit: {error!r}") from error

    def _described(self, one: Any) -> tuple[str, Any]:
        if isinstance(one, torch.nn.Module):
            said: Any = [*_held(one).items()]
        elif isinstance(one, torch.optim.Optimizer):
            if any(hasattr(param, "full_tensor") for param in _params(one)):
                raise UsageError(
                    "no worker has all of the parameters, as they are sharded: spotmpi cannot keep "
                    "them in checkpoints, or give them to newcomers"
                )
            groups = [{n: v for n, v in group.items() if n != "params"} for group in _groups(one)]
            said = groups, [one.state.get(param, {}) for param in _params(one)]
        elif dataclasses.is_dataclass(one):
            said = {name: getattr(one, name) for name in _shared_fields(one)}
        else:
            said = one.state_dict()
        return type(one).__name__, self._plain(said)

    def _plain(self, value: Any) -> Any:
        """Return a value in which marks take the place of tensors; those are noted in order."""
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            return (_TENSOR, *_like(value), value.device.type)
        if isinstance(value, Mapping):
            return {name: self._plain(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._plain(one) for one in value)
        return value


class _Reader:
    """Makes tensors of bytes, one after the other."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._first = 0

    def filled(self, said: Any) -> Any:
        """Return a description with the tensors in place of their marks, in memory of the host."""
        if isinstance(said, tuple) and said[:1] == (_TENSOR,):
            return self._tensor(*said[1:])
        if isinstance(said, dict):
            return {name: self.filled(one) for name, one in said.items()}
        if isinstance(said, list | tuple):
            return type(said)(self.filled(one) for one in said)
        return said

    def _tensor(self, kind: str, shape: Sequence[int], where: str) -> torch.Tensor:
        type_ = getattr(torch, kind)
        if not isinstance(type_, torch.dtype) or min(shape, default=0) < 0:
            raise ValueError(f"there is no tensor of {kind} {shape}")
        last = self._first + math.prod(shape) * type_.itemsize
        if last > len(self._numbers):
            raise ValueError("there are too few numbers")
        mine = self._numbers[self._first : last].copy()
        self._first = last
        return from_bytes(mine, type_, shape).to(where)


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


def _like(tensor: torch.Tensor) -> tuple[str, list[int]]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _names(kinds: Iterator[str]) -> str:
    return ", ".join(kinds) or "nothing"
