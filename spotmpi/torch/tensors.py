"""Tensors of torch and arrays of spotmpi that share memory, of the host or of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from spotmpi.arrays.backend import Array
from spotmpi.errors import UsageError

__all__ = [
    "SUMS_OF_FLOATS",
    "SUM_OF_LIVING",
    "TIMES",
    "Fold",
    "MeanOf",
    "Numbers",
    "array_of",
    "as_if_alike",
    "bucket_of",
    "bytes_of",
    "check_stream",
    "fold_of",
    "from_bytes",
    "joined",
    "like",
    "read_bytes",
    "spread",
    "stream_of",
    "summed_as",
    "tensor_of",
    "write_bytes",
]

Numbers = npt.NDArray[np.uint8]
"""The bytes of tensors' numbers."""

_PIECE = 1 << 14
"""Numbers that are folded at a time: so few that they stay in a core's cache."""


class MeanOf(NamedTuple):
    """A mean of all workers' tensors that is asked for."""

    tensors: Sequence[torch.Tensor]
    """This worker's. They are on one device."""
    kind: torch.dtype
    """The type in which they are summed."""
    times: int | None
    """The mean is multiplied by it. None: by the number of workers that brought something."""
    step: bool
    """True if this stands for a step of the training."""
    out: Sequence[torch.Tensor]
    """What the mean is written into."""
    start: int = 0
    """The number of the mean with which ``out`` begins, counted over all tensors."""


Fold = Callable[[torch.Tensor, Sequence[torch.Tensor]], None]
"""Writes into a tensor what it makes of others."""

