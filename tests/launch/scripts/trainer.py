"""Trains with the real Trainer, for ever unless told otherwise.

usage: trainer.py [STEPS] [DEED:WORKER@STEP]...

``say``: write a line to each stream. ``rest``: come back at SIGUSR1. Also until SIGUSR1:
``compute``, have a ``child`` compute, or wait and say so (``busy``). Never come back from the
script: ``hang`` waits for a signal, ``lock`` for a lock, ``read`` for what nobody writes, ``poll``
for what never happens; nor from a round: ``wedge``. ``all`` names all workers. In place of a step:
``before`` there is a trainer, ``reading`` a checkpoint, ``keeping`` the last one.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD
from spotmpi.training import joining_worker
from spotmpi.training.keeping.checkpoints import Checkpoints

numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
steps = range(numbers[0]) if numbers else itertools.count()


def hang():
    signal.pause()


def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()


def read():
    reading, _ = os.pipe()
    os.read(reading, 1)


def poll():
    while not threading.Event().wait(1.0):
        pass


def wedge():
    trainer._connected("wedge")._runner.needs_others()
    lock()


def rest():
    signal.sigwait({signal.SIGUSR1})


def compute():
    while signal.SIGUSR1 not in signal.sigpending():
        np.sort(np.arange(100_000)[::-1])


def child():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as computes:
        rest()
        computes.kill()


def busy():
    with trainer.busy("evaluating"):
        rest()


def say():
    print(f"worker {trainer.worker} at step {trainer.steps}", flush=True)
    print(f"worker {trainer.worker} complains", file=sys.stderr, flush=True)


DEEDS = {
    one.__name__: one for one in (hang, lock, read, poll, wedge, rest, compute, child, busy, say)
}
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def do(worker, step):
    """What this worker is to do there."""
    for word in sys.argv[1:]:
        deed, _, place = word.partition(":")
        if place in (f"{worker}@{step}", f"all@{step}"):
            DEEDS[deed]()


me = os.environ.get("SPOTMPI_NEWCOMER") or os.environ.get("OMPI_COMM_WORLD_RANK")
do(me, "before")
usual = joining_worker._resume
joining_worker._resume = lambda *given, **how: do(me, "reading") or usual(*given, **how)
keep = Checkpoints.keep
Checkpoints.keep = lambda *given: do(me, "keeping") or keep(*given)
with spotmpi.Trainer({"w": np.zeros(8)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    for step in steps:
        do(trainer.worker, step)
        trainer.step({"w": np.ones(8)})
print(f"worker {trainer.worker} took {trainer.steps} steps with {len(trainer.workers)}")
