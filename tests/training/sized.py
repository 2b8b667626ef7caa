"""A training of so many floats, in which each worker says how much memory is its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

size, born_in_place = int(sys.argv[1]), sys.argv[2] == "in-place"
weights = [np.zeros(size, np.float32)]
with spotmpi.Trainer(weights, optimizer=Momentum(lr=0.01), strategy=SSGD()) as trainer:
    gradients = trainer.gradients if born_in_place else [np.zeros(size, np.float32)]
    for step in range(6):
        if step == 4:
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            # Without what is mapped of files: programs that others run as well at the moment.
            found = dict(line.split()[:2] for line in lines[1:])
            print("BYTES", 1024 * (int(found["Pss_Anon:"]) + int(found["Pss_Shmem:"])), flush=True)
        gradients[0][:] = 1e-3
        trainer.step(gradients)
