"""Tells this process's MPI that another process is dead, without mpirun.

mpirun tells a death to those only that were started together with the dead, and every newcomer is
started on its own. What else makes a death known is a connection that is reset, and a host that
falls silent resets nothing: the others would wait for it for ever. So the launcher makes each
death known to every worker (`channel.Obituaries`), and each hands it to its own MPI, as an event
of PMIx that does not leave the process. MPI takes an event that it has heard already for nothing.

A worker also sees its neighbours die (`planes.watched`), which is some milliseconds earlier than
mpirun says it, and tells its MPI in the same way.
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

# Of PMIx's pmix_common.h, the same since its version 3.
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
    """What this process's MPI is told. MPI must have been started; raises SpotmpiError if its PMIx
    is nowhere."""

    def __init__(self) -> None:
        self._pmix = _library()

    @classmethod
    def found(cls) -> Deaths | None:
        """None where PMIx is nowhere: MPI learns of all deaths from mpirun then."""
        with suppress(SpotmpiError):
            return cls()
        return None

    def announce(self, dead: Name) -> None:
        """Have PMIx raise the event in this process. For any thread; does not block."""
        process = _Process(dead.space, dead.rank)
        info = _Info(key=_WHO, value=_Value(_A_PROCESS, ctypes.addressof(process)))
        who, what, one = ctypes.byref(process), ctypes.byref(info), ctypes.c_size_t(1)
        told = self._pmix.PMIx_Notify_event(
            _ABORTED_BY_SIGNAL, who, _TO_THIS_PROCESS, what, one, None, None
        )
        if told != 0:
            raise SpotmpiError(f"PMIx does not pass on that {dead} has died (error {told})")


class Listener:
    """A thread that waits for obituaries, and has those of workers announced that MPI knows here:
    it forgets what it is told of others."""

    def __init__(self, obituaries: Obituaries, announce: Callable[[Name], None]) -> None:
        self._obituaries, self._announce = obituaries, announce
        self._known: set[WorkerId] = set()
        self._told: set[WorkerId] = set()
        threading.Thread(target=self._listen, name="deaths", daemon=True).start()

    def follow(self, workers: Iterable[WorkerId]) -> None:
        """MPI knows these from now on. Does not block."""
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
    """The PMIx that MPI has loaded: a library of its own, or a part of another one of MPI's."""
    for library in loaded("libpmix", "libopen-pal", "libmpi"):
        if hasattr(library, "PMIx_Notify_event"):
            return library
    raise SpotmpiError("MPI's PMIx library was not found; `spotmpi doctor` shows which MPI is used")
