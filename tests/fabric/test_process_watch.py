"""The kernel says at once which neighbours are dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from spotmpi.fabric.process_watch import ProcessWatch

LIMIT = 60.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


@pytest.fixture
def neighbours() -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Workers 1 to 3, which wait."""
    program = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    started = {one: subprocess.Popen(program, stdin=subprocess.PIPE) for one in (1, 2, 3)}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.fixture
def watched(neighbours: dict[int, subprocess.Popen[bytes]]) -> ProcessWatch:
    watched = ProcessWatch()
    for worker, process in neighbours.items():
        watched.follow(worker, process.pid)
    return watched


def test_who_is_killed_is_dead_before_anybody_has_reaped_it(
    watched: ProcessWatch, neighbours: dict[int, subprocess.Popen[bytes]]
) -> None:
    assert watched.dead == []
    neighbours[2].kill()
    until(lambda: watched.dead)
    assert watched.dead == [2]
    neighbours[2].wait()
    assert watched.dead == [2]
    neighbours[1].kill()
    until(lambda: len(watched.dead) == 2)
    assert sorted(watched.dead) == [1, 2]


def test_who_is_stopped_is_not_dead(
    watched: ProcessWatch, neighbours: dict[int, subprocess.Popen[bytes]]
) -> None:
    os.kill(neighbours[1].pid, signal.SIGSTOP)
    os.waitid(os.P_PID, neighbours[1].pid, os.WSTOPPED | os.WNOWAIT)
    assert watched.dead == []


def test_who_left_is_of_no_interest_and_nothing_of_it_stays_open(
    neighbours: dict[int, subprocess.Popen[bytes]],
    descriptors: Callable[[], list[str]],
) -> None:
    before = set(descriptors())
    ends = [ProcessWatch()]
    for worker, process in neighbours.items():
        ends[0].follow(worker, process.pid)
    ends[0].keep([1, 7])
    for process in neighbours.values():
        process.kill()
    until(lambda: ends[0].dead)
    assert ends[0].dead == [1]
    ends[0].follow(1, os.getpid())  # another process is that worker now
    assert ends[0].dead == []
    ends.clear()
    assert set(descriptors()) == before


def test_a_process_that_is_gone_cannot_be_followed(
    neighbours: dict[int, subprocess.Popen[bytes]],
) -> None:
    process = neighbours[3]
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):
        ProcessWatch().follow(3, process.pid)
