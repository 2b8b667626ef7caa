"""A worker joins a job whose first trainings are over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.chaos.test_folds import SCRIPT, check


@pytest.mark.matrix
def test_a_successor_goes_past_the_trainings_that_are_over(start, tmp_path: Path) -> None:
    """Two workers are killed in the last one; those who come in their places train in it."""
    job = start("run", "-n", 2, "--replace", "--trace", "run.jsonl", SCRIPT, "wait")
    trace = tmp_path / "run-3.jsonl"
    for lost, comes in ((1, 2), (0, 3)):
        steps = 0 if not trace.exists() else trace.read_text().count('"event":"step"')
        while not trace.exists() or trace.read_text().count('"event":"step"') < steps + 30:
            assert job.alive, job.wait()
        for wrapper in job.wrappers:
            environ = Path(f"/proc/{wrapper}/environ").read_text().split("\0")
            late = any(one.startswith("SPOTMPI_NEWCOMER=") for one in environ)
            if f"OMPI_COMM_WORLD_RANK={lost}" in environ and not late:
                for worker in job.children(wrapper):
                    os.kill(worker, signal.SIGKILL)
        job.until(f"worker {comes} on localhost has joined")
    (tmp_path / "enough").touch()
    assert job.wait() == 0, job.output
    told = [line.partition("SCORES ") for line in job.output.splitlines()]
    (passes,) = {int(said.split()[1]) for _, scores, said in told if scores}
    assert check(job.output, tmp_path, passes) == {2, 3}
