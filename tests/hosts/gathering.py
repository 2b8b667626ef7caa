"""A training whose workers gather large values in every step.

Each says of whom it has had one that it has not said before. A pass is the last one if there is a
file ``enough``.
"""

from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD

SIZE = 20_000
"""Numbers of a value: those of all take many of MPI's messages."""


def main():
    """One worker of the job."""
    enough, had = 0.0, set()
    with spotmpi.Trainer({"w": np.zeros(9)}, optimizer=SGD(lr=0.1), seed=7) as trainer:
        while not enough:
            for step, batch in enumerate(trainer.batches(64, batch_size=2)):
                trainer.step({"w": np.full(9, float(len(batch)))}, loss=0.0)
                mine = np.full(SIZE, 1000.0 * step + trainer.worker)
                for worker, one in trainer.gather(mine.tobytes()).items():
                    assert (np.frombuffer(one) == 1000.0 * step + worker).all(), "of another"
                    if worker not in had:
                        print(f"HAD {trainer.worker} of {worker}", flush=True)
                    had.add(worker)
            enough = trainer.mean(float(Path("enough").exists()))


if __name__ == "__main__":
    main()
