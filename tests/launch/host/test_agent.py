"""What an agent does for its head, and says of its workers: the test is the head.

The agent, its wrappers and its workers are real processes. What the head says travels over the
agent's own pipes, as ssh has them.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotmpi import __version__, job_folder
from spotmpi.launch import messages
from spotmpi.launch.auth import NONCE_BYTES, Frame, Role, Seal
from spotmpi.launch.decoding import Message
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.link import HostLink, Output, read
from spotmpi.launch.processes import descendants
from spotmpi.launcher_channel import Cause
from tests.running import LIMIT

TOKEN = bytes(range(32))


def _open_at_most(files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


SLEEPS = "import signal\nprint('up', flush=True)\nsignal.pause()\n"


class Head:
    """The head's end of one agent."""

    def __init__(self, folder: Path, options: tuple[str, ...], files: int | None = None) -> None:
        self.folder = folder
        self.before = set(job_folder.all_of_mine())
        self.loop = Loop()
        self.told: list[Any] = []
        """What the agent said, without workers' output."""
        self.came: list[Any] = []
        """All that came, in its order."""
        self.wrote: dict[tuple[int, int], bytes] = {}
        self.closed = ""
        """Why nothing more can be said, if that is so."""
        command = [sys.executable, "-m", "spotmpi", "agent", "--pipe", "--name", "h1"]
        self.agent = subprocess.Popen(
            [*command, "--slots", "2", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=None if files is None else partial(_open_at_most, files),
        )
        assert self.agent.stdin is not None
        assert self.agent.stdout is not None
        self.agent.stdin.write(TOKEN.hex().encode() + b"\n")
        self.agent.stdin.flush()
        ends = os.dup(self.agent.stdout.fileno()), os.dup(self.agent.stdin.fileno())
        self.agent.stdin.close()
        self.agent.stdout.close()
        seal = Seal(Role.HEAD, TOKEN, bytes(NONCE_BYTES))
        self.link = HostLink(self.loop, ends, seal, self._take, self._gone)

    def _take(self, frame: Frame) -> None:
        said = read(frame, messages.FROM_NEW_AGENT | messages.FROM_AGENT)
        self.came.append(said)
        if isinstance(said, Output):
            key = said.worker, said.stream
            self.wrote[key] = self.wrote.get(key, b"") + said.data
        else:
            self.told.append(said)

    def _gone(self, why: str) -> None:
        self.closed = why

    def until(self, found: Callable[[], Any]) -> Any:
        """Let things happen until this is so; return it."""
        deadline = time.monotonic() + LIMIT
        while not (value := found()):
            assert time.monotonic() < deadline, (self.told, self.wrote, self.closed)
            self.loop.turn(0.1)
            if not self.closed:
                self.link.beat()
        return value

    def hear(self, kind: type[Message]) -> Any:
        """What it says of this kind, the first that was not heard yet."""
        found = self.until(lambda: [one for one in self.told if isinstance(one, kind)])[0]
        self.told.remove(found)
        return found

    def end_of(self, worker: int) -> Message:
        """How a worker ends, as the agent has it."""
        kinds = (messages.Ended, messages.Vanished, messages.Cleared)

        def found() -> list[messages.Passed]:
            passed = [one for one in self.told if isinstance(one, messages.Passed)]
            return [one for one in passed if one.worker == worker and isinstance(one.said, kinds)]

        (end,) = self.until(found)
        self.told.remove(end)
        said: Message = end.said
        return said

    def assign(
        self, script: str | tuple[str, ...] = "script.py", folder: Path | None = None
    ) -> None:
        """Say what the job is."""
        self.until(lambda: self.link.open)
        environ = {"COLOUR": "blue"}
        task = (*((script,) if isinstance(script, str) else script), "an argument")
        self.link.tell(messages.Assignment(str(folder or self.folder), task, environ, None, 30.0))

    def begin(self, text: str) -> Head:
        """Give it a script; return when it is fit to run it."""
        (self.folder / "script.py").write_text(text)
        self.assign()
        self.hear(messages.Fit)
        return self

    def start(self, *workers: int, **environ: str) -> None:
        """Have it start workers."""
        for worker in workers:
            rank = {"OMPI_COMM_WORLD_RANK": str(worker), "PMIX_SERVER_URI4": "x;tcp4://127.0.0.1:9"}
            self.link.tell(messages.Start(worker, 2, rank | environ))

    def output(self, worker: int, text: str) -> None:
        """Wait until a worker has written this, and nothing else."""
        self.until(lambda: self.wrote.get((worker, 1), b"") == text.encode())

    def wait(self) -> int:
        """Its exit code, once it has cleared up; what it had still to say is read."""
        self.until(lambda: self.closed)
        return self.agent.wait(LIMIT)

    @property
    def said(self) -> str:
        """What it wrote for people, once it has ended."""
        assert self.agent.stderr is not None
        return self.agent.stderr.read().decode()

    def folders(self) -> set[Path]:
        """What it has in shared memory."""
        return set(job_folder.all_of_mine()) - self.before

    def close(self) -> None:
        self.link.close()
        self.loop.close()
        self.agent.wait(LIMIT)
        assert self.agent.stderr is not None
        self.agent.stderr.close()


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Callable[..., Head]]:
    """``meet()`` starts an agent, which may open so many ``files``."""
    made: list[Head] = []

    def start(*options: str, files: int | None = None) -> Head:
        made.append(Head(tmp_path, options, files))
        return made[-1]

    yield start
    for head in made:
        head.close()


