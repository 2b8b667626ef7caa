"""A training whose workers fetch models of each other in every step, at random.

Each says of whom it has fetched one that it has not said before. A pass is the last one if there is
a file ``enough``.
"""

import random
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.fabric import Fetch, Publish
from spotmpi.optimizers import SGD
from spotmpi.training.process import this_process

SIZE = 400_000
"""Numbers of a model, which is several messages."""
WORKERS = 6
"""More than there ever are."""


def main():
    """One worker of the job."""
    number, enough, last = 0, 0.0, {}
    model = np.zeros(SIZE)
    with spotmpi.Trainer({"w": np.zeros(9)}, optimizer=SGD(lr=0.1), seed=7) as trainer:
        fabric, draw = this_process().fabric, random.Random(trainer.worker)
        while not enough:
            for batch in trainer.batches(64, batch_size=2):
                model[:] = number
                fabric.perform(Publish([model]))
                number += 1
                found = fabric.perform(Fetch(draw.randrange(WORKERS)))
                if found is not None:
                    (one,) = found.model
                    assert (one == found.number).all(), "of two publications"
                    assert found.number >= last.get(found.worker, 0), "an older one than before"
                    if found.worker not in last:
                        print(f"FETCHED {trainer.worker} of {found.worker}", flush=True)
                    last[found.worker] = found.number
                trainer.step({"w": np.full(9, float(len(batch)))}, loss=0.0)
            enough = trainer.mean(float(Path("enough").exists()))


if __name__ == "__main__":
    main()
