"""Workers crash: ``crashes.py WHERE``, run by test_crashes.

WHERE: ``mpi`` for worker 1 while it waits for others in MPI, in its 20th step; ``again`` for it and
for each that comes in its place; ``script`` for worker 1 in the script itself.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.settings import Settings
from spotmpi.strategies import SSGD
from tests.fabric.planes import InPlacePlane

where = sys.argv[1]
if Settings.from_environ().newcomer is None:  # workers wait for each other in MPI
    from spotmpi.fabric.mpi import fabric

    fabric.PLANE = InPlacePlane
main = threading.get_ident()


def crash():
    """As something in MPI would have it, once this worker waits there."""
    while "fabric/mpi" not in sys._current_frames()[main].f_code.co_filename:
        os.sched_yield()
    Path(f"waits-{trainer.worker}").unlink()
    os.kill(os.getpid(), signal.SIGSEGV)


trainer = spotmpi.Trainer([np.ones(9)], optimizer=SGD(lr=0.1), strategy=SSGD())
with trainer:
    steps = 0
    for _ in trainer.batches(4000, batch_size=1, passes=1000 if where == "again" else 1):
        steps += trainer.worker in trainer.workers
        doomed = trainer.worker == 1 or (where == "again" and trainer.worker > 2)
        if doomed and steps == 20 and where == "script":
            os.kill(os.getpid(), signal.SIGSEGV)
        if doomed and steps == 20:
            Path(f"waits-{trainer.worker}").touch()
            threading.Thread(target=crash, daemon=True).start()
        while not doomed and [*Path().glob("waits-*")]:  # where it waits is MPI, then
            os.sched_yield()
        trainer.step([np.ones(9)])
print("FINAL", trainer.worker, trainer.steps, flush=True)
