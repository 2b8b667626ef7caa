"""`spotmpi.bench.measuring.deaths`: the moment of a death as the kernel has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from spotmpi.bench.measuring.deaths import Deaths


def test_a_death_is_seen_when_the_process_is_gone(tmp_path: Path) -> None:
    with Deaths(tmp_path) as deaths:
        with (
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim,
            open(tmp_path / "victims", "wb", buffering=0) as pipe,
        ):
            os.mkfifo(tmp_path / "watched-7")
            pipe.write(f"7 {victim.pid}\n".encode())
            os.close(os.open(tmp_path / "watched-7", os.O_RDONLY))
            assert victim.pid in _watched()
            assert deaths.seen == {}
            before = time.monotonic()
            victim.send_signal(signal.SIGKILL)
            victim.wait(timeout=60)
            while not deaths.seen:
                os.sched_yield()
        after = time.monotonic()
    assert before < deaths.seen[7] < after


def test_who_is_killed_and_not_dead_yet_is_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        with Deaths(tmp_path) as deaths:
            with open(tmp_path / "victims", "wb", buffering=0) as pipe:
                os.mkfifo(tmp_path / "watched-7")
                pipe.write(f"7 {victim.pid}\n".encode())
                os.close(os.open(tmp_path / "watched-7", os.O_RDONLY))
            later = threading.Timer(0.3, victim.kill)
            later.start()
        later.join()
    assert set(deaths.seen) == {7}


def test_watching_nobody_ends_at_once(tmp_path: Path) -> None:
    with Deaths(tmp_path) as deaths:
        pass
    assert deaths.seen == {}


def _watched() -> set[int]:
    """The processes of which this one holds a pidfd."""
    found = set()
    for entry in Path("/proc/self/fdinfo").iterdir():
        try:
            lines = entry.read_text().splitlines()
        except OSError:
            continue
        found |= {int(line.split()[1]) for line in lines if line.startswith("Pid:")}
    return found
