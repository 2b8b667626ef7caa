"""Trains with the real Trainer, for ever unless told otherwise.

usage: trainer.py [STEPS] [DEED:WORKER@STEP]...

``hang``: never come back from the script. ``rest``: come back at SIGUSR1. ``say``: write a line to
each stream. ``all`` names all workers.
"""

import itertools
import signal
import sys

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
steps = range(numbers[0]) if numbers else itertools.count()


def hang():
    signal.pause()


def rest():
    signal.sigwait({signal.SIGUSR1})


def say():
    print(f"worker {trainer.worker} at step {trainer.steps}", flush=True)
    print(f"worker {trainer.worker} complains", file=sys.stderr, flush=True)


DEEDS = {"hang": hang, "rest": rest, "say": say}
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

with spotmpi.Trainer({"w": np.zeros(8)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    for step in steps:
        for word in sys.argv[1:]:
            deed, _, place = word.partition(":")
            if place in (f"{trainer.worker}@{step}", f"all@{step}"):
                DEEDS[deed]()
        trainer.step({"w": np.ones(8)})
print(f"worker {trainer.worker} took {trainer.steps} steps with {len(trainer.workers)}")
