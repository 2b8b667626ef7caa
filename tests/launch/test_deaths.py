"""Whoever of a job is killed, nothing of it stays: no process, no folder, no shared memory."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from spotmpi import job_folder
from tests.patience import NEVER_SILENT

SCRIPTS = Path(__file__).parent / "scripts"
TRAINING, LOADERS = SCRIPTS / "training.py", SCRIPTS / "loaders.py"


def folder_of(wrapper: int) -> Path:
    """The job folder, as a process of the job knows it."""
    environ = Path(f"/proc/{wrapper}/environ").read_bytes().split(b"\0")
    (found,) = (v.partition(b"=")[2] for v in environ if v.startswith(b"SPOTMPI_JOB_DIR="))
    return Path(found.decode())


def loaders(running, workers: int) -> dict[int, list[int]]:
    """Each worker's process id, its wrapper's, and then those of its children."""
    told = running.until(r"children (\d+) ([\d ]+)$", times=workers)
    return {int(line[1]): [int(pid) for pid in line[2].split()] for line in told}


def waiting(start, moment: str):
    """A job whose two workers wait at this moment: it, its wrappers, its workers, its folder."""
    running = start("run", "-n", 2, TRAINING, f"wait:all@{moment}")
    running.until("waits", times=2)
    wrappers = running.wrappers
    workers = [pid for wrapper in wrappers for pid in running.children(wrapper)]
    assert len(workers) == 2
    return running, wrappers, workers, folder_of(wrappers[0])


@pytest.mark.parametrize("moment", ["start", "7", "done"])
@pytest.mark.first("done")
def test_a_killed_launcher_takes_the_job_along(start, ended, moment: str) -> None:
    running, wrappers, workers, folder = waiting(start, moment)
    others = [running.mpirun, running.agent, *running.stand_ins]
    assert folder.is_dir()
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert all(ended(pid) for pid in [*others, *workers, *wrappers])
    assert not folder.exists()


@pytest.mark.matrix
def test_workers_and_launcher_killed_at_once_leave_no_folder(start, ended) -> None:
    running, wrappers, workers, folder = waiting(start, "7")
    agent = running.agent
    for wrapper in wrappers:
        os.kill(wrapper, signal.SIGSTOP)  # it is to hear of both at once
    for pid in (*workers, running.pid):
        os.kill(pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    for wrapper in wrappers:
        with contextlib.suppress(ProcessLookupError):  # the agent may have ended it by now
            os.kill(wrapper, signal.SIGCONT)
    assert all(ended(pid) for pid in [*wrappers, agent])
    assert not folder.exists()


@pytest.mark.parametrize(("moment", "code"), [("start", 71), ("7", 69), ("done", 69)])
@pytest.mark.first("7-69")
def test_a_killed_mpirun_ends_the_job(start, ended, moment: str, code: int) -> None:
    running = start("run", "-n", 2, TRAINING, f"wait:all@{moment}")
    running.until("waits", times=2)
    wrappers = running.wrappers
    os.kill(running.mpirun, signal.SIGKILL)
    assert running.wait() == code
    assert "mpirun was killed (SIGKILL)" in running.output
    assert all(ended(pid) for pid in wrappers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
@pytest.mark.first("SIGKILL")
def test_a_killed_wrapper_is_a_revoked_worker(start, number: signal.Signals) -> None:
    running = start("run", "-n", 3, TRAINING, "wait:1@7")
    running.until("worker 1 waits")
    victim = next(
        wrapper
        for wrapper in running.wrappers
        if b"OMPI_COMM_WORLD_RANK=1" in Path(f"/proc/{wrapper}/environ").read_bytes().split(b"\0")
    )
    os.kill(victim, number)
    assert running.wait() == 0
    assert "worker 1 on" in running.output
    assert "was revoked (SIGKILL); 2 of 3 workers remain" in running.output
    assert running.output.count("recovered\n") == 2
    assert "worker 0 trained with 2" in running.output


@pytest.mark.matrix
def test_when_a_wrapper_is_killed_before_the_start_the_job_starts_again(start) -> None:
    running = start("run", "-n", 2, TRAINING, "wait:all@start")
    running.until("waits", times=2)
    os.kill(running.wrappers[0], signal.SIGKILL)
    running.until("waits", times=4)
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


def test_everybody_killed_at_once_leaves_a_folder_that_the_next_job_removes(start, ended) -> None:
    running, wrappers, workers, folder = waiting(start, "done")
    between = [running.mpirun, running.agent]
    everybody = [running.pid, *between, *running.stand_ins, *wrappers, *workers]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody is to see another die
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):  # who goes with a parent is gone by now
                os.kill(pid, number)
    assert all(ended(pid) for pid in everybody)
    assert folder.exists()
    job_folder.remove_abandoned()
    assert not folder.exists()


@pytest.mark.matrix
def test_children_of_workers_end_with_an_ordinary_job(start, ended) -> None:
    running = start("run", "-n", 2, LOADERS, "end")
    pids = loaders(running, 2)
    assert running.wait() == 0, running.output
    assert all(ended(pid) for of_one in pids.values() for pid in of_one)


@pytest.mark.matrix
def test_children_of_a_revoked_worker_die_and_those_of_others_live(start, ended) -> None:
    running = start("run", "-n", 2, LOADERS, "die")
    pids = loaders(running, 2)
    os.kill(pids[1][0], signal.SIGUSR1)
    running.until("worker 1 on .* was revoked")
    assert all(ended(pid) for pid in pids[1])
    assert all(Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" for pid in pids[0])
    os.kill(pids[0][0], signal.SIGUSR1)
    assert running.wait() == 0, running.output
    assert all(ended(pid) for pid in pids[0])


@pytest.mark.parametrize("victim", ["worker's wrapper", "mpirun", "launcher", "Ctrl-C"])
@pytest.mark.first("mpirun")
def test_children_of_workers_die_with_whoever_is_killed(start, ended, victim: str) -> None:
    running = start("run", "-n", 2, LOADERS, "wait")
    pids = loaders(running, 2)
    match victim:
        case "worker's wrapper":
            os.kill(pids[0][1], signal.SIGKILL)
            os.kill(pids[1][1], signal.SIGKILL)
        case "mpirun":
            os.kill(running.mpirun, signal.SIGKILL)
        case "launcher":
            os.kill(running.pid, signal.SIGKILL)
        case "Ctrl-C":
            os.kill(running.pid, signal.SIGINT)
    code = {"launcher": -9, "Ctrl-C": 130}.get(victim, 69)
    assert running.wait() == code, running.output
    assert all(ended(pid) for of_one in pids.values() for pid in of_one)


@pytest.mark.matrix
def test_the_moment_of_a_death_is_on_the_board(start) -> None:
    running = start("run", "-n", 3, TRAINING, "kill:2@7")
    assert running.wait() == 0
    (took,) = re.findall(r"recovered from .* in ([\d.]+) ms", running.output)
    assert 0 < float(took) < 60_000


def worker_of(running, wrapper: int) -> int:
    """The process id of a wrapper's worker."""
    (pid,) = running.children(wrapper)
    return pid


