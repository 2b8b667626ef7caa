"""A training whose workers send each other large messages in every step, at random.

Each says of whom it has had one that it has not said before. A pass is the last one if there is a
file ``enough``.
"""

import random
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.errors import PeersLost
from spotmpi.fabric import KEY, Post, Receive
from spotmpi.optimizers import SGD
from spotmpi.training.process import this_process

SIZE = 300_000
"""Numbers of a message, which takes many of MPI's."""


def main():
    """One worker of the job."""
    enough, sent, last = 0.0, 0, {}
    key = bytes(KEY)
    with spotmpi.Trainer({"w": np.zeros(9)}, optimizer=SGD(lr=0.1), seed=7) as trainer:
        fabric, draw = this_process().fabric, random.Random(trainer.worker)
        while not enough:
            for batch in trainer.batches(64, batch_size=2):
                others = [one for one in trainer.workers if one != trainer.worker]
                if others:
                    sent += 1
                    to = draw.choice(others)
                    fabric.perform(Post(to, key, np.full(SIZE, float(sent)).view("uint8")))
                for one in others:
                    while (numbers := come(fabric, one, key)) is not None:
                        assert (numbers == numbers[0]).all(), "of two messages"
                        assert numbers[0] > last.get(one, 0), "an older one than before"
                        if one not in last:
                            print(f"HAD {trainer.worker} of {one}", flush=True)
                        last[one] = numbers[0]
                trainer.step({"w": np.full(9, float(len(batch)))}, loss=0.0)
            enough = trainer.mean(float(Path("enough").exists()))


def come(fabric, sender, key):
    """Return a message of this worker, or None, also if a worker is lost."""
    try:
        message = fabric.perform(Receive([sender], key, waits=False))
    except PeersLost:
        return None
    return message and np.frombuffer(message.content)


if __name__ == "__main__":
    main()
