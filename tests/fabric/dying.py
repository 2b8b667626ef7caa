"""Deaths while communicators are being made, for test_half_made.py: run under mpirun.

``collectives guarded`` and ``collectives bare``: a communicator without them is revoked, as one is
that is still being made; ``messages``: one that has none of both, as at first. ``together guarded
SEED``: worker 2 of 4 dies in an all-reduce, and worker 1 up to 6 ms after the others began to
shrink.
"""

import ctypes
import os
import random
import signal
import sys
import time

import numpy as np

from spotmpi.fabric.mpi import half_made
from spotmpi.fabric.mpi.calls import MPI

moment, guarded, *seed = sys.argv[1:]
if guarded == "guarded":
    assert half_made.guard()
MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)


def revoked_without(*missing: int) -> None:
    """Without what is that far before the flags of a communicator."""
    place = half_made._place_of_collectives(half_made._library())
    assert place is not None
    comm = MPI.COMM_SELF.Dup()
    pointers = [ctypes.c_void_p.from_address(MPI._handleof(comm) + place - far) for far in missing]
    theirs = [pointer.value for pointer in pointers]
    assert None not in theirs
    for pointer in pointers:
        pointer.value = None
    comm.Revoke()
    assert [pointer.value for pointer in pointers] == [None] * len(missing), "it is lent still"
    assert comm.Is_revoked()
    for pointer, value in zip(pointers, theirs, strict=True):
        pointer.value = value
    comm.Free()


def together() -> None:
    comm = MPI.COMM_WORLD.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    delay = random.Random(seed[0]).uniform(0, 0.006)
    values = np.zeros(100, np.float32)
    try:
        for step in range(20):
            if comm.rank == 2 and step == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.Allreduce(MPI.IN_PLACE, values)
    except MPI.Exception:
        comm.Revoke()
    mine = os.getpid()
    if comm.rank == 1 and os.fork() == 0:  # in Shrink it cannot kill itself
        until = time.perf_counter() + delay
        while time.perf_counter() < until:
            pass
        os.kill(mine, signal.SIGKILL)
        os._exit(0)
    while True:
        try:
            shrunk = comm.Shrink()
        except MPI.Exception:
            continue
        break
    if comm.rank == 1:
        signal.pause()
    shrunk.Set_errhandler(MPI.ERRORS_RETURN)
    assert shrunk.Get_size() in (2, 3)


MOMENTS = {
    "collectives": lambda: revoked_without(0),
    "messages": lambda: revoked_without(0, half_made._BEFORE_COLLECTIVES),
    "together": together,
}
MOMENTS[moment]()
sys.stdout.write("SURVIVED\n")
sys.stdout.flush()
os._exit(0)
