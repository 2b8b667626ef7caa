"""Tells this process's MPI that another process is dead, without mpirun.

mpirun reports a death only to the processes that it started together with the dead one, and it
starts every newcomer alone. Otherwise only a reset connection shows a death. A host that falls
silent resets no connection, and the others would wait for it for ever. So the launcher tells every
worker of each death (`launcher_channel.Obituaries`), and each worker tells its own MPI, by a PMIx
event that does not leave the process. MPI ignores an event that it has already heard.

A worker also sees other workers of its host die (`process_watch`), some milliseconds before
mpirun reports it, and tells its MPI in the same way.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.libraries import loaded
from spotmpi.launcher_channel import Name, Obituaries
from spotmpi.protocol.membership import WorkerId

__all__ = ["Deaths", "Listener"]

# From PMIx's pmix_common.h, unchanged since its version 3.
_ABORTED_BY_SIGNAL = -402
_TO_THIS_PROCESS = 7
_A_PROCESS = 22
_WHO = b"pmix.evproc"


class _Process(ctypes.Structure):
    _fields_ = [("space", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint16),
        ("data", ctypes.c_void_p),
        ("room", ctypes.c_void_p * 2),
    ]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class Deaths:
    """Tells this process's MPI of deaths. MPI must have been started. Raises SpotmpiError if MPI's
    PMIx is not found."""

    def __init__(self) -> None:
        self._pmix = _library()

    @classmethod
    def found(cls) -> Deaths | None:
        """Return a `Deaths`, or None without PMIx: then MPI learns of all deaths from mpirun."""
        with suppress(SpotmpiError):
            return cls()
        return None

    def announce(self, dead: Name) -> None:
        """Have PMIx tell MPI that ``dead`` has died. For any thread; does not block."""
        process = _Process(dead.space, dead.rank)
        info = _Info(key=_WHO, value=_Value(_A_PROCESS, ctypes.addressof(process)))
        who, what, one = ctypes.byref(process), ctypes.byref(info), ctypes.c_size_t(1)
        told = self._pmix.PMIx_Notify_event(
            _ABORTED_BY_SIGNAL, who, _TO_THIS_PROCESS, what, one, None, None
        )
        if told != 0:
            raise SpotmpiError(f"PMIx does not pass on that {dead} has died (error {told})")


class Listener:
    """A thread that waits for obituaries, and announces those of workers that MPI knows here. MPI
    would forget the others."""

    def __init__(self, obituaries: Obituaries, announce: Callable[[Name], None]) -> None:
        self._obituaries, self._announce = obituaries, announce
        self._known: set[WorkerId] = set()
        self._told: set[WorkerId] = set()
        threading.Thread(target=self._listen, name="deaths", daemon=True).start()

    def follow(self, workers: Iterable[WorkerId]) -> None:
        """Add ``workers``, which MPI knows from now on. Does not block."""
        self._known.update(workers)
        self._obituaries.ring()

    def _listen(self) -> None:
        while True:
            self._obituaries.wait()
            for worker in self._known - self._told:
                name = self._obituaries.of(worker)
                if name is not None:
                    self._told.add(worker)
                    self._announce(name)


def _library() -> Any:
    """Return the PMIx that MPI has loaded: a library of its own, or a part of another of MPI's."""
    for library in loaded("libpmix", "libopen-pal", "libmpi"):
        if hasattr(library, "PMIx_Notify_event"):
            return library
    raise SpotmpiError("MPI's PMIx library was not found; `spotmpi doctor` shows which MPI is used")
