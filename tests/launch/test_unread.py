"""Jobs on a terminal that nobody reads: it never blocks the launcher, and the job ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import LIMIT

CHATTY = """
import pathlib
import numpy as np
import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

with spotmpi.Trainer({"w": np.zeros(8)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    for step in range(300):
        print(f"{step:04} " + 99 * "x\\n", end="" if step % 7 else "\\n", flush=True)
        print(100 * ("y" * 99 + "\\n"), end="", flush=True)
        trainer.step({"w": np.ones(8)})
pathlib.Path(f"finished-{trainer.worker}").touch()
raise SystemExit(3 if "wrong" in __import__("sys").argv else 0)
"""


class Terminal:
    """A pseudo-terminal with a job on it."""

    def __init__(self, folder: Path) -> None:
        self.reading, self.other = os.openpty()
        self.folder = folder
        (folder / "chatty.py").write_text(CHATTY)
        (folder / "hosts").write_text("localhost slots=2\n")
        self.job: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a job that writes to the terminal only."""
        self.job = subprocess.Popen(
            [sys.executable, "-m", "tests.hurried", "run", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=self.other,
            stderr=self.other,
            env={**os.environ, "TERM": "xterm"},  # so that its last line lives
            start_new_session=True,
        )
        return self.job

    def finished(self) -> list[str]:
        """The workers that went through their training."""
        return sorted(file.name for file in self.folder.glob("finished-*"))

    def close(self) -> None:
        """End everything."""
        os.close(self.reading)  # a launcher that is blocked in writing goes on
        os.close(self.other)
        if self.job is not None and self.job.poll() is None:
            self.job.kill()
            self.job.wait()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A pseudo-terminal."""
    made = Terminal(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("where", [("-n", "2"), ("--hosts", "hosts")])
@pytest.mark.matrix
def test_a_job_goes_on_and_ends_though_nobody_ever_reads(terminal: Terminal, where) -> None:
    """Each worker writes three times what is kept for a reader."""
    assert terminal.start(*where, "chatty.py").wait(LIMIT) == 0
    assert terminal.finished() == ["finished-0", "finished-1"]


@pytest.mark.matrix
def test_it_ends_with_its_code_and_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    """Other programs share it, and would fail on one that does not block."""
    assert os.get_blocking(terminal.other)
    assert terminal.start("-n", "2", "chatty.py", "wrong").wait(LIMIT) == 1
    assert os.get_blocking(terminal.other)


@pytest.mark.matrix
def test_a_signal_after_the_end_does_not_change_the_code(terminal: Terminal) -> None:
    """A batch system's, say, of a job that has failed and still waits for its reader."""
    job = terminal.start("-n", "2", "chatty.py", "wrong")
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    while not terminal.finished():
        assert job.poll() is None
        os.sched_yield()
    while len(children.read_text().split()) > 1:  # the keeper of its folder
        os.sched_yield()
    deadline = time.monotonic() + LIMIT
    while job.poll() is None and time.monotonic() < deadline:
        job.send_signal(signal.SIGTERM)
        os.sched_yield()
    assert job.wait(LIMIT) == 1


@pytest.mark.matrix
def test_who_reads_again_is_told_how_much_is_missing(terminal: Terminal) -> None:
    job = terminal.start("-n", "2", "chatty.py")
    seen, deadline = bytearray(), time.monotonic() + LIMIT
    # Nothing is read until the training is over; the launcher still waits for a reader then.
    while len(terminal.finished()) < 2:
        assert job.poll() is None
        assert time.monotonic() < deadline
        os.sched_yield()
    os.set_blocking(terminal.reading, False)
    while job.poll() is None:
        try:
            seen += os.read(terminal.reading, 1 << 16)
        except BlockingIOError:
            os.sched_yield()
    assert b"were dropped here: nobody read them" in seen
