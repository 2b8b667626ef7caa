"""Steps that take as long on every machine, of workers that change their strategy again and again.

Run by ``spotmpi run`` (`switches` does): ``python switching.py FOLDER PARAMS MS EVERY NAME...``. A
step takes MS milliseconds in which nothing is computed, as where an accelerator does it. The
training follows the strategies that are named, one after the other: EVERY steps after the last
change worker 0, which leads, asks for the next one. After as many steps of the last one it is over.
Each worker writes FOLDER/ID: for each of its steps when it was over, in seconds on this host's
clock, and how many steps of the training are taken with it; the steps of its own with which it
changed; and the moments at which it asked for that.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import named

ARRAYS = 4
"""Of the model, each a bucket of its own: so there is something to send in parts."""


def main(folder: Path, params: int, ms: float, every: int, names: Sequence[str]) -> None:
    """Train, as long as it takes."""
    known = {name: named(name) for name in names}
    model = [np.zeros(params // ARRAYS, np.float32) for _ in range(ARRAYS)]
    gradient = [np.full_like(one, 1e-3) for one in model]
    over: list[float] = []
    steps: list[int] = []
    changed: list[int] = []
    asked: list[float] = []
    first, *to_come = (known[name] for name in names)
    since = 0
    with spotmpi.Trainer(
        model,
        optimizer=SGD(lr=1e-3),
        strategy=first,
        strategies=to_come,
        bucket_mb=model[0].nbytes / 1e6,
    ) as trainer:
        for _ in trainer.batches(1 << 20, batch_size=1):
            time.sleep(ms / 1e3)
            trainer.step(gradient)
            over.append(time.monotonic())
            steps.append(trainer.steps)
            if to_come and str(trainer.strategy) == str(to_come[0]):
                changed.append(len(over) - 1)
                since = trainer.steps
                del to_come[0]
            if trainer.steps >= since + every:
                if not to_come:
                    break
                if trainer.worker == 0 and len(asked) == len(changed):
                    asked.append(time.monotonic())
                    trainer.strategy = to_come[0]
    found = {"over": over, "steps": steps, "changed": changed, "asked": asked}
    (folder / str(trainer.worker)).write_text(json.dumps(found))


if __name__ == "__main__":
    _, place, *numbers = sys.argv[:5]
    main(Path(place), int(numbers[0]), float(numbers[1]), int(numbers[2]), sys.argv[5:])
