"""Runs that ``spotmpi profile --run`` starts, and that nothing is left of them."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi import job_folder
from spotmpi.economy import reading
from spotmpi.economy.models import ring, step_times, trials
from tests.running import LIMIT, Running

RunSpotmpi = Callable[..., "subprocess.CompletedProcess[str]"]

TRAINING = """\
import sys
import numpy as np
import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

steps, fifo = int(sys.argv[1]), sys.argv[2:]
with spotmpi.Trainer([np.zeros(1000)], optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    while trainer.steps < steps:
        trainer.step([np.ones(1000)], loss=1 / (trainer.steps + 1))
        if fifo and trainer.leader and trainer.steps == 1:
            with open(fifo[0], "w") as file:
                file.write("it trains")
"""
"""Nothing but steps, as many as its argument says; says in a FIFO that it has begun."""

FOR_EVER = 1_000_000_000


@pytest.fixture
def training(tmp_path: Path) -> Path:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    return script


@pytest.mark.matrix
def test_a_script_is_run_until_there_are_enough_steps(
    run_spotmpi: RunSpotmpi, training: Path, tmp_path: Path
) -> None:
    words = ["profile", "-n", 1, 2, "--steps", 20, "-o", "out.yaml", "--run", training, FOR_EVER]
    done = run_spotmpi([str(word) for word in words])
    assert done.returncode == 0, done.stderr
    for workers in (1, 2):
        row = re.search(rf"^{workers} +(\d+) +[\d.]+ +[\d.]+ +\S+ %  fitted$", done.stdout, re.M)
        assert row is not None, done.stdout
        assert int(row[1]) >= 20
    assert "predicted: 4 workers: " in done.stdout
    model = ring.from_profile(reading.load(tmp_path / "out.yaml"))
    assert model.name == "training.py"
    assert model.gradient_mb == pytest.approx(0.004)
    assert model.hosts["local"].cores == len(os.sched_getaffinity(0))
    assert model.rate({"local": 1}) > 0


@pytest.mark.matrix
def test_where_ctrl_c_is_ignored_a_run_is_ended_nevertheless(
    training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts of a shell ignore it in what they start with &. Killed, it left its folder behind."""
    killed: list[object] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: killed.append(self.send_signal(9)))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        trials.trial(2, [str(training), str(FOR_EVER)], 10, LIMIT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not killed


@pytest.mark.matrix
def test_a_script_that_ends_by_itself_is_as_good(training: Path) -> None:
    records = trials.trial(2, [str(training), "12"], 30, LIMIT)
    (run,) = step_times.read(records, "it").runs
    assert (run.hosts, run.workers_per_host, len(run.seconds)) == (1, 2, 12 - step_times.WARM_UP)


def test_a_script_that_ends_before_anything_counts_is_said(
    run_spotmpi: RunSpotmpi, training: Path
) -> None:
    done = run_spotmpi(["profile", "-n", "1", "--run", str(training), "3"])
    assert done.returncode == 2
    assert "ended before step 5, and the first 5 do not count; have it take more" in done.stderr


def test_a_script_that_fails_is_said_with_its_last_words(
    run_spotmpi: RunSpotmpi, training: Path
) -> None:
    done = run_spotmpi(["profile", "-n", "2", "--run", str(training), "many"])
    assert done.returncode == 1
    assert "the run with 2 workers had done 0 of 35 steps when it ended with code 1" in done.stderr
    assert "invalid literal for int() with base 10: 'many'" in done.stderr


@pytest.mark.matrix
def test_a_run_that_takes_too_long_is_ended(training: Path) -> None:
    words = [str(training), str(FOR_EVER)]
    with pytest.raises(trials.TrialFailed, match=r"of 1000000005 steps when its 3 s were over"):
        trials.trial(1, words, FOR_EVER, 3.0)


@pytest.fixture
def begun(training: Path, tmp_path: Path) -> Iterator[Running]:
    """``spotmpi profile`` whose run with 2 workers trains."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    words = ["profile", "-n", "2", "--steps", str(FOR_EVER), "--run", str(training), str(FOR_EVER)]
    running = Running([sys.executable, "-m", "spotmpi", *words, str(fifo)], tmp_path)
    try:
        opened = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert select.select([opened], [], [], LIMIT)[0], running.output
        finally:
            os.close(opened)
        yield running
    finally:
        running.close()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
@pytest.mark.matrix
def test_a_signal_ends_the_run_with_it(begun: Running, number: signal.Signals, code: int) -> None:
    os.kill(begun.pid, number)
    assert begun.wait() == code  # and the fixture of every test sees that nothing is left


@pytest.mark.matrix
def test_if_it_is_killed_the_job_ends_and_the_next_one_removes_the_folder(begun: Running) -> None:
    (job,) = begun.children(begun.pid)
    descriptor = os.pidfd_open(job)
    try:
        os.kill(begun.pid, signal.SIGKILL)
        assert select.select([descriptor], [], [], LIMIT)[0], "the job goes on without it"
    finally:
        os.close(descriptor)
    assert begun.wait() == -signal.SIGKILL
    job_folder.remove_abandoned()
