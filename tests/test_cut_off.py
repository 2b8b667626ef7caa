"""Tests that are cut off, as `timeout` or a CI service does it, leave nothing behind either."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.running import LIMIT

ROOT = Path(__file__).resolve().parent.parent

TEST = """
import os, pathlib, subprocess, sys

def test_that_waits():
    pathlib.Path("/dev/shm/{name}").touch()
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    os.write({pipe}, b"%d\\n" % child.pid)
    child.wait()
"""


def test_sigterm_ends_what_a_test_has_started(tmp_path: Path) -> None:
    name = f"cut-off-{os.getpid()}"
    reading, writing = os.pipe()
    (tmp_path / "test_one.py").write_text(TEST.format(name=name, pipe=writing))
    # How pytest was told to run here is not how it is to run there.
    environ = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", tmp_path / "test_one.py"],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[writing],
    ) as cut:
        os.close(writing)
        with open(reading, "rb") as pipe:
            child = os.pidfd_open(int(pipe.readline()))
        cut.send_signal(signal.SIGTERM)
        said, _ = cut.communicate(timeout=LIMIT)
    assert select.select([child], [], [], LIMIT)[0]
    os.close(child)
    assert b"KeyboardInterrupt" in said
    assert not Path("/dev/shm", name).exists()