# It introduces itself.


def test_it_says_who_it_is_and_what_it_has(meet) -> None:
    head = meet()
    assert head.hear(messages.Hello) == messages.Hello(__version__)
    assert head.hear(messages.Offer) == messages.Offer("h1", 2, None)


def test_it_says_if_its_host_lets_it_open_too_few_files(meet) -> None:
    offer = meet(files=64).hear(messages.Offer)
    assert "64 files open here (ulimit -Hn), and 2 workers may need 110" in offer.problem
    assert offer.problem.endswith("(on h1)")


@pytest.mark.matrix
def test_a_host_without_the_script_or_the_folder_is_not_fit(meet, tmp_path: Path) -> None:
    for script, folder, why in (
        ("other.py", tmp_path, f"there is no script {tmp_path}/other.py on h1"),
        ("script.py", tmp_path / "below", f"there is no folder {tmp_path}/below on h1"),
        (("-m", "project.other"), tmp_path, "there is no module project.other on h1"),
    ):
        head = meet()
        head.assign(script, folder)
        assert head.hear(messages.Unfit).why == why
        assert head.wait() == 1
        assert why in head.said
        assert not head.folders()


def test_an_agent_that_is_refused_says_why_and_does_not_try_again(meet) -> None:
    head = meet()
    head.until(lambda: head.link.open)
    head.link.tell(messages.Refusal("it has spotmpi 9, and the head 1"))
    assert head.wait() == 1
    assert "the head refused this host: it has spotmpi 9, and the head 1" in head.said


# It runs workers.


def test_a_worker_runs_in_the_head_s_folder_with_its_arguments_and_variables(meet) -> None:
    head = meet().begin(
        "import os, sys\n"
        "print(os.getcwd(), sys.argv, os.environ['COLOUR'], os.environ['SHAPE'])\n"
        "print('oh', file=sys.stderr)\n"
    )
    head.start(1, SHAPE="round")
    assert head.end_of(1) == messages.Ended(0)
    head.output(1, f"{head.folder} ['script.py', 'an argument'] blue round\n")
    head.until(lambda: head.wrote.get((1, 2)) == b"oh\n")


