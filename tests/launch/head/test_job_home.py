"""A job is found by one name from its first start to its end, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi import job_folder
from spotmpi.errors import UsageError
from spotmpi.launch import control_messages
from spotmpi.launch.head.control_socket import DESK
from spotmpi.launch.head.fates import JobEnding
from spotmpi.launch.head.job_home import JobHome
from spotmpi.launch.head.status_report import StatusReport
from tests.running import LIMIT

ALONE = """
import os, signal, sys
from spotmpi.launch.head.job_home import JobHome
with JobHome(sys.argv[1]) as home:
    print(home.name, flush=True)
    signal.pause()
"""

WHILE_IT_CLEARS = """
import sys
from spotmpi import job_folder
from spotmpi.launch import processes
def sweep(mark, patience):
    job_folder.remove_abandoned()
    try:
        job_folder.make(mark.removeprefix("SPOTMPI_JOB="))
    except FileExistsError:
        print("its name is taken", flush=True)
processes.sweep = sweep
"""


WAITS = """
import sys
from spotmpi import job_folder
make = job_folder.make
def made(name):
    try:
        return make(name)
    except FileExistsError:
        print("waits", flush=True)
        raise
job_folder.make = made
"""

CLEARS_SLOWLY = """
import sys
from spotmpi.launch import processes
processes.sweep = lambda mark, patience: sys.stdin.read(1)
"""

IS_KILLED_AFTER_THE_REMOVAL = """
import os, signal, sys
from spotmpi import job_folder
from spotmpi.launch.head.job_home import JobHome
remove = job_folder.remove
def removed(folder, patience=2.0):
    remove(folder, patience)
    print("removed", flush=True)
    signal.pause()
with JobHome(sys.argv[1]):
    job_folder.remove = removed
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(job_folder, "home", lambda: tmp_path)
    return tmp_path


def asks(home: JobHome, what: str) -> socket.socket:
    """Somebody who asks."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(job_folder.home() / home.name / DESK))
    client.sendall(json.dumps({"ask": what}).encode() + b"\n")
    while home.loop.turn(0):
        pass
    return client


def ended(how: str) -> control_messages.Report:
    """How a start has ended."""
    return StatusReport("t.py").report("spotmpi-it", [], {}, {}, JobEnding(69, how))


def heard(client: socket.socket) -> str:
    """What has come."""
    with client:
        return client.recv(1 << 16, socket.MSG_DONTWAIT).decode()


def test_whoever_waits_for_the_end_waits_through_all_starts() -> None:
    with JobHome("it") as home:
        assert home.name == "spotmpi-it"
        home.serve(lambda asked: control_messages.Said("the first start"))
        assert "the first start" in heard(asks(home, "status"))
        waits = asks(home, "end")
        home.last = ended("the first start is over")
        home.serve(lambda asked: control_messages.Said("the second start"))
        assert "the second start" in heard(asks(home, "status"))
        assert not select.select([waits], [], [], 0)[0]
        home.last = ended("the second start is over")
    assert "the second start is over" in heard(waits)
    assert not list(job_folder.home().iterdir())


def test_a_name_is_of_one_job_at_a_time() -> None:
    with JobHome("it"), pytest.raises(UsageError, match="there is a job spotmpi-it"), JobHome("it"):
        pass
    with JobHome("it"):
        pass


def test_without_a_name_it_gets_one_of_its_own() -> None:
    with JobHome() as one, JobHome() as other:
        assert one.name != other.name
        assert job_folder.is_name(one.name.removeprefix(job_folder.PREFIX))


@pytest.mark.parametrize("name", ["", "-x", ".", "a/b", "a b", "ä", "x" * 41, "a\n"])
def test_what_is_no_name(name: str) -> None:
    assert not job_folder.is_name(name)


def test_a_launcher_that_is_killed_while_it_waits_for_hosts_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    name = f"killed-{os.getpid()}"
    command = [sys.executable, "-c", ALONE, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == f"spotmpi-{name}\n"
        (keeper,) = [
            int(pid)
            for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
            .read_text()
            .split()
        ]
        ended = os.pidfd_open(keeper)
        launcher.kill()
        assert select.select([ended], [], [], LIMIT)[0]
        os.close(ended)
    assert not (job_folder.home() / f"spotmpi-{name}").exists()
    assert launcher.returncode == -signal.SIGKILL


def test_nobody_gets_the_name_of_a_killed_job_before_all_of_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its name its processes are found, and killed."""
    monkeypatch.undo()
    name = f"killed-{os.getpid()}"
    command = [sys.executable, "-c", WHILE_IT_CLEARS + ALONE, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == f"spotmpi-{name}\n"
        launcher.kill()
        assert launcher.stdout.read() == "its name is taken\n"  # to the end of its keeper
    assert not (job_folder.home() / f"spotmpi-{name}").exists()


def test_whoever_starts_a_killed_job_again_waits_until_all_of_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    name = f"again-{os.getpid()}"
    first = [sys.executable, "-c", CLEARS_SLOWLY + ALONE, name]
    second = [sys.executable, "-c", WAITS + ALONE, name]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(first, **piped) as killed:
        assert killed.stdin is not None
        assert killed.stdout is not None
        assert killed.stdout.readline() == f"spotmpi-{name}\n"
        killed.kill()
        with subprocess.Popen(second, stdout=subprocess.PIPE, text=True) as again:
            assert again.stdout is not None
            assert again.stdout.readline() == "waits\n"
            killed.stdin.write("x")
            killed.stdin.close()
            said = next((line for line in again.stdout if line != "waits\n"), "it gave up")
            assert said == f"spotmpi-{name}\n"
            again.kill()
    assert again.returncode == -signal.SIGKILL


def test_a_launcher_killed_when_its_folder_is_gone_does_no_harm_to_the_next_job_of_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    name = f"next-{os.getpid()}"
    command = [sys.executable, "-c", IS_KILLED_AFTER_THE_REMOVAL, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "removed\n"
        children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text()
        keeper = os.pidfd_open(int(children))
        with JobHome(name) as home:
            marked = os.environ | {"SPOTMPI_JOB": home.name}
            with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE,
                                  env=marked) as worker:  # fmt: skip
                killed.kill()
                assert select.select([keeper], [], [], LIMIT)[0]
                assert worker.poll() is None
                assert (job_folder.home() / home.name).exists()
                worker.kill()
        os.close(keeper)
