"""Memory of a device that other processes of the host can open: three sets of the same arrays."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from spotmpi.arrays.backend import DEVICE, Buffer
from spotmpi.arrays.word_view import WORDS_OF
from spotmpi.fabric.planes.plane import Shape

__all__ = ["HANDLE", "SETS", "DeviceMemory", "Opened"]

SETS = 3
"""The sets of an arena: two of results, then one of contributions."""

HANDLE = 64
"""Bytes of a handle, by which another process opens an allocation."""

_LINE = 256
"""Bytes on whose multiples arrays begin."""


class DeviceMemory:
    """This worker's memory; its last array frees it. It is an allocation of its own: memory of a
    pool has no handle, and the pool's handle would show others all that is in there."""

    def __init__(self, layout: Sequence[Shape]) -> None:
        import cupy

        size = SETS * _bytes(layout)
        self._memory = cupy.cuda.Memory(size)
        self.sets = _arrays(cupy, self._memory, layout)
        for flats in self.sets:
            for flat in flats:
                DEVICE.fill(flat, 0)

    def handle(self) -> bytes | None:
        """Return the handle by which others can open the memory; None if CUDA gives none."""
        import cupy

        try:
            found: bytes = cupy.cuda.runtime.ipcGetMemHandle(self._memory.ptr)
        except cupy.cuda.runtime.CUDARuntimeError:
            return None
        return found


class Opened:
    """Another worker's memory, open until `close`, or as long as this object lives. OSError if it
    cannot be opened here."""

    def __init__(self, handle: bytes, layout: Sequence[Shape]) -> None:
        import cupy

        runtime = cupy.cuda.runtime
        try:
            address = runtime.ipcOpenMemHandle(handle)
        except runtime.CUDARuntimeError as error:
            raise OSError(f"memory of a device cannot be opened: {error}") from error
        self._end = weakref.finalize(self, runtime.ipcCloseMemHandle, address)
        self._end.atexit = False  # at exit the process closes it
        memory = cupy.cuda.UnownedMemory(address, SETS * _bytes(layout), None)
        self.sets = _arrays(cupy, memory, layout)

    def close(self) -> None:
        """Close the memory: nobody reads it any more."""
        self.sets = []
        self._end()


def _bytes(layout: Sequence[Shape]) -> int:
    """Return the bytes of one set."""
    return sum(_room(shape) for shape in layout)


def _room(shape: Shape) -> int:
    return max(1, -(-4 * WORDS_OF[shape.dtype] * shape.size // _LINE)) * _LINE


def _arrays(cupy: Any, memory: Any, layout: Sequence[Shape]) -> list[list[Buffer]]:
    sets, start = [], 0
    for _ in range(SETS):
        flats = []
        for shape in layout:
            place = cupy.cuda.MemoryPointer(memory, start)
            flats.append(cupy.ndarray((shape.size,), shape.dtype, place))
            start += _room(shape)
        sets.append(flats)
    return sets
