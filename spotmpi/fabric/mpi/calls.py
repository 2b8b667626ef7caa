"""Calls of MPI with ULFM, and the meaning of their errors. Importing this starts MPI."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mpi4py

# MPI_Finalize can hang after a failure. So workers exit without it, after a build and `Depart`,
# when no other worker needs them any more.
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402 - the setting above must come first

from spotmpi.arrays.backend import HOST, Buffer  # noqa: E402
from spotmpi.arrays.sums_of_hosts import add_up  # noqa: E402
from spotmpi.errors import PeersLost, SpotmpiError  # noqa: E402
from spotmpi.fabric.planes.unshared_sums import ends_in_row  # noqa: E402
from spotmpi.protocol.membership import WorkerId  # noqa: E402

__all__ = [
    "EVIDENCE",
    "MPI",
    "PAUSE",
    "Path",
    "Sent",
    "abort",
    "collective",
    "done",
    "duplicate",
    "is_broken",
    "is_failure",
    "is_lost",
    "let_go",
    "no_loss",
    "ranks_of",
    "sum_in_place",
    "take",
    "threads",
    "peers_lost",
]

_FAILURES = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED}

PAUSE = 1e-3
"""Seconds between two looks for what MPI does not report by itself."""

EVIDENCE = 2.0
"""Seconds within which the loss that has broken a call must become known."""

_FEW = 1024
"""Elements from which on MPI sums in an order of its own. Smaller models are summed by MPI if
nothing large is (`planes.unshared_sums`), and their order is the order of the members."""

Sent = tuple[MPI.Request, bytes | memoryview, MPI.Comm]
"""A message that may be under way. Its bytes must live until MPI says that they have left."""


class Path(NamedTuple):
    """A communicator, and the workers in it by rank."""

    comm: MPI.Intracomm
    workers: Sequence[WorkerId]


def abort() -> None:
    """End every process of the MPI job, this one included, with code 1. Does not return."""
    MPI.COMM_WORLD.Abort(1)


def threads() -> bool:
    """Return True if any thread may call MPI, while others do."""
    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)


def take(comm: MPI.Comm, source: int, tag: int) -> bytes | None:
    """Return a message that has come, or None. Never blocks."""
    status = MPI.Status()
    message = comm.Improbe(source, tag, status)
    message = message or comm.Improbe(source, tag, status)
    if message is None:
        return None
    data = bytearray(status.Get_count(MPI.BYTE))
    message.Recv([data, MPI.BYTE])
    return bytes(data)


def let_go(request: MPI.Request) -> bool:
    """Return True if MPI has let go of a message that is sent, or that comes, and free the request
    then. Raises MPI.Exception if it ended with an error.

    Test (or Wait) alone ends the request at once if the other worker is lost (Open MPI 5.0), and
    frees it. But its message may still be on the line:

    - The rest of one that comes arrives later. MPI writes it to the same memory, and counts it for
      the message that has this request by then: that one is whole before any of it has come.
    - One that is sent may wait to leave. When the line breaks as well, Open MPI says "Send error
      after request freed", and aborts.
    """
    return bool(request.Get_status() and request.Test())


def done(sent: Sent) -> bool:
    """Return True if the message has left, or its receiver is lost."""
    request, _, comm = sent
    try:
        return let_go(request)
    except MPI.Exception as error:
        peers_lost(error, comm)  # the receiver is gone, and with it the need for these bytes
        return True


def collective(comm: MPI.Comm, call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call that all of ``comm`` make. Raises PeersLost if it breaks because of a member."""
    try:
        return call(*arguments)
    except MPI.Exception as error:
        raise peers_lost(error, comm) from error


