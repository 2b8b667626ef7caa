"""Trains the model of tests/chaos until its folder has a file ``enough``; ten passes a time.

So a test has all the time that it needs, on any machine.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

import model

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

passes = 0
with spotmpi.Trainer(
    model.params(), optimizer=Momentum(lr=0.02), strategy=SSGD(), seed=7
) as trainer:
    while trainer.mean(float(Path("enough").exists())) == 0:
        for batch in trainer.batches(model.SAMPLES, batch_size=4, passes=10):
            loss, grads = model.gradient(trainer.params, batch)
            trainer.step(grads, loss=loss)
        passes += 10
print("FINAL", trainer.worker, model.fingerprint(trainer.params), passes)