def test_workers_of_torch_scripts_have_numbers_on_their_host_as_the_job_began(meet) -> None:
    """A newcomer has the number of one that is gone, or the next one."""
    head = meet().begin(
        "import os, signal\n"
        "place, size = os.environ['LOCAL_RANK'], os.environ['LOCAL_WORLD_SIZE']\n"
        "print(place, size, flush=True)\n"
        "signal.pause()\n"
    )
    head.start(2, 3)
    head.output(2, "0 2\n")
    head.output(3, "1 2\n")
    head.start(4)
    head.output(4, "2 2\n")
    head.link.tell(messages.Kill(3))
    assert head.end_of(3) == messages.Ended(signal.SIGKILL)
    head.start(6)
    head.output(6, "1 2\n")


def test_a_worker_that_is_to_be_revoked_is_killed_and_the_other_goes_on(meet) -> None:
    head = meet().begin(SLEEPS)
    head.start(0, 1)
    for worker in (0, 1):
        head.output(worker, "up\n")
    head.link.tell(messages.Kill(1))
    assert head.end_of(1) == messages.Ended(signal.SIGKILL)
    head.link.tell(messages.Kill(0))
    assert head.end_of(0) == messages.Ended(signal.SIGKILL)


def test_a_wrapper_that_dies_before_its_first_word_is_told_of(meet) -> None:
    """Nobody else knows it; the head would wait for its worker for ever."""
    head = meet().begin("")
    head.start(1, LD_PRELOAD="", PYTHONHOME="/nonexistent")
    assert head.end_of(1) == messages.Vanished()


def test_a_worker_that_does_not_die_is_given_up_when_the_head_says_so(meet) -> None:
    head = meet().begin(SLEEPS)
    head.start(1)
    head.output(1, "up\n")
    (wrapper,) = [p for p in descendants(head.agent.pid) if is_wrapper(p)]
    os.kill(wrapper, signal.SIGSTOP)
    head.link.tell(messages.Kill(1))
    head.link.tell(messages.Forsake(1))
    assert head.end_of(1) == messages.Vanished()


def test_all_are_killed_at_the_end_and_it_goes_when_it_may(meet, ended) -> None:
    head = meet().begin(SLEEPS)
    head.start(0, 1)
    for worker in (0, 1):
        head.output(worker, "up\n")
    below = descendants(head.agent.pid)
    assert len(below) == 4
    head.link.tell(messages.End())
    assert {head.end_of(worker) for worker in (0, 1)} == {messages.Cleared()}
    assert head.agent.poll() is None
    head.link.tell(messages.Leave())
    assert head.wait() == 0
    assert all(ended(pid) for pid in below)
    assert not head.folders()
    assert head.said == ""


def test_a_death_elsewhere_is_on_the_board_of_its_workers(meet) -> None:
    head = meet().begin(
        "import time\n"
        "from spotmpi.launcher_channel import LauncherChannel\n"
        "from spotmpi.settings import Settings\n"
        "channel = LauncherChannel.open(Settings.from_environ())\n"
        "print('up', flush=True)\n"
        "while (at := channel.death_of(7)) is None: pass\n"
        "print(0 <= time.monotonic() - at - 100 < 60, flush=True)\n"
    )
    head.start(0)
    head.output(0, "up\n")
    head.link.tell(messages.Died(7, 100.0, None))
    head.output(0, "up\nTrue\n")


def test_why_a_worker_is_gone_is_on_the_board_of_the_others(meet) -> None:
    head = meet().begin(
        "from spotmpi.launcher_channel import LauncherChannel\n"
        "from spotmpi.settings import Settings\n"
        "channel = LauncherChannel.open(Settings.from_environ())\n"
        "print('up', flush=True)\n"
        "while (cause := channel.cause_of(7)) is None: pass\n"
        "print(*cause, flush=True)\n"
    )
    head.start(0)
    head.output(0, "up\n")
    head.link.tell(messages.Explained(7, Cause("silent", "for 203 ms")))
    head.output(0, "up\nsilent for 203 ms\n")


