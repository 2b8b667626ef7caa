"""The real trainer, script and all, alone and in the simulator, with deaths at any event."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.fabric.sim.faults import Kill
from spotmpi.optimizers import SGD, Momentum
from spotmpi.replay import check_exactly_once, replay, steps
from spotmpi.strategies import DiLoCo
from spotmpi.training.keeping import checkpoint_file
from tests import simulated
from tests.simulated import Job, Result, bits, check, deaths, gradient, params


def campaign(
    folder: Path, workers: int, runs: int, first: int = 0, at_most: int | None = None, **fields: Any
) -> list[Result]:
    """Seeded runs of one kind of job; each is checked."""

    def dying(events: int, seed: int) -> dict[str, Any]:
        return {"kills": deaths(workers, events, seed, at_most)}

    calm = Job(folder / "calm", workers, **fields)
    return simulated.campaign(calm, range(first, first + runs), dying)


def test_a_job_that_nobody_leaves(tmp_path: Path) -> None:
    result = Job(tmp_path).run()
    assert len(result.finals) == 4
    assert [record["event"] for record in result.records[:1]] == ["start"]
    assert len(result.of("end")) == 1
    check(result)


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("runs", [8, 30])
@pytest.mark.first("8-2", "8-8")
def test_deaths_at_any_event_cost_no_step_and_no_gradient(
    tmp_path: Path, runs: int, workers: int
) -> None:
    results = campaign(tmp_path, workers, runs=runs)
    assert sum(bool(result.of("recovery")) for result in results) > runs / 4


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_gradients_that_are_computed_in_place_wait_for_their_step(
    tmp_path: Path, seed: int
) -> None:
    """Over each kind of data plane, and over rounds that bring nothing, before which they lie there
    already."""
    check(Job(tmp_path, seed=seed, born_in_place=True).run())


@pytest.mark.matrix
def test_gradients_that_are_computed_in_place_count_whoever_dies(tmp_path: Path) -> None:
    results = campaign(tmp_path, 4, runs=20, passes=1, born_in_place=True)
    assert sum(bool(result.of("recovery")) for result in results) > 5


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.first("2-True", "4-False")
def test_gradients_that_come_one_by_one_count_whoever_dies(
    tmp_path: Path, workers: int, in_place: bool
) -> None:
    """Between two of them, too: who dies with half of it handed over has brought nothing."""
    more = {"in_pieces": True, "born_in_place": in_place}
    results = campaign(tmp_path, workers, runs=12, passes=1, **more)
    assert sum(bool(result.of("recovery")) for result in results) > 3


def test_everybody_but_one_may_die(tmp_path: Path) -> None:
    results = campaign(tmp_path, 4, runs=12, first=1000, samples=23, at_most=3)
    assert any(len(result.finals) == 1 for result in results)


def test_a_fixed_learning_rate_stays_fixed(tmp_path: Path) -> None:
    results = campaign(tmp_path, 4, runs=5, scale_lr="none", passes=1)
    assert any(result.of("recovery") for result in results)


def newest(result: Result) -> checkpoint_file.Checkpoint:
    """The newest checkpoint of a run, which must be whole: no warning is expected."""
    return checkpoint_file.load_latest(result.job.folder / "kept", pytest.fail)


def values(found: checkpoint_file.Checkpoint) -> bytes:
    """The parameters in a checkpoint, to compare bit by bit."""
    state = {key: np.asarray(found.state[f"params/{key}"]) for key in ("w", "b")}
    return bits(state)


def keeping(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a job that keeps checkpoints in ``folder``."""
    return {"SPOTMPI_CHECKPOINT": str(folder), "SPOTMPI_CHECKPOINT_EVERY": "3", **more}


def keeping_campaign(tmp_path: Path, workers: int, runs: int, first: int) -> int:
    """Seeded runs with a checkpoint every third step; in how many of them two workers wrote."""
    calm = Job(tmp_path, workers, passes=1, environ=keeping(tmp_path / "kept"))
    events = calm.run().events
    handed_over = 0
    for seed in range(first, first + runs):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        # The first leader dies in each run, at another moment; others die as it happens.
        first_leader = Kill(0, random.Random(seed).randrange(events))
        others = deaths(workers, events, seed, at_most=workers - 2)
        kills = first_leader, *(kill for kill in others if kill.worker != 0)
        environ = keeping(folder / "kept")
        result = replace(calm, folder=folder, seed=seed, kills=kills, environ=environ).run()
        if not result.finals:
            continue
        check(result)
        done = steps(result.records)
        found = newest(result)
        # Whoever takes over from a writer that died writes the state of its own day.
        assert len(done) // 3 * 3 <= found.step <= len(done), f"seed {seed}, {kills}"
        given = [params(worker) for worker in range(done[0]["workers"][0] + 1)]
        short = [record for record in done if record["step"] < found.step]
        truths = [bits(replay(short, start, gradient, Momentum(lr=0.05))) for start in given]
        assert values(found) in truths, f"seed {seed}, {kills}"
        handed_over += len({record["worker"] for record in result.of("checkpoint")}) > 1
    return handed_over


