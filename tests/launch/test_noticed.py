"""Jobs whose hosts are to be taken away: it is heard, and the user is told."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi.testing import EC2, GCE, Azure
from tests.running import Running

TRAINING = Path(__file__).parent / "scripts" / "training.py"
HELD = (TRAINING, "wait:1@7")
"""One of two workers waits for ever: the job lives for as long as the test wants."""


def watchers(running: Running) -> list[int]:
    """The processes below a command that ask a cloud."""
    found = running.children(running.pid)
    for pid in found:
        found += running.children(pid)
    return [pid for pid in found if b"--provider" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def release(running: Running, line: str) -> None:
    """Read on until the user is told, then end the job."""
    running.until(line)
    assert running.alive
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130, running.output


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Two workers on this host, by a hosts file."""
    file = tmp_path / "hosts"
    file.write_text("localhost slots=2\n")
    return file


def test_a_job_on_one_host_hears_its_cloud(start, ended) -> None:
    with EC2() as cloud:
        cloud.preempt(in_seconds=100)
        running = start("run", *cloud.options, "-n", 2, *HELD)
        running.until("waits")
        (watcher,) = watchers(running)
        release(
            running,
            r"^spotmpi: this host is to be taken away in \d+ s "
            r"\(EC2 spot instance action: terminate\)$",
        )
        assert ended(watcher)


def test_advice_is_told_as_such_and_the_job_ends_as_ever(start) -> None:
    with EC2() as cloud:
        cloud.recommend()
        running = start("run", *cloud.options, "-n", 2, *HELD)
        release(running, "may be taken away before long .EC2 rebalance recommendation.$")


@pytest.mark.matrix
def test_a_host_s_agent_tells_the_head(start, hosts: Path) -> None:
    with GCE() as cloud:
        running = start("run", *cloud.options, "--hosts", hosts, *HELD)
        running.until("waits")
        cloud.preempt()
        # the head's own host is the same one
        running.until(r"^spotmpi: this host is to be taken away in \d+ s \(GCE preemption\)$")
        release(
            running, r"^spotmpi: host localhost is to be taken away in \d+ s \(GCE preemption\)"
        )


@pytest.mark.matrix
def test_a_job_without_a_notice_leaves_no_watcher(start, ended, hosts: Path) -> None:
    with GCE() as cloud:
        running = start("run", *cloud.options, "--hosts", hosts, TRAINING, "wait:all@7")
        running.until("waits", times=2)
        found = watchers(running)
        assert len(found) == 2
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        assert all(ended(pid) for pid in found)


@pytest.mark.matrix
def test_a_watcher_that_is_killed_costs_the_job_nothing(start) -> None:
    with GCE() as cloud:
        running = start("run", *cloud.options, "-n", 2, *HELD)
        running.until("waits")
        (watcher,) = watchers(running)
        os.kill(watcher, signal.SIGKILL)
        release(running, r"^spotmpi: the notice watcher ended \(SIGKILL\)")
        assert running.output.count("the notice watcher") == 1


@pytest.mark.matrix
def test_a_watcher_that_is_killed_on_a_host_is_said_by_its_name(start, hosts: Path) -> None:
    with GCE() as cloud:
        running = start("run", *cloud.options, "--hosts", hosts, *HELD)
        running.until("waits")
        own = running.children(running.pid)
        (watcher,) = [pid for pid in watchers(running) if pid not in own]
        os.kill(watcher, signal.SIGKILL)
        release(running, r"^spotmpi: localhost: the notice watcher ended \(SIGKILL\)")


@pytest.mark.matrix
def test_a_service_that_hangs_delays_nothing(start, hosts: Path) -> None:
    with Azure() as cloud:
        cloud.misbehave("hanging")
        running = start("run", *cloud.options, "--hosts", hosts, TRAINING)
        assert running.wait() == 0, running.output
        assert "[0] worker 0 trained with 2" in running.output


@pytest.mark.parametrize("source", ["auto", "signal"])
@pytest.mark.first("auto")
def test_sigusr1_is_a_notice_to_the_launcher(start, source: str) -> None:
    running = start("run", "--notice", source, "-n", 2, *HELD)
    running.until("waits")
    os.kill(running.pid, signal.SIGUSR1)
    release(running, r"^spotmpi: this host is to be taken away soon \(SIGUSR1\)$")


