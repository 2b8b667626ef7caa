"""A script with nested parameters, some of half precision, and micro-batches, run by test_nested:
``nested.py PASSES``.

PASSES: 0 for as many as there are until there is a file ``enough``. Worker 1 kills itself between
two micro-batches of a step.
"""

import os
import signal
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.micro_batches import MicroBatches
from spotmpi.arrays.structure import Structure
from spotmpi.optimizers import Momentum

SAMPLES, BATCH, MICRO, FATAL = 239, 7, 3, 9
"""``FATAL``: the step in whose middle worker 1 dies."""


@dataclass(frozen=True)
class Layer:
    """One of several."""

    weight: np.ndarray
    bias: np.ndarray


def start():
    """Parameters before the first step."""
    layers = [Layer(np.zeros((40, 30), np.float32), np.zeros(30)) for _ in range(2)]
    scale = np.ones(50, np.float16), np.zeros(1)
    return {"layers": layers, "head": {"w": np.zeros(3), "scale": scale}}


def micro_gradient(params, samples):
    """Of these samples, and their loss; it depends on all parameters."""
    times = 1.0 + samples.mean() / SAMPLES

    def of(array):
        return (np.sin(array + times) / 3).astype(array.dtype)

    head = params["head"]
    layers = [Layer(of(layer.weight), of(layer.bias)) for layer in params["layers"]]
    scale = tuple(of(array) for array in head["scale"])
    return times, {"layers": layers, "head": {"w": of(head["w"]), "scale": scale}}


def parts(batch):
    """The micro-batches of a batch."""
    return [batch[at : at + MICRO] for at in range(0, len(batch), MICRO)]


def gradient(params, batch):
    """Of a whole batch, to the bit as the script has it."""
    found = MicroBatches(Layout.of(params, halves=True))
    for part in parts(batch):
        loss, grads = micro_gradient(params, part)
        found.add(grads, len(part), loss)
    return found.gradient


def fingerprint(params):
    """Equal if and only if every bit is that a script sees."""
    known, arrays = Structure.of(start())[1], Structure.of(params)[1]
    seen = (arrays[name].astype(array.dtype) for name, array in known.items())
    return zlib.crc32(b"".join(array.tobytes() for array in seen))


def train(passes):
    """One training, from its parameters to its end."""
    with spotmpi.Trainer(start(), optimizer=Momentum(lr=0.01), seed=3, bucket_mb=0.002) as trainer:
        done, enough = 0, 0.0
        while not enough:
            for batch in trainer.batches(SAMPLES, batch_size=BATCH, passes=passes or 1):
                *first, last = parts(batch)
                for number, part in enumerate(first):
                    loss, grads = micro_gradient(trainer.params, part)
                    trainer.accumulate(grads, len(part), loss)
                    for layer in grads["layers"]:
                        layer.weight[...] = np.nan  # the script's again
                    if (trainer.worker, trainer.steps, number) == (1, FATAL, 1):
                        os.kill(os.getpid(), signal.SIGKILL)
                loss, grads = micro_gradient(trainer.params, last)
                if trainer.steps % 2:
                    trainer.accumulate(grads, len(last), loss)
                    trainer.step()
                else:
                    trainer.step(grads, loss)
                print("TRAINS", trainer.worker, flush=True)
            done += passes or 1
            enough = passes or trainer.mean(float(Path("enough").exists()))
    print("FINAL", trainer.worker, trainer.steps, fingerprint(trainer.params), done, flush=True)


if __name__ == "__main__":
    train(int(sys.argv[1]))
