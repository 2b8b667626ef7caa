"""Copies between the memory of a device and of the host, by two rooms that both can reach.

A device copies beside the worker only to and from pinned memory, of which there should be little.
So an array goes piece by piece: while the device has one room, the worker has the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from spotmpi.arrays.backend import Buffer

__all__ = ["ROOM", "Staging"]

ROOM = 4 << 20
"""Bytes of one room."""


class _Room:
    """Pinned memory, and an event: the device has done its last work with the memory."""

    def __init__(self, cupy: Any) -> None:
        memory = cupy.cuda.alloc_pinned_memory(ROOM)
        self.bytes = np.frombuffer(memory, np.uint8, ROOM)
        self.address = int(self.bytes.ctypes.data)
        self.done = cupy.cuda.Event(disable_timing=True)


class Staging:
    """One worker's two rooms. Only one thread at a time may use them."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._rooms = [_Room(cupy), _Room(cupy)]

    def to_host(self, source: Buffer, target: Buffer) -> None:
        """Copy an array of the device to one of the host. Blocks until it is there, and until all
        is done that the calling thread's current stream got before."""
        self._after_the_callers()
        room, other = self._rooms
        last: tuple[_Room, slice] | None = None
        for piece in _pieces(source.nbytes):
            size = piece.stop - piece.start
            place = source.data + piece.start
            place.copy_to_host_async(room.address, size, self._stream)
            room.done.record(self._stream)
            self._take(last, target)
            last, room, other = (room, piece), other, room
        self._take(last, target)

    def to_device(self, source: Buffer, target: Buffer) -> None:
        """Copy an array of the host to one of the device. Returns when ``source`` has been read.
        What the calling thread's current stream gets after this finds the array in ``target``."""
        self._after_the_callers()
        room, other = self._rooms
        host = source.view(np.uint8)
        for piece in _pieces(target.nbytes):
            size = piece.stop - piece.start
            room.done.synchronize()
            room.bytes[:size] = host[piece]
            place = target.data + piece.start
            place.copy_from_host_async(room.address, size, self._stream)
            room.done.record(self._stream)
            room, other = other, room
        there = self._cupy.cuda.Event(disable_timing=True)
        there.record(self._stream)
        self._cupy.cuda.get_current_stream().wait_event(there)

    def settle(self) -> None:
        """Return when nothing is under way any more."""
        self._stream.synchronize()

    def _after_the_callers(self) -> None:
        """Have copies wait for what the caller's stream got before: others' writes and reads."""
        given = self._cupy.cuda.Event(disable_timing=True)
        given.record(self._cupy.cuda.get_current_stream())
        self._stream.wait_event(given)

    @staticmethod
    def _take(filled: tuple[_Room, slice] | None, target: Buffer) -> None:
        if filled is not None:
            room, piece = filled
            room.done.synchronize()
            target.view(np.uint8)[piece] = room.bytes[: piece.stop - piece.start]


def _pieces(size: int) -> Iterator[slice]:
    for start in range(0, size, ROOM):
        yield slice(start, min(start + ROOM, size))