def state_of(pid: int) -> str:
    """The letter that the kernel has for a process's state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wrapper_of(running, rank: int) -> int:
    """The wrapper of a worker."""
    mark = f"OMPI_COMM_WORLD_RANK={rank}".encode()
    return next(
        wrapper
        for wrapper in running.wrappers
        if mark in Path(f"/proc/{wrapper}/environ").read_bytes().split(b"\0")
    )


def test_a_worker_that_stays_stopped_is_revoked(start) -> None:
    running = start("run", "-n", 3, TRAINING, "wait:1@7")
    running.until("worker 1 waits")
    os.kill(worker_of(running, wrapper_of(running, 1)), signal.SIGSTOP)
    assert running.wait() == 0, running.output
    assert "was revoked (it was stopped for 200 ms); 2 of 3 workers remain" in running.output
    assert "worker 0 trained with 2" in running.output


@pytest.mark.matrix
def test_a_worker_that_is_stopped_for_a_moment_goes_on(start) -> None:
    running = start("run", "-n", 2, *NEVER_SILENT, TRAINING, "wait:1@7")
    running.until("worker 1 waits")
    worker = worker_of(running, wrapper_of(running, 1))
    os.kill(worker, signal.SIGSTOP)
    while state_of(worker) != "T":
        pass
    os.kill(worker, signal.SIGCONT)
    while state_of(worker) == "T":
        pass
    os.kill(worker, signal.SIGTERM)  # it waits for a signal
    assert running.wait() == 0, running.output
    assert "was revoked (SIGTERM)" in running.output
