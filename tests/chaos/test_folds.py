"""Trainings one after another in one process, in and between which workers really die."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.launch.start import installation
from spotmpi.trace import records
from spotmpi.trace.replay import check_exactly_once, check_replicas, steps
from tests.chaos import model

SCRIPT = Path(__file__).parent / "folds.py"
TIMEOUT = 150
FOLDS = 3


def check(said: str, folder: Path, passes: int = 1) -> set[int]:
    """All three trainings are whole, and the same for all who remain, whom it returns."""
    finals = [line.split() for line in said.splitlines() if "SCORES" in line]
    finals = [words[words.index("SCORES") + 1 :] for words in finals]
    assert len({tuple(words[1:]) for words in finals}) == 1, said
    scores = finals[0][2:]
    for fold in range(FOLDS):
        name = "run.jsonl" if fold == 0 else f"run-{fold + 1}.jsonl"
        found = list(records.read(folder / name))
        done = steps(found)
        assert int(scores[2 * fold + 1]) == len(done), said
        check_exactly_once(found, model.SAMPLES, passes if fold == FOLDS - 1 else 1)
        check_replicas(found)
        assert [one["outcome"] for one in found if one["event"] == "end"][-1] == "finished"
        for one in found:
            if one["event"] in ("recovery", "recovered"):
                assert one["lost_steps"] == one["recomputed_gradients"] == 0
    return {int(words[0]) for words in finals}


Start = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(run_spotmpi, tmp_path: Path) -> Start:
    """``run(workers, chaos, option ...)``."""

    def start(workers: int, chaos: str, *options: object) -> subprocess.CompletedProcess[str]:
        words = ["run", "-n", str(workers), "--trace", "run.jsonl", *map(str, options), SCRIPT]
        return run_spotmpi(words, timeout=TIMEOUT, env={"CHAOS": chaos})

    return start


@pytest.mark.parametrize(
    ("chaos", "dead"),
    [
        ("", set()),
        ("0:between:1", {0}),
        ("3:between:1,0:between:2", {0, 3}),
        pytest.param(
            "1:fold-0:9,2:between:1,0:fold-2:5",
            {0, 1, 2},
            marks=pytest.mark.promise("a training after a training"),
        ),
        ("0:between:1,1:Wait:30,2:Poll:9", {0, 1, 2}),
        ("0:Rebuild:1,1:Rebuild:3", {0, 1}),
        ("2:Wait:22,3:Wait:23,0:Wait:24", {0, 2, 3}),
    ],
)
def test_each_training_is_whole_whoever_dies(
    run: Start, tmp_path: Path, chaos: str, dead: set[int]
) -> None:
    """In any of them, at their beginnings and ends, and between them."""
    done = run(4, chaos)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert check(done.stdout, tmp_path) == {0, 1, 2, 3} - dead, said


def test_a_job_that_was_lost_in_the_second_training_resumes_there(
    run: Start, tmp_path: Path
) -> None:
    """The first one is over, and is not trained again."""
    kept = ["--checkpoint", "kept", "--checkpoint-every", "5"]
    lost = run(3, "0:fold-1:13,1:fold-1:13,2:fold-1:13", *kept)
    assert lost.returncode == 69, lost.stdout + lost.stderr
    again = run(2, "", *kept, "--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert check(again.stdout, tmp_path) == {0, 1}
    found = list(records.read(tmp_path / "run-2.jsonl"))
    # Of step 10, unless they died before that was on the disk.
    assert [one["step"] for one in found if one["event"] == "resume"] in ([5], [10])


LEAVING = """
import numpy as np, spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD
for fold in range(2):
    with spotmpi.Trainer({"w": np.zeros(3)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
        for batch in trainer.batches(40, batch_size=2):
            trainer.step({"w": np.ones(3)})
        mine = trainer.worker
    if mine == 1:
        break
"""


def test_a_worker_that_leaves_out_a_training_is_a_mistake(run_spotmpi, tmp_path: Path) -> None:
    """Nobody waits for it for ever."""
    (tmp_path / "train.py").write_text(LEAVING)
    done = run_spotmpi(["run", "-n", "3", "train.py"], timeout=TIMEOUT)
    assert done.returncode == 1, done.stderr
    assert "worker 1 on localhost ended early, without an error, while others train" in done.stderr


def test_plain_mpirun_does_the_same(tmp_path: Path) -> None:
    """Without a launcher."""
    found = installation.search(os.environ).found
    assert found is not None
    mpirun = [found.mpirun, "--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm"]
    options = ["--mca", "coll", "^han,cuda", "--bind-to", "none", "-n", "4"]
    done = subprocess.run(
        [*map(str, mpirun), *options, sys.executable, str(SCRIPT)],
        cwd=tmp_path,
        env={
            **os.environ,
            "OPAL_PREFIX": str(found.prefix),
            "CHAOS": "0:between:1,2:fold-1:7",
            "SPOTMPI_TRACE": str(tmp_path / "run.jsonl"),
        },
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert check(done.stdout, tmp_path) == {1, 3}, done.stdout + done.stderr
