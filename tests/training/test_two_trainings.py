"""Trainings one after another in a process: alone, and in simulated jobs that change meanwhile."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.fabric.sim.faults import Arrival, Kill
from spotmpi.fabric.sim.timeline import Delays
from spotmpi.optimizers import SGD
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps
from spotmpi.settings import Settings
from spotmpi.strategies import SSGD
from spotmpi.trace import records as trace
from spotmpi.training import process
from tests.simulated import Final, Job, Result, bits, gradient, params
from tests.test_member import Changes

FOLDS = 3

WORKED: dict[Path, Counter[str]] = defaultdict(Counter)
"""How often something was done, of what is done once in the jobs of each folder."""
SEEN: dict[Path, dict[object, set[Any]]] = defaultdict(lambda: defaultdict(set))
"""What scripts have seen at some moment."""


@dataclass(frozen=True)
class CrossValidation(Job):
    """A script with several trainings; each goes on from what the last one came to."""

    def script(self, worker: int) -> Final:
        """A training for each fold, with something done once between its loop and its end."""
        seen, scores, began = SEEN[self.folder], [], 0
        gradients: Counter[int] = Counter()
        for fold in range(FOLDS):
            trainer = spotmpi.Trainer(
                params(worker + fold), optimizer=self.optimizer(), strategy=SSGD(), seed=fold
            )

            def score(fold: int = fold, trainer: Any = trainer) -> tuple[int, int, bytes]:
                WORKED[self.folder][f"fold {fold}"] += 1
                return fold, trainer.steps, bits(trainer.params)

            with trainer:
                for batch in trainer.batches(self.samples + fold, self.batch_size):
                    rehearsal = trainer.worker not in trainer.workers
                    gradients[trainer.steps] += not rehearsal
                    grads = gradient(trainer.params, batch)
                    for key in ("b", "w")[: trainer.steps % 3]:
                        trainer.ready(key, grads.pop(key))
                    trainer.step(grads or None, loss=1.0)
                    began += rehearsal
                    if trainer.worker not in trainer.workers:
                        continue  # the others are through with it: there is no batch more
                    seen[fold, trainer.steps].add(bits(trainer.params))
                    assert trainer.mean(2.0) == 2.0
                scores.append(trainer.once(score))
                assert trainer.mean(3.0) == 3.0
            seen["score", fold].add(scores[-1])
        return Final(bits(trainer.params), trainer.steps, gradients, (), False, (), began)

    def of_fold(self, fold: int) -> Path:
        """The trace of one of its trainings."""
        traced = Settings(trace=self.trace).of_training(fold).trace
        assert traced is not None
        return traced


def holds(result: Result) -> None:
    """Each training is whole, and one and the same for all who live."""
    job = result.job
    assert isinstance(job, CrossValidation)
    if not result.finals:
        return
    assert len({final.bits for final in result.finals.values()}) == 1
    dead = {kill.worker for kill in job.kills}
    for fold in range(FOLDS):
        records = list(trace.read(job.of_fold(fold)))
        done = steps(records)
        check_exactly_once(records, job.samples + fold, 1)
        check_replicas(records)
        assert Counter(r["event"] for r in records)["start"] <= 1
        given = range(done[0]["workers"][0] + 1)
        truths = [
            bits(replay(done, params(first + fold), gradient, job.optimizer())) for first in given
        ]
        final = SEEN[job.folder][fold, len(done)]
        assert final <= {*truths}, (fold, len(done))
        assert len(SEEN[job.folder]["score", fold]) <= 1 + len(dead)
        assert 1 <= WORKED[job.folder][f"fold {fold}"] <= 1 + len(dead)
        for record in done:  # the rate is meant for as many as the job began with, in all of them
            active = sum(part["weight"] > 0 for part in record["contributions"])
            assert record["rate"] == 0.05 * (active / job.workers)


def test_they_are_what_they_would_be_alone(tmp_path: Path) -> None:
    result = CrossValidation(tmp_path, 3).run()
    holds(result)
    assert result.finals.keys() == {0, 1, 2}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.matrix
def test_workers_die_at_any_event_in_them_and_between_them(tmp_path: Path, workers: int) -> None:
    events = CrossValidation(tmp_path, workers).run().events
    for at in range(20, events, 7 * workers):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        kills = [Kill(worker, at + 3 * worker) for worker in range(workers - 1)]
        result = CrossValidation(folder, workers, seed=at, kills=kills).run()
        holds(result)
        assert workers - 1 in result.finals, f"{kills}"


@pytest.mark.matrix
def test_workers_come_and_leave_and_die_in_all_of_them(tmp_path: Path) -> None:
    calm = CrossValidation(tmp_path, 3, samples=83)
    events = calm.run().events
    late: Counter[int] = Counter()
    for seed in range(30):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        drawn = Changes.draw(calm.workers, events, seed)
        job = replace(calm, folder=folder, seed=seed, **vars(drawn))
        try:
            result = job.run()
            holds(result)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {drawn}") from error
        late += Counter(w >= 3 and final.began for w, final in result.finals.items())
    assert late[1] > 5, "hardly anybody came to train"


@pytest.mark.matrix
def test_a_newcomer_that_knocks_when_a_training_ends_joins_the_next_one(tmp_path: Path) -> None:
    """Whenever it comes, it goes past those that are over, and is taught in the one that is not."""
    events = CrossValidation(tmp_path, 2, samples=9).run().events
    rehearsed = Counter[int]()
    late = Delays(message=0.1)  # what it says comes when the others are steps further
    for at in range(20, events, 10):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        arrivals = [Arrival(2, at)]
        job = CrossValidation(folder, 2, samples=9, seed=at, arrivals=arrivals, delays=late)
        result = job.run()
        holds(result)
        if 2 in result.finals:
            rehearsed[result.finals[2].began] += 1
    assert rehearsed[1] > 5
    assert rehearsed[2] > 0, "none has knocked in vain in one training and joined the next"


# Alone.


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the tests themselves run under one."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)


def one(seed: int = 0) -> Any:
    """A trainer."""
    return spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD(), seed=seed)


def test_alone_each_has_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_TRACE", str(tmp_path / "run.jsonl"))
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path / "kept"))
    for passes in (1, 2):
        with one() as trainer:
            for batch in trainer.batches(10, 2, passes):
                trainer.step(gradient(trainer.params, batch))
            trainer.save()
    for name, passes in (("run.jsonl", 1), ("run-2.jsonl", 2)):
        check_exactly_once(trace.read(tmp_path / name), 10, passes)
    assert [path.name for path in (tmp_path / "kept").glob("**/*.h5")].count(
        "checkpoint-000000000010.h5"
    ) == 1
    assert (tmp_path / "kept" / "training-2" / "checkpoint-000000000010.h5").is_file()


def test_what_was_left_by_an_error_is_begun_again_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_TRACE", str(tmp_path / "run.jsonl"))
    with pytest.raises(KeyError), one():
        raise KeyError
    with one() as trainer:
        for batch in trainer.batches(10, 2):
            trainer.step(gradient(trainer.params, batch))
    check_exactly_once(trace.read(tmp_path / "run.jsonl"), 10, 1)
    assert not (tmp_path / "run-2.jsonl").exists()


def test_one_inside_another_is_refused() -> None:
    with one(), pytest.raises(UsageError, match="the last Trainer has not come to its end"):
        one().__enter__()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("where", ["enter", "_connect"])
def test_a_training_that_could_not_begin_is_in_nobody_s_way(
    where: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(process, where, fails)
        with pytest.raises(error), one():
            pass
    with one() as trainer:
        for batch in trainer.batches(4, 2):
            trainer.step(gradient(trainer.params, batch))
