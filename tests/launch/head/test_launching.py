"""A job whose workers are behind an agent: here on the launcher's own host, without ssh."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
TRAINING = SCRIPTS / "training.py"
TRAINER = SCRIPTS / "trainer.py"


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Two workers on this host, by a hosts file."""
    file = tmp_path / "hosts"
    file.write_text("localhost slots=2\n")
    return file


def descendants(running, of: int) -> list[int]:
    """All processes below one, from the kernel."""
    found = running.children(of)
    for pid in found:
        found += running.children(pid)
    return found


@pytest.mark.matrix
def test_output_comes_back_with_the_worker_s_id(start, hosts: Path) -> None:
    running = start("run", "--hosts", hosts, TRAINING)
    assert running.wait() == 0
    assert "[0] worker 0 trained with 2" in running.output
    assert "[1] worker 1 trained with 2" in running.output


@pytest.mark.matrix
def test_an_exception_ends_the_job_and_is_shown_once(start, hosts: Path) -> None:
    running = start("run", "--hosts", hosts, TRAINING, "raise:1@7")
    assert running.wait() == 1
    assert running.output.count("ValueError: planted in worker 1") == 1
    assert "the script failed on worker 1 on localhost" in running.output
    # (The script itself may see one die while all are being killed: that is no recovery of ours.)
    assert "recovered from the loss" not in running.output


@pytest.mark.parametrize("deed", ["kill", "term"])
@pytest.mark.first("kill")
def test_a_revoked_worker_costs_the_others_nothing(start, hosts: Path, deed: str) -> None:
    running = start("run", "--hosts", hosts, TRAINING, f"{deed}:1@7")
    assert running.wait() == 0, running.output
    assert "worker 1 on localhost was revoked (SIG" in running.output
    assert "[0] worker 0 trained with 1" in running.output


@pytest.mark.matrix
def test_an_agent_that_is_killed_loses_its_workers_and_leaves_nothing(
    start, ended, hosts: Path
) -> None:
    running = start("run", "--hosts", hosts, TRAINING, "wait:all@7")
    running.until("waits", times=2)
    everything = descendants(running, running.pid)
    os.kill(running.agent, signal.SIGKILL)
    assert running.wait() == 69
    assert "worker 0 on localhost was revoked (host localhost was lost: the connection was" in (
        running.output
    )
    assert len(everything) >= 8
    assert all(ended(pid) for pid in everything)


def test_an_agent_that_is_killed_costs_no_more_than_what_is_in_no_checkpoint(start, ended) -> None:
    """The host is there: the job starts again on it."""
    keeps = "--checkpoint", "kept", "--checkpoint-every", 10
    running = start("run", "-n", 2, "--name", "deserted", *keeps, TRAINER, 60, "rest:all@45")
    running.until("checkpoint of step 30 written")
    before = descendants(running, running.agent)
    os.kill(running.agent, signal.SIGKILL)
    running.until("every worker was revoked\n")
    running.until("starting again, from its newest checkpoint")
    running.until("job spotmpi-deserted: 2 workers on 1 host train; resumed from step [34]0")
    assert all(ended(pid) for pid in before)
    assert start("stop", "--now", "--job", "deserted").wait() == 0
    assert running.wait() == 74


@pytest.mark.parametrize("moment", ["start", "7", "done"])
@pytest.mark.first("7")
def test_a_killed_launcher_takes_agents_and_workers_along(
    start, ended, hosts: Path, moment: str
) -> None:
    running = start("run", "--hosts", hosts, TRAINING, f"wait:all@{moment}")
    running.until("waits", times=2)
    everything = descendants(running, running.pid)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert all(ended(pid) for pid in everything)


@pytest.mark.matrix
def test_ctrl_c_ends_everything(start, ended, hosts: Path) -> None:
    running = start("run", "--hosts", hosts, TRAINING, "wait:all@7")
    running.until("waits", times=2)
    everything = descendants(running, running.pid)
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130
    assert all(ended(pid) for pid in everything)


def test_a_stand_in_that_is_killed_revokes_its_worker(start, hosts: Path) -> None:
    running = start("run", "--hosts", hosts, TRAINING, "wait:1@7")
    running.until("waits")
    mpirun = running.mpirun
    victim = next(
        pid
        for pid in running.children(mpirun)
        if b"OMPI_COMM_WORLD_RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    os.kill(victim, signal.SIGKILL)
    assert running.wait() == 0, running.output
    assert "worker 1 on localhost was revoked (SIGKILL)" in running.output
    assert "[0] worker 0 trained with 1" in running.output


def test_a_host_that_cannot_be_reached_is_named_and_the_rest_begins(start, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\nno-such-host.invalid slots=3\n")
    running = start("run", "--hosts", "hosts", TRAINING)
    assert running.wait() == 0
    assert "no-such-host.invalid cannot be reached by ssh" in running.output
    assert "starting with 2 of 5 workers" in running.output


def test_an_interpreter_that_is_not_there_is_named(start, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost python=/nonexistent\n")
    running = start("run", "--hosts", "hosts", TRAINING)
    assert running.wait() == 71
    assert "localhost: /nonexistent cannot be run (No such file or directory)" in running.output


@pytest.mark.matrix
def test_too_few_hosts_start_nothing(start, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost\nother python=/nonexistent slots=2\n")
    running = start(
        "run", "--hosts", "hosts", "--min-workers", 2, "--checkpoint", "checkpoints", TRAINING
    )
    assert running.wait() == 71
    assert "of 3 workers only 1 can be started, and --min-workers asks for 2" in running.output


@pytest.mark.parametrize("arguments", [("-n", "2", "--hosts", "hosts"), ()])
def test_workers_are_either_here_or_on_hosts(start, arguments: tuple[str, ...]) -> None:
    running = start("run", *arguments, TRAINING)
    assert running.wait() == 2
    assert "give either -n N, for workers on this host, or --hosts FILE" in running.output


def test_an_option_that_would_do_nothing_is_refused(start) -> None:
    running = start("run", "-n", 2, "--token-file", "token", TRAINING)
    assert running.wait() == 2
    assert "--token-file is for agents that come by themselves" in running.output


def cmdline(pid: int) -> bytes:
    """The words of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()
