"""Trainings on nodes that Slurm takes away for others, and gives back."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import learning
from tests.running import Running
from tests.slurm.cluster import Cluster
from tests.slurm.training import (
    JOBS,
    PYTHON,
    SCRIPT,
    TRACED,
    check,
    events,
    nothing_left_on,
    resumed,
    steps,
    until_step,
)

Clusters = Callable[..., Cluster]
PASSES = 40
TRAINING = (*TRACED, SCRIPT, "--passes", PASSES)
REQUEUE = ("--nodes=2", "--ntasks-per-node=2", JOBS / "requeue.sbatch", "checkpoints")
HEARING = {**PYTHON, "SPOTMPI_NOTICE": "signal"}
"""For agents that take SIGTERM for a notice, as they do where tests/conftest.py says nothing."""

OTHER = ("--partition=demand", "--exclusive", "--wrap", "hostname")


def go_on(slurm: Cluster, job: str, sign: str, passes: int | None = PASSES) -> None:
    """Wait until the job was queued again, and have it start; it finishes what it had begun, with
    so many passes, or as many as it says."""
    slurm.until(lambda: slurm.job(job, "Restarts") == "1", f"job {job} is not queued again")
    slurm.await_job(job, "PENDING")
    nothing_left_on(slurm, "h1", "h2")
    slurm.start_soon(job)
    if passes is None:
        until_step(slurm, steps(slurm) + 1)  # it has come to where it was
        (slurm.folder / "enough").touch()
    slurm.await_job(job, "COMPLETED", "FAILED")
    output = slurm.output(job)
    assert slurm.job(job, "ExitCode") == "0:0", output
    assert sign in output, output
    if passes is None:
        (said,) = set(re.findall(r"FINAL .* (\d+)$", output, re.MULTILINE))
        passes = int(said)
    check(slurm, output, passes, {0, 1, 2, 3})
    nothing_left_on(slurm, "h1", "h2")


@pytest.mark.parametrize(
    ("notice", "said"),
    [(False, "all workers are to go, or fewer than --min-workers are left"), (True, "a notice")],
    ids=["silent", "notice"],
)
def test_a_preempted_job_stops_with_a_checkpoint_and_goes_on(
    cluster: Clusters, notice: bool, said: str
) -> None:
    slurm = cluster(2, notice=notice)
    # Not over before Slurm has seen to the other job.
    job = slurm.submit(*REQUEUE, *TRACED, learning.SCRIPT, 1, environ=HEARING)
    until_step(slurm, 20)
    other = slurm.submit("--nodes=2", *OTHER)
    slurm.await_job(other, "COMPLETED")
    done = steps(slurm)
    go_on(slurm, job, f"{said}: to be started again", None)
    assert resumed(slurm) == [done]
    assert events(slurm, "recovery") == []


def test_where_its_workers_get_sigterm_too_a_preempted_job_loses_steps_only(
    cluster: Clusters,
) -> None:
    slurm = cluster(2, proctrack="linuxproc")
    job = slurm.submit(*REQUEUE, "--checkpoint-every", 5, *TRAINING, environ=PYTHON)
    until_step(slurm, 20)
    other = slurm.submit("--nodes=2", *OTHER)
    slurm.await_job(other, "COMPLETED")
    go_on(slurm, job, "no worker is left: to be started again")
    (step,) = resumed(slurm)
    assert step >= 15


def test_a_job_with_too_few_workers_asks_to_be_started_again(cluster: Clusters) -> None:
    slurm = cluster(2)
    job = slurm.submit(*REQUEUE, "--min-workers", 3, *TRAINING, environ=PYTHON)
    until_step(slurm, 20)
    for pid in slurm.network.workers("h2"):
        os.kill(pid, signal.SIGKILL)
    go_on(slurm, job, "fewer than --min-workers are left: to be started again")
    (step,) = resumed(slurm)
    assert step >= 20


def test_a_job_that_is_cancelled_is_not_started_again(cluster: Clusters) -> None:
    slurm = cluster(2)
    job = slurm.submit(*REQUEUE, *TRAINING, environ=PYTHON)
    until_step(slurm, 20)
    slurm.run("scancel", job)
    slurm.await_job(job, "CANCELLED")
    slurm.await_idle("h1", "h2")
    assert slurm.job(job, "JobState") == "CANCELLED"
    assert slurm.job(job, "Restarts") == "0"
    nothing_left_on(slurm, "h1", "h2")


def test_a_wrong_script_is_not_started_again(cluster: Clusters) -> None:
    slurm = cluster(1)
    (slurm.folder / "wrong.py").write_text("raise ValueError('planted')\n")
    words = ("--nodes=1", "--ntasks-per-node=1", JOBS / "requeue.sbatch", "checkpoints")
    job = slurm.submit(*words, "wrong.py", environ=PYTHON)
    slurm.await_job(job, "FAILED")
    assert slurm.job(job, "ExitCode") == "1:0"
    assert slurm.job(job, "Restarts") == "0"
    assert "planted" in slurm.output(job)


HEAD = "10.77.0.1:7700"
LEARNER = Path(__file__).parents[1] / "launch" / "scripts" / "learner.py"


def apart(slurm: Cluster, *script: object) -> tuple[Running, str]:
    """A head that stays, and an array of a job for each of three nodes; they train already.

    Returns the head, and the number of the array.
    """
    run = (sys.executable, "-m", "spotmpi", "run", "--listen", HEAD, "--token-file", "token")
    head = slurm.start(*run, "-n", 3, *TRACED, *script)
    head.until("waiting for 3 workers")
    words = ("--array=0-2", JOBS / "worker-array.sbatch", HEAD, "token")
    array = slurm.submit(*words, environ=HEARING)
    until_step(slurm, 20)
    return head, array


def elements(slurm: Cluster, array: str, *states: str) -> list[str]:
    """Wait until an array's jobs are in these states; return their numbers, sorted by state."""

    def shown() -> list[tuple[str, str]]:
        words = ("--noheader", f"--jobs={array}", "--states=all", "--array", "--format=%T %A")
        said = [line.split() for line in slurm.run("squeue", *words).splitlines()]
        return sorted((state, number) for state, number in said)

    slurm.until(
        lambda: [state for state, _ in shown()] == sorted(states),
        f"the jobs of the array are not {states}",
    )
    return [number for _, number in shown()]


