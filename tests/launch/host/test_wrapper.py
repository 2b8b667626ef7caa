"""What a wrapper does with its worker, and says of it: the test is its agent."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi import job_folder
from spotmpi.launch import wrapper_socket as wire
from spotmpi.launch.host.worker import TASK
from spotmpi.launch.start import mpirun
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.settings import Settings
from tests.running import LIMIT

WORKER = 1

SLEEPS = "import signal\nprint('up', flush=True)\nsignal.pause()\n"

FORKS = """\
import os, signal
child = os.fork()
if child:
    print(child, flush=True)
signal.pause()
"""


class Wrapper:
    """One worker's wrapper, and the agent's end of what it says."""

    def __init__(self, folder: Path, script: Path, detect_ms: int | None) -> None:
        self.folder = folder
        (folder / TASK).write_text(json.dumps([str(script), "an argument"]))
        self.listener = wire.listen(folder)
        self.listener.settimeout(LIMIT)
        settings = Settings(job=folder.name, job_dir=folder, detect_ms=detect_ms)
        self.process = subprocess.Popen(
            mpirun.wrapper(folder, WORKER, script.name),
            env=os.environ | settings.to_environ() | {"OMPI_COMM_WORLD_RANK": str(WORKER)},
            stdin=subprocess.DEVNULL,
        )
        self.link, _ = self.listener.accept()
        self.link.settimeout(LIMIT)
        first, streams, _, _ = socket.recv_fds(self.link, 1 << 16, 2)
        self.hello = json.loads(first)
        self.streams = dict(zip((1, 2), streams, strict=True))
        self.runs = self.hear()

    @property
    def worker(self) -> int:
        """The process id of its worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        (pid,) = map(int, children.split())
        return pid

    def hear(self) -> dict[str, Any]:
        """What it says next."""
        said: dict[str, Any] = json.loads(self.link.recv(1 << 16))
        return said

    def line(self, stream: int = 1) -> str:
        """What its worker writes next."""
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([self.streams[stream]], [], [], LIMIT)[0], line
            data = os.read(self.streams[stream], 1)
            if not data:
                break
            line += data
        return line.decode()

    def say(self, word: bytes) -> None:
        wire.say(self.link, word)

    def wait(self) -> int:
        """How the wrapper ends, as a process."""
        return self.process.wait(LIMIT)

    def waits(self) -> bool:
        """Whether it has nothing more to say, and has not ended."""
        return not select.select([self.link], [], [], 0)[0] and self.process.poll() is None

    def death(self) -> float | None:
        """When its worker died, as the others find it on the board."""
        channel, other = socket.socketpair()
        with channel, other:
            settings = Settings(job_dir=self.folder, channel_fd=channel.fileno())
            return LauncherChannel.open(settings).death_of(WORKER)

    def close(self) -> None:
        self.link.close()
        self.listener.close()
        for descriptor in self.streams.values():
            os.close(descriptor)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def wrap(tmp_path: Path) -> Iterator[Callable[..., Wrapper]]:
    """``wrap("print('hello')")`` has a wrapper run a script."""
    _, folder, lock = job_folder.create(2)
    made: list[Wrapper] = []

    def start(text: str, detect_ms: int | None = None) -> Wrapper:
        script = tmp_path / "script.py"
        script.write_text(text)
        made.append(Wrapper(folder, script, detect_ms))
        return made[-1]

    yield start
    for wrapper in made:
        wrapper.close()
    job_folder.remove(folder)
    os.close(lock)


def test_it_names_itself_and_its_worker_s_output_comes_through_it(wrap) -> None:
    wrapper = wrap("import sys\nprint(sys.argv[1:])\nprint('oh', file=sys.stderr)")
    hello = {"event": "hello", "worker": WORKER, "wrapper": wrapper.process.pid}
    assert wrapper.hello == hello
    assert wrapper.line() == "['an argument']\n"
    assert wrapper.line(2) == "oh\n"
    assert (wrapper.line(), wrapper.line(2)) == ("", ""), "the streams end with the worker"


@pytest.mark.parametrize(("text", "status"), [("", 0), ("import sys; sys.exit(75)", 75 << 8)])
def test_a_worker_that_ends_by_itself_leaves_its_wrapper_until_that_may_go(
    wrap, text: str, status: int
) -> None:
    """MPI would take a wrapper that goes for a death, while others may train on."""
    wrapper = wrap(text)
    ended = wrapper.hear()
    assert (ended["event"], ended["status"]) == ("ended", status)
    assert wrapper.waits()
    assert wrapper.death() is None
    wrapper.say(wire.LEAVE)
    assert wrapper.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_revoked_takes_its_wrapper_along(wrap, number: signal.Signals) -> None:
    wrapper = wrap(SLEEPS)
    wrapper.line()
    os.kill(wrapper.worker, number)
    ended = wrapper.hear()
    assert (ended["event"], ended["status"]) == ("ended", number)
    assert wrapper.wait() == -signal.SIGKILL
    assert wrapper.death() == ended["at"]