_FOLDS: Mapping[str, Callable[..., torch.Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
SUM_OF_LIVING = "SUM_OF_LIVING"
"""An operation beside those of torch: a sum of floats that does not count as if all were there."""
TIMES: Mapping[str, Callable[[int], int | None]] = {
    "SUM": lambda size: size,
    "AVG": lambda _: 1,
    SUM_OF_LIVING: lambda _: None,
}
"""How many times the mean a result is, by operation; None: as many as have brought something."""
SUMS_OF_FLOATS = frozenset(TIMES)
"""Operations by which floats are summed."""


def tensor_of(array: Array) -> torch.Tensor:
    """Return a tensor with the memory of this array."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    return torch.from_dlpack(array)


def array_of(tensor: torch.Tensor) -> Array:
    """Return an array with the memory of this tensor, or of a copy if it is not contiguous. Raises
    UsageError where no array can have it."""
    tensor = tensor.detach().contiguous()
    if tensor.device.type == "cpu":
        return tensor.numpy()
    if tensor.device.type != "cuda":
        raise UsageError(f"spotmpi trains in memory of the host or of CUDA, not {tensor.device}")
    return _cupy(tensor.device).from_dlpack(tensor)


def bytes_of(tensor: torch.Tensor) -> Any:
    """Return a tensor's numbers as a flat array of bytes, in memory of the host: its own, if it is
    there and contiguous."""
    return _flat(tensor).cpu().numpy()


def read_bytes(tensors: Iterable[torch.Tensor], begin: int, out: Numbers) -> None:
    """Fill ``out`` with the bytes of all these tensors' numbers from ``begin`` on."""
    for one, there, here in _parts(tensors, begin, out):
        here[:] = _flat(one)[there].cpu().numpy()


def write_bytes(tensors: Iterable[torch.Tensor], begin: int, numbers: Numbers) -> None:
    """Give all these tensors the numbers with these bytes, which are those from ``begin`` on."""
    for one, there, here in _parts(tensors, begin, numbers):
        whole = one.detach().contiguous()  # its own memory, or a copy
        _flat(whole)[there].copy_(torch.from_numpy(here))
        if not one.is_contiguous():
            one.detach().copy_(whole)


def _parts(
    tensors: Iterable[torch.Tensor], begin: int, numbers: Numbers
) -> Iterator[tuple[torch.Tensor, slice, Numbers]]:
    """Yield the tensors whose bytes are among those from ``begin`` on, which of their bytes these
    are, and their place in ``numbers``."""
    first, end = 0, begin + len(numbers)
    for one in tensors:
        last = first + one.nbytes
        start, stop = max(begin, first), min(end, last)
        if start < stop:
            yield one, slice(start - first, stop - first), numbers[start - begin : stop - begin]
        first = last


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes where it is: its own memory, if it is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat.byte()


def from_bytes(there: Any, kind: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor of this type and shape with the memory of an array of bytes."""
    if not there.nbytes:  # torch cannot see it as another type
        return torch.empty(tuple(shape), dtype=kind, device="cpu")
    return torch.from_numpy(there).view(kind).view(tuple(shape))


def joined(tensors: Sequence[torch.Tensor], kind: torch.dtype) -> torch.Tensor:
    """Return all their numbers as this type, in one dimension. They may be in memory of a tensor:
    if it is the only one, contiguous, and of this type."""
    found = [one.detach().reshape(-1).to(kind) for one in tensors]
    return found[0] if len(found) == 1 else torch.cat(found)


def spread(numbers: torch.Tensor, tensors: Sequence[torch.Tensor], start: int = 0) -> None:
    """Write a flat tensor's numbers into these, from the number ``start`` on."""
    for one in tensors:
        one.detach().copy_(numbers[start : start + one.numel()].view(one.shape))
        start += one.numel()


def as_if_alike(mean: MeanOf) -> None:
    """Write what this mean would be if all workers had brought these tensors, and nobody knew how
    many they are."""
    numbers = joined(mean.tensors, mean.kind)
    spread(numbers * (mean.times or 1), mean.out, mean.start)


def like(tensor: torch.Tensor, there: Any) -> torch.Tensor:
    """Return bytes as a tensor like this one, in memory of the host. Raises UsageError."""
    if there.nbytes != tensor.numel() * tensor.element_size():
        raise UsageError(
            f"a worker gave {there.nbytes} bytes where this one has a tensor of {tensor.dtype} "
            f"{tuple(tensor.shape)}: give tensors of one type and shape on all workers"
        )
    return from_bytes(there, tensor.dtype, tensor.shape)


def stream_of(device: torch.device) -> AbstractContextManager[object]:
    """Return a block in which arrays of this device are worked on in torch's present stream."""
    if device.type != "cuda":
        return nullcontext()
    cuda, stream = _cupy(device).cuda, torch.cuda.current_stream(device)
    if cuda.runtime.getDevice() != device.index:
        raise UsageError(
            f"the module is on {device}, which is not the current device: call "
            f"torch.cuda.set_device({device.index}) first"
        )
    block: AbstractContextManager[object] = cuda.Stream.from_external(_Stream(stream))
    return block


def check_stream(device: torch.device) -> None:
    """Raise UsageError if arrays of this device are not worked on in torch's present stream."""
    if device.type == "cuda":
        own, arrays = torch.cuda.current_stream(device), _cupy(device).cuda.get_current_stream()
        if own.cuda_stream != arrays.ptr:
            raise UsageError(
                "opt.step() was called in another CUDA stream than the one in which the block "
                "began: call it there, or begin the block in this stream"
            )


def summed_as(tensor: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    """Return the type in which a tensor of floats is summed, and where."""
    return torch.promote_types(tensor.dtype, torch.float32), tensor.device


def bucket_of(tensor: torch.Tensor) -> tuple[str, int] | None:
    """Return the type in which a tensor is summed, and its size. None: it cannot be given to others
    early, which takes floats and one dimension, in memory of the host."""
    if tensor.is_sparse or not tensor.is_floating_point() or tensor.dim() != 1:
        return None
    kind, device = summed_as(tensor)
    return (f"{kind}".removeprefix("torch."), tensor.numel()) if device.type == "cpu" else None


class _Stream:
    """Torch's stream, as CuPy takes one of others."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


def _cupy(device: torch.device) -> Any:
    try:
        import cupy
    except ImportError as error:
        raise UsageError(
            f"the module is on {device}, and there is no CuPy, which spotmpi needs for memory of a "
            f"GPU: python -m pip install 'spotmpi[gpu]' ({error})"
        ) from error
    return cupy


def fold_of(operation: str) -> Fold:
    """Return what writes into a tensor what this operation makes of all workers' tensors, in their
    order; these are in memory of the host. Averages of whole numbers are cut off behind the point.
    Raises UsageError if there is no such operation."""
    of_two = _FOLDS.get("SUM" if operation in TIMES else operation)
    if of_two is None:
        raise UsageError(f"spotmpi has no operation {operation} for tensors")

    def fold(out: torch.Tensor, found: Sequence[torch.Tensor]) -> None:
        out = out.detach()
        own = out.device.type == "cpu" and out.is_contiguous()
        total = out if own else torch.empty(out.shape, dtype=out.dtype, device="cpu")
        for part, *parts in zip(
            *(one.view(-1).split(_PIECE) for one in (total, *found)), strict=True
        ):
            part.copy_(parts[0])
            for other in parts[1:]:
                of_two(part, other, out=part)
        if operation == "AVG":
            total.copy_(total.div(len(found), rounding_mode="trunc"))  # of bool it is a number
        if not own:
            out.copy_(total)

    return fold
