"""Trains a small model on made-up data, as `tests/chaos/script.py` does.

usage: learner.py PASSES WORK

A pass is a loop of its own, with a mean after it; each gradient is computed WORK times over.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "chaos"))

import model

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

passes, work = map(int, sys.argv[1:])
with spotmpi.Trainer(
    model.params(), optimizer=Momentum(lr=0.02), strategy=SSGD(), seed=7
) as trainer:
    for _ in range(passes):
        for batch in trainer.batches(model.SAMPLES, batch_size=4):
            for _ in range(work):
                loss, grads = model.gradient(trainer.params, batch)
            trainer.step(grads, loss=loss)
        assert trainer.mean(3.0) == 3.0
print("FINAL", trainer.worker, model.fingerprint(trainer.params))
