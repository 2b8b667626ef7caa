"""Memory that processes of one host share, without a name in any file system.

A segment is a file of the kernel's own (memfd). It is gone with the last process that has it open
or mapped, in any way that process ends. Another process of the same user opens it through /proc, if
/proc shows it the same processes; a trial shows that. Nothing listens anywhere, and the size of
/dev/shm does not matter.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spotmpi.errors import SpotmpiError

__all__ = ["PAGE", "Arrangement", "Found", "Memory", "Place", "Segment", "bytes_of"]

PAGE = mmap.PAGESIZE
_NAME = "spotmpi"
_MARK = 8
"""Bytes at the beginning of a segment that tell it from all others."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mremap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10
_NONE = 0
"""The protection of addresses without pages: to touch them ends the process."""
_MAY_MOVE, _TO_ADDRESS, _STAY = 1, 2, 4  # flags of mremap; the last since Linux 5.13 for segments
_HUGE = 1 << 21
"""Page tables move whole between places that are equally far from multiples of this."""


class Found(NamedTuple):
    """How to find a segment: a process, its descriptor of the segment, and the segment's mark."""

    process: int
    descriptor: int
    mark: int


class Segment:
    """A piece of memory that others can map, all zero but for its mark. Closed with this object.

    Raises OSError if the kernel grants none.
    """

    def __init__(self, size: int) -> None:
        self._take(os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.ftruncate(self.descriptor, size)
        # Nobody can shrink it under a process that reads it: that would end the process.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self.size = size
        self.mark = (int.from_bytes(os.urandom(8), "little") >> 2) + 1
        os.pwrite(self.descriptor, self.mark.to_bytes(_MARK, "little"), 0)

    @classmethod
    def reach(cls, found: Found, size: int) -> Segment:
        """Open another process's segment. OSError if it cannot be reached, or is another one."""
        path = f"/proc/{found.process}/fd/{found.descriptor}"
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            raise FileNotFoundError(f"{path} is not what it was said to be")
        self = cls.__new__(cls)
        self._take(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY))
        mark = int.from_bytes(os.pread(self.descriptor, _MARK, 0), "little")
        if (mark, os.fstat(self.descriptor).st_size) != (found.mark, size):
            raise FileNotFoundError(f"{path} is not what it was said to be")
        self.size, self.mark = size, mark
        return self

    @property
    def here(self) -> Found:
        """How other processes find this segment."""
        return Found(os.getpid(), self.descriptor, self.mark)

    def _take(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)


class Memory:
    """Pages of this process. They are given back when no array lies in them any more."""

    def __init__(self, size: int, segment: Segment | None = None, at: int = 0) -> None:
        """Map pages of ``segment`` from its byte ``at`` on; without one, private pages."""
        self.size = _rounded(size)
        self.address = _map(0, self.size, segment, at)
        unmap = weakref.finalize(self, _libc.munmap, self.address, self.size)
        unmap.atexit = False  # an array may be in use until the process ends

    def array(self, dtype: str, size: int, at: int = 0) -> Any:
        """Return an array of ``size`` elements from the byte ``at`` on."""
        return np.asarray(_Elements(self, np.dtype(dtype), size, at))

    def show(self, segment: Segment, at: int) -> None:
        """Map pages of ``segment`` from now on, at the same addresses."""
        _map(self.address, self.size, segment, at)

    def unshare(self) -> None:
        """Use private pages from now on, with the present content, at the same addresses."""
        own = _map(0, self.size, None, 0)
        ctypes.memmove(own, self.address, self.size)
        moved = _libc.mremap(
            own, self.size, self.size, _MAY_MOVE | _TO_ADDRESS, ctypes.c_void_p(self.address)
        )
        if moved != self.address:
            raise _refused(self.size)