@pytest.mark.promise("a preemption")
def test_a_preempted_worker_leaves_without_a_loss_and_comes_back(cluster: Clusters) -> None:
    slurm = cluster(3)
    head, array = apart(slurm, LEARNER, 40)
    other = slurm.submit("--nodes=1", *OTHER)
    (told,) = head.until(r"worker (\d) on (h\d) left before step \d+")
    left = int(told[1])
    slurm.await_job(other, "COMPLETED")
    preempted, *_ = elements(slurm, array, "PENDING", "RUNNING", "RUNNING")
    assert slurm.job(preempted, "Restarts") == "1"
    nothing_left_on(slurm, told[2])
    slurm.start_soon(preempted)
    (joined,) = head.until(r"worker 3 on h\d has joined: it trains from step (\d+) on")
    until_step(slurm, int(joined[1]) + 100)
    (slurm.folder / "enough").touch()
    assert head.wait() == 0, head.output
    (passes,) = set(re.findall(r"FINAL .* (\d+)$", head.output, re.MULTILINE))
    check(slurm, head.output, int(passes), {0, 1, 2, 3} - {left})
    changes = [(change["joined"], change["left"]) for change in events(slurm, "change")]
    assert changes == [([], [left]), ([3], [])]
    assert events(slurm, "recovery") == []
    assert "was revoked" not in head.output
    elements(slurm, array, "COMPLETED", "COMPLETED", "COMPLETED")
    nothing_left_on(slurm, "h1", "h2", "h3")


@pytest.mark.parametrize(
    "site", [{"proctrack": "linuxproc"}, {"grace": 0}], ids=["SIGTERM to workers", "no grace"]
)
def test_a_preempted_worker_that_is_ended_first_is_an_ordinary_loss(
    cluster: Clusters, site: dict[str, str | int]
) -> None:
    slurm = cluster(3, **site)
    passes = 150  # not over before Slurm has seen to the other job
    head, array = apart(slurm, SCRIPT, "--passes", passes)
    other = slurm.submit("--nodes=1", *OTHER)
    assert head.wait() == 0, head.output
    (lost,) = map(int, re.findall(r"worker (\d) on h\d was revoked", head.output))
    check(slurm, head.output, passes, {0, 1, 2} - {lost})
    assert [record["lost"] for record in events(slurm, "recovery")] == [[lost]]
    slurm.await_job(other, "COMPLETED")
    elements(slurm, array, "COMPLETED", "COMPLETED", "PENDING")
    nothing_left_on(slurm, "h1", "h2", "h3")


def test_the_head_may_be_in_a_job_that_submits_and_cancels_the_others(cluster: Clusters) -> None:
    slurm = cluster(3)
    address = slurm.network.address("h1")
    environ = {**PYTHON, "HEAD": f"{address}:7700", "JOB": "-J others -p spot --ntasks-per-node=2"}
    command = shlex.join(map(str, ("bash", JOBS / "head.sh", 2, 3, *TRAINING)))
    words = ("--partition=demand", "--exclusive", "--nodelist=h1", "--wrap", command)
    job = slurm.submit(*words, environ=environ)
    slurm.await_job(job, "COMPLETED", "FAILED")
    assert slurm.job(job, "ExitCode") == "0:0", slurm.output(job)
    check(slurm, slurm.output(job), PASSES, {0, 1, 2, 3})
    slurm.await_idle("h1", "h2", "h3")
    assert slurm.run("squeue", "--noheader", "--name=others", "--states=PD,R") == ""
    assert list(slurm.folder.glob(".spotmpi-token*")) == []
    nothing_left_on(slurm, "h1", "h2", "h3")


def test_a_head_that_is_ended_takes_its_workers_along(cluster: Clusters) -> None:
    slurm = cluster(2)
    environ = {**PYTHON, "HEAD": HEAD}
    head = slurm.start("bash", JOBS / "head.sh", 2, 2, *TRAINING, environ=environ)
    until_step(slurm, 20)
    os.kill(head.pid, signal.SIGTERM)
    assert head.wait() != 0
    slurm.await_idle("h1", "h2")
    assert slurm.run("squeue", "--noheader", "--states=PD,R") == ""
    assert list(slurm.folder.glob(".spotmpi-token*")) == []
    nothing_left_on(slurm, "h1", "h2")
