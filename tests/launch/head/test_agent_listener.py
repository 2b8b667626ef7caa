"""Agents that come by themselves, and everybody else who knocks at the same port."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch import job_token
from spotmpi.launch.auth import NONCE_BYTES, Role, Seal
from spotmpi.launch.head.agent_listener import Refusals
from tests.running import Running

TRAINING = Path(__file__).parents[1] / "scripts" / "training.py"


class Gate:
    """A job that waits for agents, and its port."""

    def __init__(
        self,
        start: Callable[..., Running],
        stack: contextlib.ExitStack,
        folder: Path,
        *arguments: object,
    ) -> None:
        self._stack = stack
        self.folder = folder
        self.token = folder / "token"
        self.running = start(
            *("run", "--listen", "127.0.0.1:0", "--token-file", self.token, "-n", 2),
            *(TRAINING, *arguments),
        )
        (told,) = self.running.until(r"waiting for 2 workers at 127\.0\.0\.1:(\d+)")
        self.port = int(told[1])

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """A connection to the port, from an address of this host; closed when the test ends."""
        link = socket.create_connection(("127.0.0.1", self.port), 30, (source, 0))
        return self._stack.enter_context(link)


@pytest.fixture
def gate(start, tmp_path: Path) -> Iterator[Callable[..., Gate]]:
    """``gate()`` starts a job that waits for two workers."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: Gate(start, stack, tmp_path, *arguments)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """``agent(gate)`` starts an agent by hand."""
    started: list[Running] = []

    def begin(gate: Gate, *options: object, token: Path | None = None) -> Running:
        command = [sys.executable, "-m", "spotmpi", "agent", "--head", f"127.0.0.1:{gate.port}"]
        command += ["--token-file", str(token or gate.token), *map(str, options)]
        started.append(Running(command, tmp_path))
        return started[-1]

    yield begin
    for running in started:
        running.close()


def test_agents_that_know_the_token_bring_their_workers(gate, agent) -> None:
    there = gate()
    assert there.token.stat().st_mode & 0o777 == 0o600
    one, other = (agent(there, "--name", name) for name in ("a", "b"))
    assert there.running.wait() == 0, there.running.output
    assert "[0] worker 0 trained with 2" in there.running.output
    assert (one.wait(), other.wait()) == (0, 0)


def test_an_agent_that_is_killed_is_a_lost_host(gate, agent) -> None:
    there = gate("wait:1@7")
    agent(there, "--name", "a")
    there.running.until("a is here: 1 of 2 workers")
    other = agent(there, "--name", "b")
    there.running.until(r"\[1\] worker 1 waits")
    os.kill(other.pid, signal.SIGKILL)
    assert there.running.wait() == 0, there.running.output
    assert "worker 1 on b was revoked (host b was lost: " in there.running.output
    assert "[0] worker 0 trained with 1" in there.running.output


def test_an_agent_that_is_told_to_end_takes_its_workers_along(gate, agent) -> None:
    there = gate("wait:1@7")
    agent(there, "--name", "a")
    there.running.until("a is here: 1 of 2 workers")
    other = agent(there, "--name", "b")
    there.running.until(r"\[1\] worker 1 waits")
    below = other.children(other.pid)
    assert below
    os.kill(other.pid, signal.SIGTERM)
    assert other.wait() == -signal.SIGTERM
    assert "spotmpi agent on b: it was told to end (SIGTERM)" in other.output
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert there.running.wait() == 0, there.running.output
    assert "[0] worker 0 trained with 1" in there.running.output


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 5000, b"spotmpi1" + bytes(NONCE_BYTES - 1)],
    ids=["nothing", "http", "zeros", "half"],
)
@pytest.mark.first("zeros", "half")
def test_a_stranger_does_no_harm_and_learns_nothing(gate, agent, said: bytes) -> None:
    there = gate()
    stranger = there.connect()
    stranger.sendall(said)
    if not said.startswith(b"spotmpi1") and said:
        there.running.until(r"refused a connection from 127\.0\.0\.1: it does not speak")
        assert stranger.recv(100) == b""
    for name in ("a", "b"):  # while it still hangs there
        agent(there, "--name", name)
    assert there.running.wait() == 0, there.running.output


def test_a_replayed_conversation_is_refused(gate) -> None:
    there = gate()
    seal = Seal(
        Role.AGENT, bytes.fromhex(there.token.read_text()), secrets.token_bytes(NONCE_BYTES)
    )
    genuine = there.connect()
    hello = seal.greeting()
    genuine.sendall(hello)
    proof, _ = seal.feed(genuine.recv(1000))
    replay = there.connect()
    replay.sendall(hello + proof)
    there.running.until("refused a connection from 127.0.0.1: it does not know the job's token")


def test_another_token_is_refused_by_both_sides(gate, agent, tmp_path: Path) -> None:
    there = gate()
    wrong = tmp_path / "wrong"
    wrong.write_text(secrets.token_hex(32))
    wrong.chmod(0o600)
    stranger = agent(there, token=wrong)
    stranger.until("the head has another token: --token-file must be a copy of .*; trying again")
    there.running.until(
        "refused a connection from 127.0.0.1: it closed .*: its --token-file may be of another job"
    )


def test_many_who_fail_are_said_in_few_lines_and_keep_nobody_out(gate, agent) -> None:
    there = gate()
    for _ in range(50):
        with there.connect() as link:
            link.sendall(b"x" * 100)
            with contextlib.suppress(ConnectionResetError):  # closed before it was read: as good
                assert link.recv(10) == b""
    for name in ("a", "b"):
        agent(there, "--name", name)
    assert there.running.wait() == 0, there.running.output
    assert len(re.findall("refused", there.running.output)) == 1


@pytest.mark.matrix
def test_idle_connections_keep_no_agent_out(gate, agent) -> None:
    """Nor do many more than are listened to at a time, from many addresses, that come again."""
    there = gate("wait:1@7")  # so that the port is there as long as somebody connects
    for number in range(200):
        there.connect(f"127.0.2.{number % 50}")
    for _ in range(70):
        there.connect()
    for name in ("a", "b"):
        last = agent(there, "--name", name)
        for number in range(100):
            there.connect(f"127.0.3.{number % 50}")
        there.running.until(f"{name} is here")
    there.running.until(r"\[1\] worker 1 waits")
    there.connect()  # others may come as long as the job runs
    os.kill(last.pid, signal.SIGKILL)
    assert there.running.wait() == 0, there.running.output


class Refused:
    """Refusals, and a clock."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refusals = Refusals(self.lines.append)
        self.now = 100.0

    def add(self, source: str, times: int = 1) -> None:
        for _ in range(times):
            self.refusals.add(source, "no token", self.now)


