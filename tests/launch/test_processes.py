"""Process trees are ended to the last leaf, and only they."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from spotmpi.launch import processes

# Each script runs in a process of its own: ending everything below it must not end the tests.
PRELUDE = """
import os, signal, sys
from spotmpi.launch import processes

def daemon():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            signal.pause()
        os._exit(0)
    return int(os.read(reading, 20))

def child():
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid

def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_everything_below_is_ended_and_reaped() -> None:
    script = """
processes.adopt_orphans()
pids = [child(), daemon(), child()]
assert sorted(processes.descendants(os.getpid()))[:1]
assert processes.end_descendants(10)
assert not any(map(lives, pids))
print("ok")
"""
    assert run(script) == "ok"


def test_what_is_to_be_kept_is_kept() -> None:
    script = """
processes.adopt_orphans()
kept, other = child(), daemon()
assert processes.end_descendants(10, keep=[kept])
print(lives(kept), lives(other))
processes.kill(kept)
os.waitpid(kept, 0)
assert processes.end_descendants(0)
"""
    assert run(script) == "True False"


def test_a_process_with_nothing_below_needs_no_look_at_the_others() -> None:
    script = """
processes._parents = None
assert processes.end_descendants(0)
processes.kill_descendants()
print("ok")
"""
    assert run(script) == "ok"


def test_a_process_dies_with_its_parent() -> None:
    script = """
reading, writing = os.pipe()
middle = os.fork()
if middle == 0:
    middle = os.getpid()
    if os.fork() == 0:
        processes.die_with_parent(middle)
        os.write(writing, b"there")
        signal.pause()
    signal.pause()
os.read(reading, 5)
os.close(writing)
processes.kill(middle)
os.waitpid(middle, 0)
print(os.read(reading, 1))  # the end of the pipe, when the last writer is dead
"""
    assert run(script) == "b''"


def test_a_process_whose_parent_is_dead_already_ends_at_once() -> None:
    script = """
pid = os.fork()
if pid == 0:
    processes.die_with_parent(1 << 22)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run(script) == "1"


def test_marked_processes_are_found_by_their_environment_alone() -> None:
    sleeper = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
    mark = f"SPOTMPI_TEST_MARK={os.getpid()}"
    name, _, value = mark.partition("=")
    marked, similar = (
        subprocess.Popen(sleeper, env={**os.environ, name: text}, stdout=subprocess.PIPE)
        for text in (value, f"{value}0")
    )
    try:
        for one in (marked, similar):
            assert one.stdout is not None
            one.stdout.readline()
        run(f"print(processes.sweep({mark!r}, 10))")
        assert marked.wait(60) == -9
        assert similar.poll() is None
    finally:
        for one in (marked, similar):
            one.kill()
            one.communicate()


def test_others_may_open_more_files_too_when_a_job_grows() -> None:
    """mpirun, say, which was started for fewer workers."""
    script = """
import resource, subprocess
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
ended = subprocess.Popen(["true"])
ended.wait()
with subprocess.Popen(["sleep", "1000"]) as other:
    processes.allow_descriptors(10, [ended.pid, other.pid])
    own, its = (resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in (0, other.pid))
    assert own == its == (9 * 10 + 256, hard), (own, its)
    other.kill()
print("ok")
"""
    assert run(script) == "ok"


@pytest.mark.parametrize(
    ("most", "workers", "said"),
    [
        (64, 2, "64 files open here (ulimit -Hn), and 2 workers may need 110: raise that limit"),
        (64, 1, "and 1 worker may need 103"),
        (151, 8, "--ulimit nofile=152), or start 7 at most"),
        (152, 8, ""),
        (resource.RLIM_INFINITY, 10**6, ""),
    ],
)
def test_too_few_open_files_are_said_with_the_number_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, most: int, workers: int, said: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, most))
    found = processes.few_descriptors(workers)
    assert said in found
    assert bool(found) == bool(said)
