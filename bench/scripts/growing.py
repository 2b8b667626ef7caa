"""Trainings that begin with one worker and get more: a script for ``spotmpi run`` (`growing` starts
it).

``growing.py FOLDER TRAININGS``: a list of `Growth`, in JSON, done one after the other. A training
is divided by its samples into as many parts as it is to have workers in the end. When a part
begins, worker 0 makes the file FOLDER/due-N, N being the workers that there should be, and takes
its steps slowly until they are, ever more slowly. What comes of number K is written to
FOLDER/result-K.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import spotmpi
from spotmpi.bench.measuring import tasks
from spotmpi.optimizers import Momentum

__all__ = ["Growth", "to_json"]

_SLOW, _SLOWER, _SLOWEST = 0.05, 1.25, 1.0
"""Seconds of a step while a worker that is due has not come: so small a training would be over
before. How they grow, from step to step, and until when: a newcomer needs both time and steps."""


@dataclass(frozen=True)
class Growth:
    """What is trained, and how many workers there are in the end.

    ``rate`` is that of one worker, if it is to follow their number: ``scale`` is the trainer's
    ``scale_lr``. ``tuning``: the test set is not looked at, and a part of the training set takes
    its place.
    """

    task: str
    rate: float
    scale: str
    seed: int
    passes: int
    workers: int = 1
    tuning: bool = False


def to_json(trainings: Sequence[Growth]) -> str:
    """As the script reads them."""
    return json.dumps(list(map(asdict, trainings)))


def main(folder: Path, trainings: Sequence[Growth]) -> None:
    """One worker of the job, to its end."""
    for number, training in enumerate(trainings):
        _train(training, folder, folder / f"result-{number}.json")


def _train(training: Growth, folder: Path, result: Path) -> None:
    task = tasks.TASKS[training.task]
    data = task.data()
    x, y, *held_out = data.for_tuning() if training.tuning else data
    # By worker 0 alone, who is there from the beginning to the end; nobody dies.
    used, due, slow = 0, 1, _SLOW
    with spotmpi.Trainer(
        tasks.Network.initial(task, training.seed),
        optimizer=Momentum(lr=training.rate),
        seed=training.seed,
        lr_reference=1,
        scale_lr=training.scale,
    ) as trainer:
        for batch in trainer.batches(len(x), task.batch_size, training.passes):
            grads = tasks.Network.gradient(trainer.params, x[batch], y[batch])
            if trainer.worker == 0:
                part = 1 + training.workers * used // (training.passes * len(x))
                if due < part <= training.workers:
                    due = part
                    (folder / f"due-{due}").touch()
                if len(trainer.workers) < due:
                    time.sleep(slow)
                    slow = min(_SLOWER * slow, _SLOWEST)
                else:
                    slow = _SLOW
                used += task.batch_size * len(trainer.workers)
            trainer.step(grads)

        def test() -> None:
            accuracy = tasks.Network.accuracy(trainer.model, *held_out)
            result.write_text(json.dumps({"accuracy": accuracy, "steps": trainer.steps}))

        trainer.once(test)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Growth(**plain) for plain in json.loads(sys.argv[2])])
