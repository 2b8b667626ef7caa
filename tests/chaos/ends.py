"""A short training whose workers say when they are out of the last build, and die when told to.

``ends.py FOLDER STRATEGY``, run by test_ends. Into the pipe ``said`` of the folder goes ``in
WORKER`` when one begins, ``out WORKER`` as soon as it has the answer that training is over, and
``gone WORKER`` when it has left its block. A worker whose pipe, ``0`` and so on, was opened by
somebody else is dead.
"""

import os
import select
import signal
import sys
import threading
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.fabric import Rebuild
from spotmpi.fabric.mpi.fabric import MpiFabric
from spotmpi.optimizers import SGD
from spotmpi.strategies import named

SIZE = 1500

folder, strategy = Path(sys.argv[1]), named(sys.argv[2])
pipe = os.open(folder / "said", os.O_WRONLY)
perform = MpiFabric.perform


def say(what, worker):
    """One line; what is so short arrives whole."""
    os.write(pipe, f"{what} {worker}\n".encode())


def performed(self, request):
    """Say that the build is over before anything else is done."""
    reply = perform(self, request)
    if isinstance(request, Rebuild) and reply.sealed:
        say("out", self.me)
    return reply


def die_when_told(mine):
    """MPI lets other threads run while it waits."""
    told = select.poll()
    told.register(mine)
    told.poll()
    os.kill(os.getpid(), signal.SIGKILL)


trainer = spotmpi.Trainer([np.ones(SIZE, np.float32)], optimizer=SGD(lr=0.1), strategy=strategy)
with trainer:
    MpiFabric.perform = performed
    mine = os.open(folder / str(trainer.worker), os.O_RDONLY | os.O_NONBLOCK)
    threading.Thread(target=die_when_told, args=[mine], daemon=True).start()
    say("in", trainer.worker)
    for _ in trainer.batches(64, batch_size=1):
        trainer.step([np.ones(SIZE, np.float32)])
say("gone", trainer.worker)
