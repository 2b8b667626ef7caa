"""Stands in for a training: speaks to the launcher, and recovers from deaths as ULFM has it.

usage: training.py [DEED:WORKER@MOMENT]...

Each named worker does its deed at a moment: ``start`` (before anything), ``begun`` (after
``begin``), ``ready``, a step's number, or ``done`` (after ``done``). ``all`` names all workers.
"""

import ctypes
import os
import signal
import sys
import time

import mpi4py
import numpy as np

from spotmpi.launcher_channel import LauncherChannel
from spotmpi.settings import Settings

mpi4py.rc.finalize = False
STEPS = 20

settings = Settings.from_environ()
channel = LauncherChannel.open(settings)
me = settings.rank


def fail():
    raise ValueError(f"planted in worker {me}")


def die(number):
    return lambda: os.kill(os.getpid(), number)


def wait():
    print(f"worker {me} waits", flush=True)
    signal.pause()


def abort():
    MPI.COMM_WORLD.Abort(7)


DEEDS = {
    "abort": abort,
    "crash": lambda: ctypes.string_at(1),
    "exit0": lambda: sys.exit(0),
    "exit3": lambda: sys.exit(3),
    "exit75": lambda: sys.exit(75),
    "kill": die(signal.SIGKILL),
    "message": lambda: sys.exit("a planted message"),
    "raise": fail,
    "sigabrt": die(signal.SIGABRT),
    "sigint": die(signal.SIGINT),
    "term": die(signal.SIGTERM),
    "wait": wait,
}


def moment(name):
    for argument in sys.argv[1:]:
        deed, _, place = argument.partition(":")
        who, _, when = place.partition("@")
        if who in ("all", str(me)) and when == name:
            DEEDS[deed]()


moment("start")
channel.tell("begin")
moment("begun")
from mpi4py import MPI  # noqa: E402 - a moment lies before MPI's start

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
channel.tell("ready")
world.Barrier()
channel.tell("underway")
moment("ready")
comm = world
ones, total = np.ones(100), np.empty(100)
for step in range(STEPS):
    moment(str(step))
    while True:
        try:
            comm.Allreduce(ones, total)
            break
        except MPI.Exception:
            comm.Revoke()
            before = comm.Get_group()
            comm = comm.Shrink()
            comm.Set_errhandler(MPI.ERRORS_RETURN)
            lost = MPI.Group.Difference(before, comm.Get_group())
            ids = MPI.Group.Translate_ranks(lost, None, world.Get_group())
            death = min((at for at in map(channel.death_of, ids) if at), default=None)
            channel.tell(
                "recovery",
                generation=world.size - comm.size,
                lost=sorted(ids),
                step=step,
                workers=comm.size,
                total_ms=death and (time.monotonic() - death) * 1e3,
                verdict="retry",
            )
            print("recovered", flush=True)
comm.Agree(1)  # whoever goes is needed by nobody
channel.tell("checkpoint", step=STEPS, path="somewhere/step-20")
channel.tell("done")
moment("done")
print(f"worker {me} trained with {int(total[0])}")
