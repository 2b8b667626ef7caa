"""Workers join a training that goes on, and leave it: the whole way, with real processes."""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spotmpi.trace import records as trace
from tests import learning
from tests.running import Running


class Training:
    """A job that hosts join by themselves, all of them this one. Its limits are over soon."""

    def __init__(self, start: Callable[..., Running], folder: Path, *options: object) -> None:
        self.folder = folder
        self.token, self.trace = folder / "token", folder / "trace.jsonl"
        self.job = start(
            *("run", "--listen", "127.0.0.1:0", "--token-file", self.token, "-n", 2),
            *("--trace", self.trace, *options, learning.SCRIPT, 40),
            command=("-m", "tests.hurried"),
        )
        (told,) = self.job.until(r"waiting for 2 workers at (127\.0\.0\.1:\d+)")
        self.address = told[1]
        self.agents: list[Running] = []

    def host(self, name: str, *options: object) -> Running:
        """A host comes."""
        command = [sys.executable, "-m", "spotmpi", "agent", "--head", self.address]
        command += ["--name", name, "--token-file", str(self.token), *map(str, options)]
        self.agents.append(Running(command, self.folder))
        return self.agents[-1]

    def begin(self) -> Training:
        """With two workers on a host of their own each; return when they train."""
        for name in "ab":
            self.host(name)
            self.job.until(f"{name} is here")
        while learning.steps(self.trace) < 20:
            assert self.job.alive, self.job.wait()
        return self

    def check(self, *survivors: int) -> list[trace.Record]:
        """They have finished, with equal replicas, and every sample counted once in each pass."""
        (self.folder / "enough").touch()
        assert self.job.wait() == 0, self.job.output
        return learning.check(self.job.output, self.trace, survivors)


@pytest.fixture
def training(start, tmp_path: Path) -> Iterator[Training]:
    """A training of two workers."""
    made = Training(start, tmp_path).begin()
    yield made
    for agent in made.agents:
        agent.close()


def wrapper(agent: Running, newcomer: int) -> int:
    """The wrapper of this newcomer and no other, once it is there."""
    while True:
        for pid in agent.children(agent.pid):
            with suppress(OSError):  # one that has just ended
                environ = Path(f"/proc/{pid}/environ").read_text().split("\0")
                if f"SPOTMPI_NEWCOMER={newcomer}" in environ:
                    return pid
        assert agent.alive, agent.wait()


@pytest.mark.matrix
def test_a_host_that_comes_late_trains_with_the_others(training: Training) -> None:
    training.host("c", "--slots", 2)
    training.job.until("worker . on c has joined: it trains from step", times=2)
    records = training.check(0, 1, 2, 3)
    changes = [record for record in records if record["event"] == "change"]
    assert sorted(record["joined"] for record in changes) == [[2], [3]]
    assert [record["hosts"] for record in changes] == [[platform.node()]] * 2
    assert "4 workers" not in training.job.output.rsplit("\n", 2)[-1]
    steps = [record for record in records if record["event"] == "step"]
    assert sorted(steps[-1]["workers"]) == [0, 1, 2, 3]


@pytest.mark.matrix
def test_a_newcomer_that_is_revoked_at_once_is_an_ordinary_loss(training: Training) -> None:
    agent = training.host("c")
    training.job.until("worker 2 on c was admitted")
    os.kill(agent.pid, signal.SIGKILL)
    training.check(0, 1)
    again = re.search("worker 2 on c (was revoked|did not join)", training.job.output)
    assert again, training.job.output


@pytest.mark.matrix
def test_a_newcomer_that_dies_while_it_gets_ready_harms_nobody(training: Training) -> None:
    agent = training.host("c")
    for worker in (2, 3):
        os.kill(wrapper(agent, worker), signal.SIGTERM)
        training.job.until(rf"worker {worker} on c did not join: SIGKILL")
    training.job.until("worker 4 on c has joined")
    training.check(0, 1, 4)


@pytest.mark.matrix
def test_the_loss_of_who_brings_in_a_newcomer_costs_a_second_try(training: Training) -> None:
    training.host("c")
    training.job.started(r"stand_in\.py \S+ 2")
    os.kill(training.agents[0].pid, signal.SIGKILL)
    training.job.until("worker 2 on c did not join")
    training.job.until("worker 3 on c has joined")
    training.check(1, 3)


@pytest.mark.matrix
def test_a_stand_in_that_dies_before_it_says_anything_costs_a_second_try(
    training: Training,
) -> None:
    """MPI waits for it for ever, and so does its sponsor, which trains on."""
    training.host("c")
    os.kill(training.job.started(r"stand_in\.py \S+ 2"), signal.SIGKILL)
    training.job.until("worker 2 on c did not join")
    training.job.until("worker 3 on c has joined")
    training.check(0, 1, 3)


@pytest.mark.matrix
def test_when_mpirun_does_not_answer_and_somebody_waits_all_stop_with_a_checkpoint(
    start, tmp_path: Path
) -> None:
    training = Training(start, tmp_path, "--checkpoint", tmp_path / "kept").begin()
    try:
        os.kill(training.job.started("prterun"), signal.SIGSTOP)
        training.host("c")
        training.job.until("mpirun does not answer any more: nobody can join")
        assert training.job.wait() == 75, training.job.output
        assert "checkpoint of step" in training.job.output
    finally:
        for agent in training.agents:
            agent.close()


@pytest.mark.matrix
def test_join_revoke_and_join_again(training: Training) -> None:
    for number in (2, 3):
        agent = training.host("c")
        training.job.until(f"worker {number} on c has joined")
        os.kill(agent.pid, signal.SIGKILL)
        training.job.until(f"worker {number} on c was revoked")
        agent.wait()
    training.host("c")
    training.job.until("worker 4 on c has joined")
    training.check(0, 1, 4)


def test_a_host_that_is_noticed_leaves_and_the_others_lose_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_NOTICE", "signal")
    agent = training.host("c")
    training.job.until("worker 2 on c has joined")
    os.kill(agent.pid, signal.SIGUSR1)
    training.job.until("worker 2 on c left before step")
    assert agent.wait() == 1
    assert "this host is to be taken away" in agent.output
    records = training.check(0, 1)
    assert not [record for record in records if record["event"] == "recovery"]


@pytest.mark.matrix
def test_an_agent_that_was_told_to_go_and_loses_its_head_says_that_it_was_told(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What starts it again, or not (jobs/slurm), goes by how it ends.
    monkeypatch.setenv("SPOTMPI_NOTICE", "signal")
    agent = training.host("c")
    training.job.until("worker 2 on c has joined")
    os.kill(training.job.pid, signal.SIGSTOP)
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == -signal.SIGTERM
    assert "the head was silent" in agent.output
    for other in training.agents[:2]:
        other.until("the head was silent.*; trying again")  # and has cleared up, unlike if killed
    os.kill(training.job.pid, signal.SIGKILL)
    assert training.job.wait() == -signal.SIGKILL


@pytest.mark.matrix
def test_all_noticed_is_a_checkpoint_and_a_requeue(start, tmp_path: Path) -> None:
    running = start(
        *("run", "--notice", "signal", "-n", 3, "--checkpoint", tmp_path / "kept"),
        *("--trace", tmp_path / "trace.jsonl", learning.SCRIPT, 1),
    )
    while learning.steps(tmp_path / "trace.jsonl") < 20:
        assert running.alive, running.wait()
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 75, running.output
    assert "checkpoint of step" in running.output
