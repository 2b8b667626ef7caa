"""A training whose accuracy is followed while workers die: a script for ``spotmpi run`` (`accuracy`
starts it).

``reaching.py FOLDER RACE``: a `Race`, in JSON. In each step a worker computes its gradient, and
then sleeps until a stated time is over, as if an accelerator had computed for so long. Who is to
die does so by SIGKILL of its own, between a gradient and its step. The leader, who does not die,
copies the model before each gradient. So the copy is made in the time that the step takes anyway.
After the training it writes FOLDER/models.npz: the copies, when each was made, when the first step
began, and how long its gradients took.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.bench.measuring import tasks
from spotmpi.optimizers import Momentum

__all__ = ["MODELS", "Race"]

MODELS = "models.npz"


@dataclass(frozen=True)
class Race:
    """What is trained, how long a step takes, and who dies when. The way to synchronise is the
    command's."""

    set: str
    hidden: int
    batch_size: int
    passes: int
    rate: float
    """Learning rate, of a step of so many ``workers``."""
    seed: int
    workers: int
    ms: float
    deaths: tuple[tuple[int, float], ...] = ()
    """Worker, and seconds after its first step began."""

    @property
    def task(self) -> tasks.Task:
        """The set, with a network of this size."""
        return replace(
            tasks.TASKS[self.set],
            hidden=self.hidden,
            batch_size=self.batch_size,
            passes=self.passes,
        )

    def to_json(self) -> str:
        """As the script reads it."""
        return json.dumps(asdict(self))


def main(folder: Path, race: Race) -> None:
    """One worker of the job, to its end."""
    task = race.task
    x, y, *_ = task.data()
    models, times, computed = [], [], []
    began = 0.0
    with spotmpi.Trainer(
        tasks.Network.initial(task, race.seed),
        optimizer=Momentum(lr=race.rate),
        seed=race.seed,
        lr_reference=race.workers,
    ) as trainer:
        end = dict(race.deaths).get(trainer.worker, math.inf)

        def keep(now: float) -> None:
            if trainer.leader:
                times.append(now)
                models.append(np.concatenate([one.ravel() for one in trainer.model.values()]))

        for batch in trainer.batches(len(x), task.batch_size, task.passes):
            now = time.monotonic()
            began = began or now
            keep(now)
            grads = tasks.Network.gradient(trainer.params, x[batch], y[batch])
            loss = tasks.Network.loss(trainer.params, x[batch], y[batch])
            computed.append(time.monotonic() - now)
            time.sleep(max(0.0, race.ms / 1e3 - computed[-1]))
            if time.monotonic() - began >= end:
                os.kill(os.getpid(), signal.SIGKILL)
            trainer.step(grads, loss)
        keep(time.monotonic())
    if models:
        file = folder / MODELS
        np.savez(file, began=began, times=times, computed=computed, models=np.stack(models))


if __name__ == "__main__":
    plain = json.loads(sys.argv[2])
    main(Path(sys.argv[1]), Race(**{**plain, "deaths": tuple(map(tuple, plain["deaths"]))}))
