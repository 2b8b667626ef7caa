"""Trains a small model on made-up data, as `tests/chaos/script.py` does.

usage: learner.py WORK

Each gradient is computed WORK times over. A pass is a loop of its own, with a mean after it: it was
the last one if there is a file ``enough``, so that a test has all the time that it needs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "chaos"))

import model

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

work, passes, enough = int(sys.argv[1]), 0, 0.0
with spotmpi.Trainer(
    model.params(), optimizer=Momentum(lr=0.02), strategy=SSGD(), seed=7
) as trainer:
    while not enough:
        for batch in trainer.batches(model.SAMPLES, batch_size=4):
            for _ in range(work):
                loss, grads = model.gradient(trainer.params, batch)
            trainer.step(grads, loss=loss)
        passes, enough = passes + 1, trainer.mean(float(Path("enough").exists()))
print("FINAL", trainer.worker, model.fingerprint(trainer.params), passes)
