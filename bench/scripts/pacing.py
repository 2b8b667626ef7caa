"""Steps that take as long on every machine, of workers that write down when each was over.

Run by ``spotmpi run`` (`stragglers` does): ``python pacing.py FOLDER PARAMS MS STEPS SLOW DIES``.
A step takes MS milliseconds, on worker 1 SLOW times as many, in which nothing is computed: as where
an accelerator does it. So workers do not share cores. After half of all STEPS worker 2 dies if DIES
is 1, by SIGKILL. Each worker writes FOLDER/ID: the seconds on this host's clock when its steps were
over; the last of the dead one is when it died.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD

SLOW, VICTIM = 1, 2
LAYERS = 64
"""Arrays that the model has: one array cannot be split into fragments."""


def main(arguments: list[str]) -> None:
    """Train, as long as it takes."""
    folder, params, ms, steps, slow, dies = Path(arguments[0]), *map(float, arguments[1:])
    over: list[float] = []
    sizes = [len(part) for part in np.array_split(np.empty(int(params), np.bool_), LAYERS)]
    model = [np.zeros(size, np.float32) for size in sizes]
    with spotmpi.Trainer(model, optimizer=SGD(lr=1e-3)) as trainer:
        took = ms / 1e3 * (slow if trainer.worker == SLOW else 1.0)
        gradient = [np.full(size, 1e-3, np.float32) for size in sizes]
        for _ in trainer.batches(1 << 20, batch_size=1):
            time.sleep(took)
            trainer.step(gradient)
            over.append(time.monotonic())
            if trainer.worker == VICTIM and dies and trainer.steps >= steps / 2:
                (folder / str(trainer.worker)).write_text(json.dumps(over))
                os.kill(os.getpid(), signal.SIGKILL)
            if trainer.steps >= steps:
                break
    (folder / str(trainer.worker)).write_text(json.dumps(over))


if __name__ == "__main__":
    main(sys.argv[1:])