@pytest.mark.parametrize("source", ["auto", "none", "signal"])
@pytest.mark.first("signal")
def test_sigterm_ends_the_launcher_unless_it_was_said_to_be_a_notice(start, source: str) -> None:
    running = start("run", "--notice", source, "-n", 2, *HELD)
    running.until("waits")
    os.kill(running.pid, signal.SIGTERM)
    if source == "signal":
        running.until(r"this host is to be taken away soon \(SIGTERM\)$")
        assert running.alive
        os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 143
    assert running.output.count("taken away") == (source == "signal")


@pytest.fixture
def agent(tmp_path: Path, start) -> Iterator[Callable[..., tuple[Running, Running]]]:
    """``agent("--notice", "auto")`` is a job and its only agent, with its two workers at work."""
    started: list[Running] = []

    def begin(*options: str, script: tuple[object, ...] = HELD) -> tuple[Running, Running]:
        token = tmp_path / "token"
        job = start(
            *("run", "--listen", "127.0.0.1:0", "--token-file", token, "-n", 2),
            *script,
        )
        (told,) = job.until(r"waiting for 2 workers at (127\.0\.0\.1:\d+)")
        command = [sys.executable, "-m", "spotmpi", "agent", "--head", told[1], "--slots", "2"]
        command += ["--name", "h2", "--token-file", str(token), *options]
        started.append(Running(command, tmp_path))
        job.until(r"worker \d waits")
        return job, started[-1]

    yield begin
    for running in started:
        running.close()


@pytest.mark.parametrize("source", ["auto", "signal"])
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.matrix
def test_a_signal_to_an_agent_is_a_notice(agent, source: str, number: signal.Signals) -> None:
    job, there = agent("--notice", source)
    os.kill(there.pid, number)
    job.until(rf"^spotmpi: host h2 is to be taken away soon \({number.name}\)$")
    assert there.alive
    os.kill(there.pid, signal.SIGTERM)
    if number == signal.SIGTERM:  # its second
        assert there.wait() == -signal.SIGTERM
        assert "spotmpi agent on h2: it was told to end (SIGTERM)" in there.output
        assert job.wait() == 69
    else:
        assert there.alive
        release(job, "waits")


@pytest.mark.matrix
def test_without_notices_sigterm_ends_an_agent_as_ever(agent) -> None:
    job, there = agent("--notice", "none")
    os.kill(there.pid, signal.SIGTERM)
    assert there.wait() == -signal.SIGTERM
    assert job.wait() == 69
    assert "taken away" not in job.output


@pytest.mark.matrix
def test_a_host_that_is_to_be_taken_away_does_not_come_again(agent) -> None:
    job, there = agent("--notice", "auto")
    os.kill(there.pid, signal.SIGUSR1)
    job.until("host h2 is to be taken away")
    os.kill(job.pid, signal.SIGKILL)
    assert there.wait() == 1
    assert "trying again" not in there.output


@pytest.mark.matrix
def test_azure_may_have_a_host_once_its_last_worker_has_left(agent) -> None:
    with Azure() as cloud:
        job, there = agent(*cloud.options, script=(TRAINING, "wait:all@7"))
        cloud.preempt(in_seconds=30)
        job.until(r"host h2 is to be taken away in \d+ s .Azure preemption.")
        job.until(r"worker \d waits", times=2)
        workers = [
            worker
            for wrapper in there.children(there.pid)
            if b"wrapper.py" in Path(f"/proc/{wrapper}/cmdline").read_bytes()
            for worker in there.children(wrapper)
        ]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        job.until("worker . on h2 was revoked")
        cloud.wait_for_requests(len(cloud.requests) + 2)
        assert cloud.acknowledged == ()
        os.kill(workers[1], signal.SIGKILL)
        assert job.wait() == 69
        there.wait()
        # A poll on the way out may say it again, which the cloud does not mind.
        assert len(set(cloud.acknowledged)) == 1


def test_nonsense_is_refused_by_both_commands(start) -> None:
    for command in (
        ("run", "-n", "2", "--notice", "aws", TRAINING),
        ("agent", "--head", "h:1", "--token-file", "t", "--notice", "aws"),
    ):
        running = start(*command)
        assert running.wait() == 2
        assert "'aws' is no source of notices; give one of auto, ec2, gce" in running.output
