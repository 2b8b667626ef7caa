"""Run by test_noise.py: gradients whose noise is known, with a policy that says what it sees.

``noisy.py SIZE STEPS STRATEGY [PIECES]``
"""

import sys
from dataclasses import dataclass

import numpy as np

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.policies import Policy
from spotmpi.strategies import named

EACH, DEVIATION, BATCH = 1 / 150, 0.02, 8
"""Every element of the gradient of all samples, and how those of a single one differ from it."""


@dataclass(frozen=True)
class Saying(Policy):
    """Changes nothing, and says what it sees."""

    strategy: object

    @property
    def strategies(self):
        """The one."""
        return [self.strategy]

    def decide(self, metrics):
        """Nothing."""
        print("NOISE", metrics.noise, metrics.steps, flush=True)


def main():
    """Train."""
    size, steps, strategy = int(sys.argv[1]), int(sys.argv[2]), named(sys.argv[3])
    truth = np.full(size, EACH, np.float32)
    pieces = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    params = [np.zeros(size, np.float32)]
    if pieces:
        params = [np.zeros(len(part), np.float32) for part in np.array_split(truth, pieces)]
    known = {"policy": Saying(strategy), "bucket_mb": 1e-9 if pieces else 25.0}
    with spotmpi.Trainer(params, optimizer=Momentum(lr=1e-6), **known) as trainer:
        rng = np.random.default_rng(trainer.worker)
        for batch in trainer.batches(len(trainer.workers) * BATCH * steps, batch_size=BATCH):
            noise = DEVIATION / np.sqrt(len(batch)) * rng.normal(size=size)
            whole = (truth + noise).astype(np.float32)
            if not pieces:
                trainer.step([whole])
                continue
            rest = dict(enumerate(np.array_split(whole, pieces)))
            for number in range(pieces - 1, 0, -1):
                trainer.ready(number, rest.pop(number))
            trainer.step(rest)


if __name__ == "__main__":
    main()
