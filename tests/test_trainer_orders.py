"""What the trainer does about orders, and what it says of its progress while it does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import spotmpi
from spotmpi.fabric.sim.faults import Kill
from spotmpi.launcher_channel import BOARDS, DEATHS, IN_ROUND, IN_SCRIPT, Order, orders, progress
from spotmpi.optimizers import SGD
from spotmpi.replay import check_exactly_once, replay, steps
from spotmpi.strategies import SSGD
from spotmpi.training import journal
from spotmpi.training.keeping import checkpoint_file, checkpoint_folder
from tests.simulated import Job, bits, deaths, gradient, params

NOBODY = "987"
"""A descriptor that leads to no launcher."""


@pytest.fixture
def boards(tmp_path: Path) -> Path:
    """A job folder as the launcher makes it."""
    folder = tmp_path / "job"
    folder.mkdir()
    for name in (DEATHS, *BOARDS):
        (folder / name).touch()
    return folder


def order_stop(folder: Path, worker: int) -> None:
    """What the launcher does."""
    board = orders(folder, writing=True)
    board.write(worker, Order(stop=True))
    board.close()


def test_a_worker_that_is_told_to_stop_keeps_its_state_and_asks_for_a_requeue(
    boards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    descriptors: Callable[[], list[str]],
) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    for name, value in (("JOB_DIR", boards), ("CHANNEL", NOBODY), ("CHECKPOINT", tmp_path / "c")):
        monkeypatch.setenv(f"SPOTMPI_{name}", str(value))
    trainer = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD())
    checkpoint_folder.check_writable(tmp_path)  # what it opens for good, it has opened now
    before = descriptors()
    board = progress(boards)

    def train() -> None:
        with trainer:
            for batch in trainer.batches(50, batch_size=1):
                said = board.read(0)
                assert said is not None
                # The first rounds are no steps: they compare workers and make replicas equal.
                assert said[:3] == (trainer.steps + 2, trainer.steps, IN_SCRIPT)
                if trainer.steps == 3:
                    order_stop(boards, 0)
                trainer.step(gradient(trainer.params, batch))

    with pytest.raises(spotmpi.Stopped, match="the job was told to stop; a checkpoint of step 4"):
        train()
    assert trainer.steps == 4
    said = board.read(0)
    assert said is not None
    # Two more: the last step is stable after one, and kept in the other.
    assert said[:3] == (8, 4, IN_ROUND)
    board.close()
    assert descriptors() == before
    assert checkpoint_file.load_latest(tmp_path / "c", pytest.fail).step == 4


def test_an_order_that_nobody_knows_is_for_newer_workers(
    boards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setenv("SPOTMPI_JOB_DIR", str(boards))
    monkeypatch.setenv("SPOTMPI_CHANNEL", NOBODY)
    board = orders(boards, writing=True)
    board.write(0, Order())
    board.close()
    with spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
        for batch in trainer.batches(5, batch_size=1):
            trainer.step(gradient(trainer.params, batch))
    assert trainer.steps == 5


@pytest.mark.parametrize("told", [(2,), (0, 1, 2, 3)])
@pytest.mark.first("told0")
def test_all_stop_together_even_if_one_alone_was_told_and_others_die(
    monkeypatch: pytest.MonkeyPatch, boards: Path, tmp_path: Path, told: tuple[int, ...]
) -> None:
    """Whoever dies when: what was kept and what is left to do make up one whole run."""
    monkeypatch.setattr(journal, "_TRIES", 1)  # no launcher is there to say why they died
    for worker in told:
        order_stop(boards, worker)
    surroundings = {"SPOTMPI_JOB_DIR": str(boards), "SPOTMPI_CHANNEL": NOBODY}

    def stopping(name: str, seed: int, kills: tuple[Kill, ...]) -> Job:
        environ = surroundings | {"SPOTMPI_CHECKPOINT": str(tmp_path / name / "kept")}
        (tmp_path / name).mkdir()
        return Job(tmp_path / name, 4, seed, kills, environ=environ, scale_lr="none")

    calm = stopping("calm", 0, ()).run()
    assert [final.stopped for final in calm.finals.values()] == [True] * 4
    assert {final.steps for final in calm.finals.values()} == {1}
    stopped = 0
    for seed in range(7):
        job = stopping(f"{seed}", seed, deaths(4, calm.events, seed, at_most=2))
        cut = job.run()
        if not cut.finals or not next(iter(cut.finals.values())).stopped:
            continue  # whoever was told died before the others heard of it
        stopped += 1
        assert all(final.stopped for final in cut.finals.values())
        found = checkpoint_file.load_latest(tmp_path / f"{seed}" / "kept", pytest.fail)
        assert found.step == len(steps(cut.records))
        again = {"SPOTMPI_CHECKPOINT": job.environ["SPOTMPI_CHECKPOINT"], "SPOTMPI_RESUME": "1"}
        whole = replace(job, workers=3, kills=(), environ=again).run()
        done = steps(whole.records)
        check_exactly_once(whole.records, job.samples, job.passes)
        truths = [bits(replay(done, params(one), gradient, job.optimizer())) for one in range(4)]
        assert {final.bits for final in whole.finals.values()} <= set(truths)
    assert stopped > 2
