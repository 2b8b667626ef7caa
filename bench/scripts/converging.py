"""Trainings whose accuracy is measured: a script for ``spotmpi run`` (`convergence` starts it).

``converging.py FOLDER TRAININGS``: a list of `Training`, in JSON, done one after the other. Of the
first one its workers die by SIGKILL of their own, between the gradient of a step and the step. What
comes of number N is written to FOLDER/result-N.json.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import spotmpi
from spotmpi.bench.measuring import tasks
from spotmpi.optimizers import Momentum
from spotmpi.strategies import named

__all__ = ["Training", "to_json"]

_HERE = 3
"""The step before which the first workers wait until the spares are there."""
_POLL = 0.01
"""Seconds between two looks."""
_STEP = 0.03
"""Seconds of each step in which a worker leaves its core to the others. The gradients take about
1 ms: with more workers than cores it would depend on the system who is how fast. And so small a
training would be over before a spare can join."""


@dataclass(frozen=True)
class Training:
    """What is trained, on how many workers, and who dies when. ``spares`` join after deaths.

    ``tuning``: the test set is not looked at, and a part of the training set takes its place.
    """

    task: str
    strategy: str
    rate: float
    seed: int
    passes: int
    workers: int
    spares: int = 0
    deaths: tuple[tuple[int, int], ...] = ()
    """Worker and step, in the order of the steps."""
    tuning: bool = False


def to_json(trainings: Sequence[Training]) -> str:
    """As the script reads them."""
    return json.dumps(list(map(asdict, trainings)))


def main(folder: Path, trainings: Sequence[Training]) -> None:
    """One worker of the job, to its end."""
    (folder / f"here-{os.getpid()}").touch()
    for number, training in enumerate(trainings):
        _train(training, folder, folder / f"result-{number}.json")


def _train(training: Training, folder: Path, result: Path) -> None:
    task = tasks.TASKS[training.task]
    data = task.data()
    x, y, *held_out = data.for_tuning() if training.tuning else data
    began = training.workers + training.spares
    with spotmpi.Trainer(
        tasks.Network.initial(task, training.seed),
        optimizer=Momentum(lr=training.rate),
        strategy=named(training.strategy),
        seed=training.seed,
        lr_reference=training.workers,
    ) as trainer:
        end = dict(training.deaths).get(trainer.worker, math.inf)
        complete = not training.spares
        for batch in trainer.batches(len(x), task.batch_size, training.passes):
            grads = tasks.Network.gradient(trainer.params, x[batch], y[batch])
            # Of asynchronous strategies no worker has all numbers of steps.
            if trainer.steps >= end:
                os.kill(os.getpid(), signal.SIGKILL)
            while trainer.steps >= _HERE and not complete:
                complete = len(list(folder.glob("here-*"))) >= began
                time.sleep(_POLL)
            time.sleep(_STEP)
            trainer.step(grads)

        def test() -> None:
            accuracy = tasks.Network.accuracy(trainer.model, *held_out)
            result.write_text(json.dumps({"accuracy": accuracy, "steps": trainer.steps}))

        trainer.once(test)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        [
            Training(**{**plain, "deaths": tuple(map(tuple, plain["deaths"]))})
            for plain in json.loads(sys.argv[2])
        ],
    )