def sum_in_place(comm: MPI.Intracomm, arrays: Sequence[Buffer], most: int | None) -> None:
    """Replace each array by its sum over all members, with the same bits on all. Small ones are
    summed in the order of the members, and in one call of MPI, but for two members of one host.
    Collective; raises PeersLost as `collective`.

    ``most``: bytes of one call of MPI, so that no message has more; docs/adr/0033 tells why. None:
    all members are on one host, and a call sums any number of bytes."""
    # Any order of two gives the same sum, and on one host two calls take less time than a table.
    if comm.Get_size() > 2 or (most is not None and len(arrays) > 1):
        small = [one for one in arrays if len(one) < _FEW]
        arrays = [one for one in arrays if len(one) >= _FEW]
        if small:
            _sum_rows(comm, small, most)
    for one in arrays:
        _reduce(comm, one, most)


def _sum_rows(comm: MPI.Intracomm, arrays: Sequence[Buffer], most: int | None) -> None:
    """Replace these by their sums, by way of a table: each member has a row of its own, in which
    the others add zeros to the words that it brings."""
    many, rank = comm.Get_size(), comm.Get_rank()
    ends = ends_in_row(arrays)
    table = HOST.zeros("uint64", many * ends[-1] // 8)
    rows = table.view("uint8").reshape(many, ends[-1])
    for start, one in zip(ends, arrays, strict=False):
        rows[rank, start : start + one.nbytes] = one.view("uint8")
    _reduce(comm, table, most)
    for start, one in zip(ends, arrays, strict=False):
        brought = rows[:, start : start + one.nbytes].view(one.dtype)
        add_up(brought, one)


def _reduce(comm: MPI.Intracomm, array: Buffer, most: int | None) -> None:
    """Replace an array by its sum."""
    step = len(array) if most is None else most // array.itemsize
    for start in range(0, len(array), max(1, step)):
        collective(comm, comm.Allreduce, MPI.IN_PLACE, array[start : start + step])


def peers_lost(error: MPI.Exception, comm: MPI.Comm) -> PeersLost:
    """Return the `PeersLost` that an error on ``comm`` means; raise `no_loss` if it means none.

    Open MPI 5.0.11 sometimes reports a death as MPI_ERR_OTHER instead of a class of ULFM (seen in
    Bcast, on busy cores). So this also asks MPI whether a member is lost, for `EVIDENCE` seconds: a
    call may break before the loss is known.
    """
    until = time.monotonic() + EVIDENCE
    while not is_failure(error) and not is_broken(comm):
        if time.monotonic() > until:
            raise no_loss(error) from error
        MPI.COMM_SELF.Iprobe()  # MPI learns of losses only while it is called
        time.sleep(PAUSE)
    return PeersLost(error.Get_error_string())


def is_failure(error: MPI.Exception) -> bool:
    """Return True if the error has a class that ULFM defines for the loss of a peer."""
    return error.Get_error_class() in _FAILURES


def is_broken(comm: MPI.Comm) -> bool:
    """Return True if a member of ``comm`` is known here to be lost, or has revoked it."""
    failed = comm.Get_failed()
    try:
        return comm.Is_revoked() or failed.Get_size() > 0
    finally:
        failed.Free()


def is_lost(rank: int, comm: MPI.Comm) -> bool:
    """Return True if this member of ``comm`` is known here to be lost."""
    failed = comm.Get_failed()
    try:
        return rank in ranks_of(failed, comm)
    finally:
        failed.Free()


def ranks_of(group: MPI.Group, comm: MPI.Comm) -> list[int]:
    """Return the ranks in ``comm`` of the members of ``group``."""
    parent = comm.Get_group()
    try:
        return group.Translate_ranks(list(range(group.Get_size())), parent)
    finally:
        parent.Free()


def no_loss(error: MPI.Exception) -> SpotmpiError:
    """Return an error that says that no lost peer explains ``error``."""
    return SpotmpiError(
        f"MPI reports {error.Get_error_string()}: this is no revocation; "
        "`spotmpi doctor` shows which MPI a run uses"
    )


def duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a new communicator of the same members, which returns errors. Collective."""
    copy = comm.Dup()
    copy.Set_errhandler(MPI.ERRORS_RETURN)
    return copy
