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
"""Two of results, and one of contributions."""

HANDLE = 64
"""Bytes by which another process opens an allocation."""

_LINE = 256
"""Bytes on which arrays begin."""


class DeviceMemory:
    """This worker's; it goes with its last array. An allocation of its own: what a pool gives has
    no handle, and opening the pool's would show others all that is in it."""

    def __init__(self, layout: Sequence[Shape]) -> None:
        import cupy

        size = SETS * _bytes(layout)
        self._memory = cupy.cuda.Memory(size)
        self.sets = _arrays(cupy, self._memory, layout)
        for flats in self.sets:
            for flat in flats:
                DEVICE.fill(flat, 0)

    def handle(self) -> bytes | None:
        """By which others can open it; None where that is not possible."""
        import cupy

        try:
            found: bytes = cupy.cuda.runtime.ipcGetMemHandle(self._memory.ptr)
        except cupy.cuda.runtime.CUDARuntimeError:
            return None
        return found


class Opened:
    """Another worker's, until it is closed or goes. OSError if it cannot be opened from here."""

    def __init__(self, handle: bytes, layout: Sequence[Shape]) -> None:
        import cupy

        runtime = cupy.cuda.runtime
        try:
            address = runtime.ipcOpenMemHandle(handle)
        except runtime.CUDARuntimeError as error:
            raise OSError(f"memory of a device cannot be opened: {error}") from error
        self._end = weakref.finalize(self, runtime.ipcCloseMemHandle, address)
        self._end.atexit = False  # the process closes it
        memory = cupy.cuda.UnownedMemory(address, SETS * _bytes(layout), None)
        self.sets = _arrays(cupy, memory, layout)

    def close(self) -> None:
        """Nobody reads it any more."""
        self.sets = []
        self._end()


def _bytes(layout: Sequence[Shape]) -> int:
    """Of one set."""
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
