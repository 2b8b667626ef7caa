"""``spotmpi run -m package.module``: as ``python -m`` runs it, on every worker of a job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.trace import records as trace
from spotmpi.trace.replay import check_exactly_once
from tests.launch.asking import folder_of
from tests.running import unnamed

ABOUT = """
import json, os, sys
from . import size
main = sys.modules["__main__"]
assert main.__dict__ is globals()
print(json.dumps({
    "argv": sys.argv,
    "first": os.path.realpath(sys.path[0]),
    "name": __name__,
    "package": __package__,
    "file": __file__,
    "spec": __spec__.name,
    "loader": type(__loader__).__name__,
    "size": size,
}))
"""

TRAIN = """
import os, signal, sys
import numpy as np, spotmpi
from spotmpi.optimizers import SGD
from . import size

passes, enough = 0, 0.0
with spotmpi.Trainer({"w": np.zeros(4)}, optimizer=SGD(lr=0.1)) as trainer:
    while not enough:
        for batch in trainer.batches(size, batch_size=3):
            trainer.step({"w": np.ones(4)})
            if (trainer.worker, trainer.steps) == (1, 8):
                os.kill(os.getpid(), signal.SIGKILL)
        passes += 1
        enough = trainer.mean(float(max(trainer.workers) > 1))
print("TRAINED", trainer.worker, passes, *sys.argv[1:])
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """One with a module that says how it is run, and one that trains."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "__init__.py").write_text("size = 200\n")
    (folder / "about.py").write_text(ABOUT)
    (folder / "__main__.py").write_text(ABOUT)
    (folder / "train.py").write_text(TRAIN)
    (folder / "wrong.py").write_text("def broken():\n    return 1 / 0\n\n\nbroken()\n")
    return folder


@pytest.mark.parametrize("name", ["project.about", "project"])
def test_it_is_run_as_python_runs_it(start, package: Path, name: str) -> None:
    words = ["-m", name, "a b", "-n", "3", "--", "-x"]
    alone = subprocess.run(
        [sys.executable, *words], cwd=package.parent, capture_output=True, text=True, check=True
    )
    running = start("run", "-n", 1, *words)
    assert running.wait() == 0, running.output
    assert json.loads(unnamed(running.output)) == json.loads(alone.stdout)


@pytest.mark.matrix
def test_behind_an_agent_it_is_found_in_the_working_folder(start, package: Path, hosts) -> None:
    running = start("run", "--hosts", hosts, "--quiet", "-m", "project", "x")
    assert running.wait() == 0, running.output
    assert running.output == ""
    told = start("run", "--hosts", hosts, "-m", "project", "x")
    assert told.wait() == 0
    assert told.output.count(f'"argv": ["{package}/__main__.py", "x"]') == 2


def test_status_names_it(start) -> None:
    running = start("run", "-n", 2, "-m", "tests.launch.scripts.trainer", "say:0@9", "hang:0@10")
    running.until("worker 0 at step 9")
    job = folder_of(running).name
    shown = start("status", "--job", job)
    assert shown.wait() == 0
    assert f"{job}: -m tests.launch.scripts.trainer say:0@9 hang:0@10\n" in shown.output
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


def test_what_it_raises_is_shown_without_the_frames_of_who_runs_it(start, package: Path) -> None:
    running = start("run", "-n", 2, "-m", "project.wrong")
    assert running.wait() == 1
    assert f'File "{package}/wrong.py", line 5, in <module>' in running.output
    assert "ZeroDivisionError" in running.output
    assert "runpy" not in running.output


@pytest.mark.matrix
def test_a_worker_is_lost_another_comes_and_the_same_line_says_when_it_is_complete(
    start, package: Path
) -> None:
    line = "run", "-n", 2, "--replace", "--verbose", "--trace", "t.jsonl", "--checkpoint", "kept"
    line = *line, "--resume", "-m", "project.train", "--now"
    first = start(*line)
    assert first.wait() == 0, first.output
    (newcomer,) = re.findall(r"TRAINED 2 (\d+) --now", first.output)
    assert "runs -m project.train" in first.output
    records = list(trace.read(package.parent / "t.jsonl"))
    check_exactly_once(records, 200, int(newcomer))
    done = start(*line)
    assert done.wait() == 0
    assert "the training is complete" in done.output
    (package / "train.py").write_text(TRAIN.replace("not enough", "not passes"))
    changed = start(*line)
    assert changed.wait() == 0
    assert "TRAINED 1 1 --now" in changed.output
