"""A short training in which some workers are lost before it has begun: ``starts.py STAGE WORKERS``,
run by test_starts, with the workers that die there, ``1,2``, each once.

STAGE: ``import`` before spotmpi is, ``init`` in MPI's own start, ``handshake`` right before the
first request to others, ``ready`` and ``underway`` as soon as the launcher has been told so.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

stage, dying = sys.argv[1], sys.argv[2].split(",")
me = os.environ["OMPI_COMM_WORLD_RANK"]


def die():
    """As a provider would end it."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies():
    """Whether this worker is to; once."""
    try:
        Path(f"died-{me}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


doomed = me in dying and dies()
if doomed and stage == "import":
    die()

import spotmpi  # noqa: E402
from spotmpi.launcher_channel import LauncherChannel  # noqa: E402
from spotmpi.optimizers import SGD  # noqa: E402
from spotmpi.strategies import SSGD  # noqa: E402

tell = LauncherChannel.tell


def told(self, event, **fields):
    """It dies as soon as it has said that."""
    tell(self, event, **fields)
    if event == stage:
        die()


if doomed and stage == "init":  # MPI's start lets no other thread of Python run
    subprocess.Popen(["sh", "-c", f"sleep 0.05; kill -KILL {os.getpid()}"])
    import spotmpi.fabric.mpi.calls
if doomed and stage == "handshake":
    from spotmpi.fabric.mpi.fabric import MpiFabric

    MpiFabric.perform = lambda self, request: die()
if doomed:
    LauncherChannel.tell = told

with spotmpi.Trainer([np.ones(9)], optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    for _ in trainer.batches(40, batch_size=1):
        trainer.step([np.ones(9)])
print("FINAL", trainer.worker, trainer.steps, flush=True)