def test_refusals_are_said_once_in_a_while_with_their_number() -> None:
    refused = Refused()
    refused.add("10.0.0.1")
    assert refused.lines == ["refused a connection from 10.0.0.1: no token"]
    for last in range(1, 7):
        refused.add(f"10.0.0.{last}", last)
    refused.now += 29
    refused.refusals.tend(refused.now)
    assert len(refused.lines) == 1
    refused.now += 1
    refused.refusals.tend(refused.now)
    (line,) = refused.lines[1:]
    assert line.startswith(
        "refused 21 more connections in 30 s (6 from 10.0.0.6, 5 from 10.0.0.5, "
    )
    assert line.endswith("4 from 10.0.0.4, 6 from elsewhere); the last one: no token")
    refused.now += 100
    refused.add("10.0.0.9")
    assert refused.lines[2:] == ["refused a connection from 10.0.0.9: no token"]


def test_no_more_addresses_are_remembered_than_that() -> None:
    refused = Refused()
    for number in range(5000):
        refused.add(f"10.0.{number // 256}.{number % 256}")
    assert len(refused.refusals._unsaid) <= 1025
    refused.now += 60
    refused.refusals.tend(refused.now)
    assert refused.lines[1].startswith("refused 4999 more connections in 60 s (3975 from other")


def test_a_token_that_others_may_read_is_not_used(start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o644)
    running = start("run", "--listen", "127.0.0.1:0", "--token-file", token, "-n", 2, TRAINING)
    assert running.wait() == 2
    assert "others may read it" in running.output


def test_a_token_of_another_user_is_not_used_and_no_chmod_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    assert job_token.of_file(token)
    others = [*os.stat(token)[:4], 4712, *os.stat(token)[5:]]
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(others))
    with pytest.raises(UsageError, match="belongs to user 4712, who could run anything as you"):
        job_token.of_file(token)


def test_a_token_that_may_not_be_read_is_nobodys_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match=r"Permission denied; name a file of your own"):
        job_token.of_file(token)


def test_a_name_that_is_taken_gets_a_number(gate, agent) -> None:
    there = gate("kill:1@7")
    agent(there, "--name", "twin")
    agent(there, "--name", "twin")
    assert there.running.wait() == 0, there.running.output
    assert "worker 1 on twin#2 was revoked" in there.running.output