class Place:
    """Addresses of this process, below which pages come and go. They are given back when no array
    lies there any more."""

    def __init__(self, size: int) -> None:
        """Reserve the addresses, without pages: to touch them ends the process."""
        self.size = _rounded(size)
        reserved = _map(0, self.size + _HUGE, None, 0, _NONE)
        self.address = -(-reserved // _HUGE) * _HUGE
        end, spare_from = reserved + self.size + _HUGE, self.address + self.size
        if self.address > reserved:
            _libc.munmap(reserved, self.address - reserved)
        if end > spare_from:
            _libc.munmap(spare_from, end - spare_from)
        unmap = weakref.finalize(self, _libc.munmap, self.address, self.size)
        unmap.atexit = False  # as in `Memory`

    def array(self, dtype: str, size: int, at: int = 0) -> Any:
        """Return an array of ``size`` elements from the byte ``at`` on."""
        return np.asarray(_Elements(self, np.dtype(dtype), size, at))

    def use(self, segment: Segment | None = None, at: int = 0) -> None:
        """Map pages of ``segment`` from its byte ``at`` on; without one, private zeros."""
        _map(self.address, self.size, segment, at)
        if segment is None:  # large pages where possible, as in NumPy
            _libc.madvise(self.address, self.size, mmap.MADV_HUGEPAGE)

    def leave(self) -> None:
        """Give up all pages."""
        _map(self.address, self.size, None, 0, _NONE)

    def copy(self, other: Place) -> None:
        """Copy the bytes of another place here."""
        ctypes.memmove(self.address, other.address, self.size)

    def move(self, other: Place) -> None:
        """Move these pages, with their page tables, to ``other``, of the same size; its own pages
        go. Both places always have pages: this one gets the same again if they are a segment's,
        else zeros. Raises SpotmpiError."""
        flags = _MAY_MOVE | _TO_ADDRESS | _STAY
        to = ctypes.c_void_p(other.address)
        if _libc.mremap(self.address, self.size, self.size, flags, to) != other.address:
            why = os.strerror(ctypes.get_errno())
            raise SpotmpiError(f"memory for parameters cannot change its place: {why}")


class _Elements:
    """A memory's elements, from which NumPy makes an array. The array keeps the memory."""

    def __init__(self, memory: Memory | Place, dtype: np.dtype[Any], size: int, at: int) -> None:
        self.memory = memory
        self.__array_interface__ = {
            "version": 3,
            "data": (memory.address + at, False),
            "shape": (size,),
            "typestr": dtype.str,
        }


class Arrangement:
    """Where some arrays lie in memory: one after the other, each on pages of its own."""

    def __init__(self, arrays: Sequence[tuple[str, int]]) -> None:
        """Arrange arrays of these dtypes and sizes."""
        self._arrays = arrays
        sizes = [bytes_of(dtype, size) for dtype, size in arrays]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.bytes = sum(sizes)

    def arrays_in(self, memory: Memory | Place) -> list[Any]:
        """Return the arrays that lie in this memory."""
        return [
            memory.array(dtype, size, start)
            for (dtype, size), start in zip(self._arrays, self._starts, strict=True)
        ]


def bytes_of(dtype: str, size: int) -> int:
    """Return the bytes of an array of ``size`` elements, rounded up to whole pages."""
    return _rounded(np.dtype(dtype).itemsize * size)


def _rounded(size: int) -> int:
    return max(1, -(-size // PAGE)) * PAGE


def _map(
    address: int,
    size: int,
    segment: Segment | None,
    at: int,
    protection: int = mmap.PROT_READ | mmap.PROT_WRITE,
) -> int:
    flags = mmap.MAP_SHARED if segment else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    found: int = _libc.mmap(
        address,
        size,
        protection,
        flags | (_MAP_FIXED if address else 0),
        segment.descriptor if segment else -1,
        at,
    )
    if found == _FAILED:
        raise _refused(size)
    return found


def _refused(size: int) -> SpotmpiError:
    why = os.strerror(ctypes.get_errno())
    return SpotmpiError(f"no room for {size / 1e6:.0f} MB of memory for rounds: {why}")