def test_what_a_worker_said_before_it_wrote_comes_before_what_it_wrote(meet) -> None:
    """Else whoever acts on a line may find that the head does not know what led to it."""
    head = meet().begin(
        "from spotmpi.launcher_channel import LauncherChannel\n"
        "from spotmpi.settings import Settings\n"
        "channel = LauncherChannel.open(Settings.from_environ())\n"
        "open('gate').read()\n"
        "channel.tell('begin')\n"
        "channel.tell('ready')\n"
        "print('up', flush=True)\n"
        "open('gate', 'w').close()\n"
        "open('gate').read()\n"
    )
    gate = head.folder / "gate"
    os.mkfifo(gate)
    head.start(0)
    with gate.open("w"):  # the worker is there
        os.kill(head.agent.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, head.agent.pid, os.WSTOPPED)
    gate.read_text()  # it has said and written it all: both lie there
    os.kill(head.agent.pid, signal.SIGCONT)
    head.output(0, "up\n")
    gate.write_text("")
    said, wrote = messages.Passed(0, messages.Ready()), Output(0, 1, b"up\n")
    assert head.came.index(said) < head.came.index(wrote)
    assert head.end_of(0) == messages.Ended(0)


def test_output_waits_where_the_head_asks_for_it(meet) -> None:
    head = meet().begin("print('up', flush=True)\ninput_ = open('gate').read()\nprint('more')\n")
    os.mkfifo(head.folder / "gate")
    head.start(0)
    head.output(0, "up\n")
    head.link.tell(messages.Hold(True))
    head.link.tell(messages.Forsake(5))
    assert head.end_of(5) == messages.Vanished()  # so it has heard that it is to hold
    (head.folder / "gate").write_text("")
    assert head.end_of(0) == messages.Ended(0)
    assert head.wrote[0, 1] == b"up\n"
    head.link.tell(messages.Hold(False))
    head.output(0, "up\nmore\n")


# Its head goes.


@pytest.mark.parametrize("options", [(), ("--near",)])
def test_without_its_head_no_worker_goes_on(meet, ended, options: tuple[str, ...]) -> None:
    head = meet(*options).begin(SLEEPS)
    head.start(0, 1)
    for worker in (0, 1):
        head.output(worker, "up\n")
    below = descendants(head.agent.pid)
    head.link.close()
    assert all(ended(pid) for pid in below)
    assert head.agent.wait(LIMIT) == 1
    assert "the connection was closed" in head.said
    assert not head.folders()


def test_a_head_that_speaks_another_language_is_no_head(meet, ended) -> None:
    head = meet().begin(SLEEPS)
    head.start(0)
    head.output(0, "up\n")
    below = descendants(head.agent.pid)
    head.link.tell(messages.Kill("all"))  # type: ignore[arg-type]
    assert head.wait() == 1
    assert "the head sent what no head sends: kill.worker is 'all', not a whole number" in head.said
    assert all(ended(pid) for pid in below)


def test_an_agent_that_is_killed_takes_its_workers_along(meet, ended) -> None:
    head = meet().begin(SLEEPS)
    head.start(0, 1)
    for worker in (0, 1):
        head.output(worker, "up\n")
    below = descendants(head.agent.pid)
    head.agent.kill()
    assert all(ended(pid) for pid in below)
    assert not head.folders()


# Its host goes.


def test_a_host_that_is_to_be_taken_away_goes_when_its_workers_have_left(meet) -> None:
    head = meet("--notice", "signal").begin(SLEEPS)
    head.start(0)
    head.output(0, "up\n")
    head.agent.send_signal(signal.SIGTERM)
    assert head.hear(messages.Noticed).what == "SIGTERM"
    assert not [one for one in head.told if isinstance(one, messages.Free)]
    head.link.tell(messages.Kill(0))
    head.hear(messages.Free)
    head.link.tell(messages.Leave())
    assert head.wait() == -signal.SIGTERM
    assert "this host is to be taken away" in head.said


def is_wrapper(pid: int) -> bool:
    """Whether a process is a wrapper, and not the worker that it has forked."""
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return (
        b"wrapper.py" in command
        and b"wrapper.py" not in Path(f"/proc/{parent}/cmdline").read_bytes()
    )
