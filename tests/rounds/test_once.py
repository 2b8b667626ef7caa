"""What one worker does for all: alone, and in simulated jobs in which it dies over it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import OnceError, UsageError
from spotmpi.fabric.sim.faults import Arrival, Kill
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD
from spotmpi.training.script import answers
from tests.simulated import Final, Job, Result, check, params
from tests.test_member import campaign, joined, left


def test_alone_it_is_a_call_whose_value_is_a_copy(trainer: Any) -> None:
    value = {"accuracy": 0.5, "of": (1, None, "x"), "table": np.arange(6.0).reshape(2, 3)}
    found = trainer.once(lambda: value)
    assert found["of"] == (1, None, "x")
    found["table"] += 1
    assert value["table"][0, 0] == 0.0


def evaluate() -> float:
    """What a script might do."""
    raise OSError("there is no room")


def test_what_it_raises_is_one_error_that_says_where(trainer: Any) -> None:
    with pytest.raises(OnceError) as raised:
        trainer.once(evaluate)
    said = str(raised.value)
    assert said.startswith("trainer.once() failed on worker 0 at step 0:\n  File ")
    assert 'raise OSError("there is no room")' in said
    assert said.endswith("OSError: there is no room")
    assert "spotmpi/training" not in said
    assert trainer.once(lambda: 3) == 3


def test_what_has_no_bytes_is_an_error_as_well(trainer: Any) -> None:
    with pytest.raises(OnceError, match="values of <class 'set'> cannot be passed on"):
        trainer.once(lambda: {1, 2})


def test_what_all_must_call_one_cannot(trainer: Any) -> None:
    calls = {
        "mean()": lambda: trainer.mean(1.0),
        "once()": lambda: trainer.once(int),
        "gather()": lambda: trainer.gather(1),
        "step()": lambda: trainer.step(params(0)),
        "batches()": lambda: next(trainer.batches(5, 2)),
    }
    for name, call in calls.items():
        with pytest.raises(OnceError, match=re.escape(f"trainer.{name} needs all workers")):
            trainer.once(call)
    assert trainer.mean(1.0) == 1.0


def test_it_belongs_inside_the_block() -> None:
    one = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD())
    with pytest.raises(UsageError, match=r"trainer.once\(\) belongs inside `with spotmpi.Trainer"):
        one.once(int)


WORKED: dict[Any, list[int]] = defaultdict(list)
"""Who did what: by the folder of the job, and the moment."""
TOLD: dict[Any, set[str]] = defaultdict(set)
"""What anybody was told of it."""
REHEARSED: list[Any] = []
"""What newcomers asked for in their first batch."""


@dataclass(frozen=True)
class OnceEverywhere(Job):
    """A script that does things once before its loop, in it, and after it; some of them fail."""

    def ask(self, trainer: Any, moment: object) -> None:
        """Have something done once, and note what came of it."""

        def work() -> Any:
            WORKED[self.folder, moment].append(trainer.worker)
            if isinstance(moment, int) and moment % 4 == 3:
                raise ValueError(f"{moment} is a bad moment")
            return {"by": trainer.worker, "much": np.full(40 * trainer.worker, 1.5), "at": moment}

        if trainer.worker not in trainer.workers and isinstance(moment, int):
            REHEARSED.append((self.folder, moment))
        try:
            said = repr(trainer.once(work))
        except OnceError as error:
            said = str(error)
            assert said.endswith(f"ValueError: {moment} is a bad moment")
        TOLD[self.folder, moment].add(said)

    def script(self, worker: int) -> Final:
        """The usual one between them."""
        trainer = spotmpi.Trainer(
            params(worker), optimizer=self.optimizer(), strategy=SSGD(), seed=self.seed
        )
        gradients: Counter[int] = Counter()
        losses, means, began = [], [], 0
        with trainer:
            self.ask(trainer, "before")
            for number in range(self.passes):
                for batch in trainer.batches(self.samples, self.batch_size):
                    rehearsal = trainer.worker not in trainer.workers
                    gradients[trainer.steps] += not rehearsal
                    grads = self.model.gradient(trainer.params, batch)
                    if trainer.steps % 2:
                        self.ask(trainer, trainer.steps)
                    trainer.step(grads, loss=1.0)
                    losses.append(trainer.loss)
                    began = trainer.steps if rehearsal else began
                self.ask(trainer, f"after pass {number}")
                means.append(trainer.mean(2.0))
        final = self.model.bits(trainer.params), trainer.steps, gradients, tuple(losses)
        return Final(*final, False, tuple(means), began)


def holds(result: Result) -> None:
    """Beside all else: done once, and again only for the dead; and all were told the same."""
    check(result)
    dead = {kill.worker for kill in result.job.kills}
    moments = {moment for folder, moment in WORKED if folder == result.job.folder}
    for moment in moments:
        workers = WORKED[result.job.folder, moment]
        assert set(workers[:-1]) <= dead, (moment, workers)
        assert len(set(workers)) == len(workers), (moment, workers)
        # What is told of it twice was told to nobody who lives the first time.
        assert len(TOLD[result.job.folder, moment]) <= len(workers), (moment, workers)
    if result.finals:
        assert moments >= {"before", *(f"after pass {n}" for n in range(result.job.passes))}


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.matrix
def test_it_is_done_again_only_for_the_dead(tmp_path: Path, workers: int) -> None:
    """In jobs that workers join, leave and die in, at any event."""
    results = campaign(OnceEverywhere(tmp_path / "calm", workers, samples=83), runs=25, holds=holds)
    assert len(joined(results)) > 5
    assert len(left(results)) > 3


@pytest.mark.parametrize("step", [16, pytest.param(7, marks=pytest.mark.matrix)])
def test_a_leader_dies_at_any_event_of_it(tmp_path: Path, step: int) -> None:
    """Also in the middle of it, and when it is done and nobody knows."""
    job, done = partial(OnceEverywhere, workers=3, samples=8, passes=1), []
    for seed in (4, 6):  # in both some know how large the value is when its maker dies
        for at in range(20, job(tmp_path, seed=seed).run().events, step):
            folder = tmp_path / f"{seed}-{at}"
            folder.mkdir()
            holds(job(folder, seed=seed, kills=[Kill(0, at)]).run())
            done += [WORKED[key] for key in WORKED if key[0] == folder]
    assert sum(len(workers) > 1 for workers in done) > 2


@dataclass(frozen=True)
class OncePerStep(OnceEverywhere):
    """A script in which newcomers alone do something once."""

    def ask(self, trainer: Any, moment: object) -> None:
        """Not what all do."""
        if trainer.worker not in trainer.workers:
            trainer.once(lambda: WORKED[self.folder, moment].append(trainer.worker))


def test_a_newcomer_that_does_once_what_nobody_else_does_is_turned_away(tmp_path: Path) -> None:
    result = OncePerStep(tmp_path, 2, samples=200, arrivals=[Arrival(2, 60)]).run()
    check(result)
    assert result.finals.keys() == {0, 1}
    assert not any(folder == tmp_path for folder, _ in WORKED)


@pytest.mark.parametrize("most", [0, 1 << 20])
@pytest.mark.first("0")
def test_a_value_too_large_to_be_told_in_a_step_keeps_newcomers_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """They begin in a step before which nothing was done once."""
    monkeypatch.setattr(answers, "_MOST_IN_TURN", most)
    asked = []
    for at in range(60, 160, 20):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        result = OnceEverywhere(folder, 2, samples=200, arrivals=[Arrival(2, at)]).run()
        holds(result)
        assert result.finals[2].began
        asked += [moment for where, moment in REHEARSED if where == folder]
    assert bool(asked) == bool(most)
