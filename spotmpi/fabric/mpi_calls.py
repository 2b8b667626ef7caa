"""Calls of MPI with ULFM, and what their errors tell. Importing this starts MPI."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mpi4py

# MPI_Finalize can hang after a failure. Workers leave through the door, after which nobody
# needs them, and then simply exit.
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402 - the setting above must come first

from spotmpi.arrays.backend import HOST, Buffer  # noqa: E402
from spotmpi.arrays.sums_of_hosts import add_up  # noqa: E402
from spotmpi.errors import PeersLost, SpotmpiError  # noqa: E402

__all__ = [
    "EVIDENCE",
    "MPI",
    "PAUSE",
    "Sent",
    "collective",
    "done",
    "duplicate",
    "has_left",
    "is_broken",
    "is_failure",
    "no_loss",
    "ranks_of",
    "sum_in_place",
    "take",
    "threads",
    "peers_lost",
]

_FAILURES = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED}

PAUSE = 1e-3
"""Seconds between two looks for what MPI does not tell by itself."""

EVIDENCE = 2.0
"""Seconds in which a loss must be known that has broken a call."""

_WORDS = {"float32": MPI.UINT32_T, "float64": MPI.UINT64_T}
"""What is trained, and whole numbers of the same size."""

_FEW = 1024
"""Elements from which on MPI sums in an order of its own. Models that are smaller have no other way
than MPI (`planes.node`), and theirs is to be ours."""

Sent = tuple[MPI.Request, bytes, MPI.Comm]
"""What may still be on its way: the bytes must live until MPI says that they have left."""


def threads() -> bool:
    """Whether any thread may call MPI, beside others."""
    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)


def take(comm: MPI.Comm, source: int, tag: int) -> bytes | None:
    """A message that has come, or None."""
    status = MPI.Status()
    message = comm.Improbe(source, tag, status)
    message = message or comm.Improbe(source, tag, status)
    if message is None:
        return None
    data = bytearray(status.Get_count(MPI.BYTE))
    message.Recv([data, MPI.BYTE])
    return bytes(data)


def has_left(request: MPI.Request) -> bool:
    """Whether MPI has let go of a message that is sent; then the request is freed. MPI.Exception if
    it was let go of with an error.

    Whoever asks by Test (or Wait) kills the job: for a receiver that is lost, Open MPI 5.0 ends the
    request there and then, and frees it, though the message still waits for the line. When the line
    breaks as well, it says "Send error after request freed", and aborts.
    """
    return bool(request.Get_status() and request.Test())


def done(sent: Sent) -> bool:
    """Whether it has left, or nobody is left to take it."""
    request, _, comm = sent
    try:
        return has_left(request)
    except MPI.Exception as error:
        peers_lost(error, comm)  # the receiver is gone, and with it the need for these bytes
        return True


def collective(comm: MPI.Comm, call: Callable[..., Any], *arguments: Any) -> Any:
    """A call that all of ``comm`` make. PeersLost if it breaks because of one of them."""
    try:
        return call(*arguments)
    except MPI.Exception as error:
        raise peers_lost(error, comm) from error


def sum_in_place(comm: MPI.Intracomm, array: Buffer) -> None:
    """``array`` = the sum of what all bring, which all find with the same bits; what is small, and
    is trained, in the order of the members. Collective; PeersLost as `collective`."""
    many, size = comm.Get_size(), len(array)
    dtype = "" if many < 3 or size >= _FEW else HOST.describe(array)[0]
    if dtype not in _WORDS:  # of two, or of whole numbers, any order comes to the same
        collective(comm, comm.Allreduce, MPI.IN_PLACE, array)
        return
    # Each has a row of its own, in which the others add zeros to the words of what it brings.
    table = HOST.zeros(dtype, many * size)
    rows = [table[start : start + size] for start in range(0, many * size, size)]
    rows[comm.Get_rank()][:] = array
    collective(comm, comm.Allreduce, MPI.IN_PLACE, [table, _WORDS[dtype]])
    add_up(rows, array)


def peers_lost(error: MPI.Exception, comm: MPI.Comm) -> PeersLost:
    """What an error on ``comm`` tells: `PeersLost`, or it is raised as no failure of a peer.

    Open MPI 5.0.11 at times tells a survivor of a death MPI_ERR_OTHER instead of a class of ULFM
    (seen in Bcast, on busy cores). So MPI is also asked whether anyone is lost, for a while: a call
    may break before the loss is known.
    """
    until = time.monotonic() + EVIDENCE
    while not is_failure(error) and not is_broken(comm):
        if time.monotonic() > until:
            raise no_loss(error) from error
        MPI.COMM_SELF.Iprobe()  # MPI learns of losses only where it is called
        time.sleep(PAUSE)
    return PeersLost(error.Get_error_string())


def is_failure(error: MPI.Exception) -> bool:
    """Whether it is of a class that ULFM has for the loss of a peer."""
    return error.Get_error_class() in _FAILURES


def is_broken(comm: MPI.Comm) -> bool:
    """Whether somebody of ``comm`` is lost, as far as is known here, or has found one lost."""
    failed = comm.Get_failed()
    try:
        return comm.Is_revoked() or failed.Get_size() > 0
    finally:
        failed.Free()


def ranks_of(group: MPI.Group, comm: MPI.Comm) -> list[int]:
    """Of the members of ``group``, in ``comm``."""
    parent = comm.Get_group()
    try:
        return group.Translate_ranks(list(range(group.Get_size())), parent)
    finally:
        parent.Free()


def no_loss(error: MPI.Exception) -> SpotmpiError:
    """An error that no lost peer explains."""
    return SpotmpiError(
        f"MPI reports {error.Get_error_string()}: this is no revocation; "
        "`spotmpi doctor` shows which MPI a run uses"
    )


def duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Another one with the same members, which returns errors. Collective."""
    copy = comm.Dup()
    copy.Set_errhandler(MPI.ERRORS_RETURN)
    return copy
