"""Trainings one after another, as in cross-validation: run by test_folds, under real MPI.

``CHAOS`` holds deaths as ``WORKER:MOMENT:COUNT``, as script.py has it. A moment is a request to the
fabric, ``between`` (two trainings), or ``fold-N`` (a step of that training). The last training goes
on until there is a file ``enough``, if the script is called with ``wait``.
"""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import model

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

FOLDS = 3
deaths = {
    (int(worker), moment, int(count))
    for worker, moment, count in (
        death.split(":") for death in os.environ.get("CHAOS", "").split(",") if death
    )
}
seen: Counter[str] = Counter()


def die_at(worker: int, moment: str) -> None:
    seen[moment] += 1
    if (worker, moment, seen[moment]) in deaths:
        os.kill(os.getpid(), signal.SIGKILL)


if deaths:
    from spotmpi.fabric.mpi import fabric as mpi  # which starts MPI: a newcomer must not, yet

    perform = mpi.MpiFabric.perform

    def perform_or_die(fabric, request):
        die_at(fabric.me, type(request).__name__)
        return perform(fabric, request)

    mpi.MpiFabric.perform = perform_or_die
scores = []
for fold in range(FOLDS):
    last = fold == FOLDS - 1 and "wait" in sys.argv
    with spotmpi.Trainer(
        model.params(), optimizer=Momentum(lr=0.02), strategy=SSGD(), seed=fold
    ) as trainer:
        enough, passes = False, 0
        while not enough:
            for batch in trainer.batches(model.SAMPLES, batch_size=4):
                die_at(trainer.worker, f"fold-{fold}")
                loss, grads = model.gradient(trainer.params, batch)
                trainer.step(grads, loss=loss)
            passes += 1
            enough = trainer.once(Path("enough").exists) if last else True
        scores.append(trainer.once(lambda: [model.fingerprint(trainer.params), trainer.steps]))
    die_at(trainer.worker, "between")
print("SCORES", trainer.worker, passes, *(word for score in scores for word in score))
