"""Tensors of torch and arrays of spotmpi that share memory, of the host or of a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spotmpi.arrays.backend import Array
from spotmpi.errors import UsageError

__all__ = [
    "Numbers",
    "array_of",
    "bytes_of",
    "check_stream",
    "from_bytes",
    "read_bytes",
    "stream_of",
    "tensor_of",
    "write_bytes",
]

Numbers = npt.NDArray[np.uint8]
"""The bytes of tensors' numbers."""


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
    first, end = 0, begin + len(out)
    for one in tensors:
        last = first + one.nbytes
        if first < end and begin < last:
            part = _flat(one)[max(begin - first, 0) : end - first]
            at = max(first - begin, 0)
            out[at : at + len(part)] = part.cpu().numpy()
        first = last


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes where it is: its own memory, if it is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat.byte()


def write_bytes(tensors: Iterable[torch.Tensor], numbers: Numbers) -> None:
    """Give all these tensors the numbers with these bytes."""
    first = 0
    for one in tensors:
        last = first + one.nbytes
        whole = one.is_contiguous()
        there = one if whole else torch.empty_like(one, memory_format=torch.contiguous_format)
        _flat(there).copy_(torch.from_numpy(numbers[first:last]))
        if not whole:
            one.detach().copy_(there)
        first = last


def from_bytes(there: Any, kind: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor of this type and shape with the memory of an array of bytes."""
    if not there.nbytes:  # torch cannot see it as another type
        return torch.empty(tuple(shape), dtype=kind)
    return torch.from_numpy(there).view(kind).view(tuple(shape))


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