def test_to_revoke_a_worker_its_wrapper_is_told_to_end(wrap) -> None:
    wrapper = wrap(SLEEPS)
    wrapper.line()
    os.kill(wrapper.process.pid, signal.SIGTERM)
    assert wrapper.hear()["status"] == signal.SIGKILL
    assert wrapper.wait() == -signal.SIGKILL


def test_ctrl_c_in_the_launcher_s_terminal_is_not_for_workers(wrap) -> None:
    wrapper = wrap(SLEEPS)
    wrapper.line()
    worker = wrapper.worker
    assert os.getpgid(worker) == worker
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(wrapper.process.pid, number)
    os.kill(wrapper.process.pid, signal.SIGTERM)
    assert wrapper.hear()["status"] == signal.SIGKILL


def test_a_crash_is_told_as_what_it_is(wrap) -> None:
    wrapper = wrap("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    crashed, ended = wrapper.hear(), wrapper.hear()
    assert crashed["event"] == "crashed"
    assert crashed["step"] is None
    assert crashed["stacks"].startswith("Fatal Python error: Segmentation fault\n")
    assert ended["status"] & 0x7F == signal.SIGSEGV
    assert not ended["in_mpi"]
    assert wrapper.waits()
    assert wrapper.death() is None


def test_a_worker_that_stays_stopped_is_revoked(wrap) -> None:
    wrapper = wrap(SLEEPS, detect_ms=50)
    wrapper.line()
    os.kill(wrapper.worker, signal.SIGSTOP)
    assert wrapper.hear() == {"event": "stopped", "seconds": 0.05}
    assert wrapper.hear()["status"] == signal.SIGKILL
    assert wrapper.wait() == -signal.SIGKILL


def test_all_that_a_worker_has_started_goes_with_it(wrap, ended) -> None:
    wrapper = wrap(FORKS)
    child = int(wrapper.line())
    wrapper.say(wire.END)
    assert wrapper.hear() == {"event": "cleared"}
    assert ended(child)
    assert wrapper.death() is None, "the job ends: that is no death to recover from"
    wrapper.say(wire.LEAVE)
    assert wrapper.wait() == 0


@pytest.mark.parametrize("text", [FORKS, "print(0, flush=True)"])
def test_without_an_agent_it_leaves_nothing_on_the_host(wrap, ended, text: str) -> None:
    wrapper = wrap(text)
    child = int(wrapper.line())
    if not child:
        wrapper.hear()
    wrapper.link.close()
    assert wrapper.wait() == 1
    assert child == 0 or ended(child)
    assert not wrapper.folder.exists()


def test_a_worker_does_not_outlive_its_wrapper(wrap, ended) -> None:
    wrapper = wrap(SLEEPS)
    wrapper.line()
    worker = wrapper.worker
    wrapper.process.kill()
    assert ended(worker)


def test_what_a_worker_tells_comes_after_the_hello_and_before_its_end(wrap) -> None:
    wrapper = wrap(
        "from spotmpi.launcher_channel import LauncherChannel\n"
        "from spotmpi.settings import Settings\n"
        "LauncherChannel.open(Settings.from_environ()).tell('begin')\n"
    )
    assert [wrapper.hear()["event"] for _ in range(2)] == ["begin", "ended"]


def test_a_wrapper_whose_agent_is_gone_before_it_came_just_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, mpirun.wrapper(tmp_path, 0, "x.py")[1], tmp_path],
        env=os.environ | {"OMPI_COMM_WORLD_RANK": "0"},
        capture_output=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def name_of(pid: int) -> str:
    """As `ps` and `top` show it."""
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


def test_processes_say_in_ps_which_worker_they_are_of(wrap) -> None:
    wrapper = wrap(SLEEPS)
    assert wrapper.line() == "up\n"
    assert wrapper.runs == {"event": "runs", "pid": wrapper.worker}
    assert name_of(wrapper.worker) == f"spotmpi-{WORKER}"
    assert name_of(wrapper.process.pid) == f"wrapper-{WORKER}"
    for pid in (wrapper.worker, wrapper.process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert words[-2] == f"worker {WORKER} of script.py"
    os.kill(wrapper.worker, signal.SIGKILL)
    wrapper.wait()


def test_a_name_that_is_too_long_is_cut() -> None:
    code = "from spotmpi.launch import processes\nprocesses.name_this('spotmpi-123456789')\n"
    code += "print(open('/proc/self/comm').read(), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "spotmpi-1234567\n"