def test_a_checkpoint_that_was_due_is_written_whichever_leader_dies(tmp_path: Path) -> None:
    """Its parameters are those that the trace gives for its step, to the bit."""
    assert keeping_campaign(tmp_path, workers=4, runs=12, first=0) > 0


def test_a_job_below_its_least_number_of_workers_stops_and_resumes(tmp_path: Path) -> None:
    """On another number of workers; together they use each sample once and end as one run."""
    folder = tmp_path / "kept"
    stopping = keeping(folder, SPOTMPI_MIN_WORKERS="3")
    job = Job(tmp_path, 4, environ=stopping, optimizer=lambda: SGD(lr=0.05), scale_lr="none")
    events = job.run().events
    for seed in range(8):
        place = tmp_path / f"{seed}"
        place.mkdir()
        kills = deaths(4, events * 2 // 3, seed, at_most=1) + deaths(4, events // 2, seed + 100)
        environ = keeping(place / "kept", SPOTMPI_MIN_WORKERS="3")
        cut = replace(job, folder=place, seed=seed, kills=kills, environ=environ).run()
        if not cut.finals or not next(iter(cut.finals.values())).stopped:
            continue
        assert all(final.stopped for final in cut.finals.values())
        assert len(cut.finals) < 3
        assert newest(cut).step == len(steps(cut.records))
        environ = keeping(place / "kept", SPOTMPI_RESUME="1")
        whole = replace(job, folder=place, seed=seed, workers=5, environ=environ).run()
        done = steps(whole.records)
        check_exactly_once(whole.records, job.samples, job.passes)
        assert {final.bits for final in whole.finals.values()} <= {
            bits(replay(done, params(first), gradient, SGD(lr=0.05))) for first in range(4)
        }
        break
    else:
        pytest.fail("no seed stopped")


def test_a_job_that_lost_every_worker_resumes_from_what_was_kept(tmp_path: Path) -> None:
    environ = keeping(tmp_path / "kept")
    job = Job(tmp_path, 3, environ=environ, optimizer=lambda: SGD(lr=0.05), scale_lr="none")
    events = job.run().events
    for seed in range(3):
        place = tmp_path / f"{seed}"
        place.mkdir()
        moment = events * (2 * seed + 4) // 11
        kills = [Kill(worker, moment + 3 * worker) for worker in range(3)]
        dead = replace(job, folder=place, seed=seed, kills=kills, environ=keeping(place / "kept"))
        assert not dead.run().finals
        environ = keeping(place / "kept", SPOTMPI_RESUME="1")
        whole = replace(dead, workers=2, kills=(), environ=environ).run()
        check_exactly_once(whole.records, job.samples, job.passes)
        truth = bits(replay(whole.records, params(0), gradient, SGD(lr=0.05)))
        assert {final.bits for final in whole.finals.values()} == {truth}


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [2, 3, 4, 6, 16])
def test_a_long_campaign_of_whole_scripts(tmp_path: Path, workers: int) -> None:
    campaign(tmp_path, workers, runs=1000, first=10_000)


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [3, 5])
def test_a_long_campaign_of_checkpoints(tmp_path: Path, workers: int) -> None:
    keeping_campaign(tmp_path, workers, runs=500, first=20_000)


def test_a_loop_may_be_left_with_a_batch_in_hand_while_a_contribution_travels() -> None:
    """That batch counts for nothing, and the training goes on."""
    delayed = DiLoCo(h=4, delay=2)
    with spotmpi.Trainer([np.zeros(2)], optimizer=SGD(lr=0.1), strategy=delayed) as trainer:
        for turn, _ in enumerate(trainer.batches(1000, batch_size=4)):
            if turn == 2:
                break
            trainer.step([np.ones(2)])
        assert trainer.steps == 2
        assert trainer.mean(3.0) == 3.0
        for _ in trainer.batches(8, batch_size=4):
            trainer.step([np.ones(2)])
        assert trainer.steps == 4
