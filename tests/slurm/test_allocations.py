"""Trainings on the nodes of a Slurm job, some of which are lost."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Callable

import pytest

from tests import learning
from tests.patience import FOUND_SILENT
from tests.running import LIMIT
from tests.slurm.cluster import Cluster
from tests.slurm.training import (
    JOBS,
    PYTHON,
    SCRIPT,
    TRACED,
    check,
    nothing_left_on,
    steps,
    until_step,
)

Clusters = Callable[..., Cluster]
ALONE = """
import numpy, spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD
with spotmpi.Trainer({"w": numpy.zeros(1)}, optimizer=SGD(lr=0.1), strategy=SSGD()):
    print("it trains")
"""
RUN = (sys.executable, "-m", "spotmpi", "run", *TRACED, SCRIPT, "--passes")


@pytest.mark.promise("a Slurm allocation")
def test_a_job_trains_with_a_worker_for_each_task(cluster: Clusters) -> None:
    slurm = cluster(3)
    words = ("--nodes=3", "--ntasks-per-node=2", JOBS / "allocation.sbatch")
    job = slurm.submit(*words, *TRACED, SCRIPT, "--passes", 2, environ=PYTHON)
    slurm.await_job(job, "COMPLETED")
    check(slurm, slurm.output(job), 2, {0, 1, 2, 3, 4, 5})
    slurm.await_idle("h1", "h2", "h3")
    nothing_left_on(slurm, "h1", "h2", "h3")


def test_plain_srun_is_told_how_to_train_together(cluster: Clusters) -> None:
    """Each of its tasks would train a whole model, into one folder of checkpoints."""
    slurm = cluster(2)
    running = slurm.start("srun", "--ntasks=2", sys.executable, "-c", ALONE)
    assert running.wait() == 1
    assert running.output.count("SLURM_STEP_NUM_TASKS=2 says that this is one of several") == 2
    assert "it trains" not in running.output


def test_the_launcher_may_be_on_the_login_node(cluster: Clusters) -> None:
    slurm = cluster(2)
    running = slurm.start("salloc", "--no-kill", "--nodes=2", "--ntasks=3", *RUN, 2)
    assert running.wait() == 0, running.output
    check(slurm, running.output, 2, {0, 1, 2})


def test_a_node_that_is_lost_costs_its_workers_only(cluster: Clusters) -> None:
    slurm = cluster(3)
    words = ("--nodes=3", "--ntasks-per-node=2", JOBS / "allocation.sbatch")
    job = slurm.submit(*words, *TRACED, *FOUND_SILENT, SCRIPT, "--passes", 30, environ=PYTHON)
    until_step(slurm, 20)
    slurm.lose("h2")
    slurm.await_job(job, "COMPLETING", "COMPLETED")  # Slurm waits for the dead node's word
    assert slurm.job(job, "ExitCode") == "0:0", slurm.output(job)
    check(slurm, slurm.output(job), 30, {0, 1, 4, 5})
    # srun says nothing of it for half a minute.
    assert "worker 2 on h2 was revoked (host h2 was silent for " in slurm.output(job)
    nothing_left_on(slurm, "h1", "h3")


def test_a_worker_that_is_killed_alone_is_replaced_on_its_node(cluster: Clusters) -> None:
    slurm = cluster(2)
    run = (sys.executable, "-m", "spotmpi", "run", *TRACED, learning.SCRIPT, 40)
    running = slurm.start("salloc", "--no-kill", "--nodes=2", "--ntasks=2", *run)
    until_step(slurm, 20)
    (worker,) = slurm.network.workers("h2")
    os.kill(worker, signal.SIGKILL)
    running.until("worker 2 on h2 starts in place of worker 1")
    running.until("worker 2 on h2 has joined")
    (slurm.folder / "enough").touch()
    assert running.wait() == 0, running.output
    (passes,) = set(re.findall(r"FINAL .* (\d+)$", running.output, re.MULTILINE))
    check(slurm, running.output, int(passes), {0, 2})
    nothing_left_on(slurm, "h1", "h2")


def test_slurm_s_own_discovery_of_the_loss_ends_nothing(cluster: Clusters) -> None:
    slurm = cluster(2)
    words = ("--nodes=2", "--ntasks-per-node=1", JOBS / "allocation.sbatch")
    job = slurm.submit(*words, *TRACED, *FOUND_SILENT, SCRIPT, "--passes", 10_000, environ=PYTHON)
    until_step(slurm, 20)
    slurm.lose("h2")
    slurm.until(lambda: slurm.node("h2").startswith("down"), "Slurm has not missed the node")
    until_step(slurm, steps(slurm) + 100)
    assert slurm.job(job, "JobState") == "RUNNING", slurm.output(job)


def test_a_node_that_is_down_before_training_is_named(cluster: Clusters) -> None:
    slurm = cluster(2)
    words = ("salloc", "--no-kill", "--nodes=2", "--ntasks=2", "sh", "-c")
    begin = slurm.folder / "begin"
    os.mkfifo(begin)
    running = slurm.start(*words, 'echo granted; read _ <begin; exec "$@"', "sh", *RUN, 1)
    running.until("^granted")
    slurm.lose("h2")
    begin.write_text("now\n")
    assert running.wait() == 0, running.output
    assert "no agent could be started on h2 by srun (srun: error: Task launch" in running.output
    assert "starting with 1 of 2 workers" in running.output
    check(slurm, running.output, 1, {0})


def test_a_killed_launcher_leaves_nothing_on_the_nodes(cluster: Clusters) -> None:
    slurm = cluster(2)
    running = slurm.start("salloc", "--no-kill", "--nodes=2", "--ntasks=2", *RUN, 1000)
    until_step(slurm, 20)
    here, elsewhere = (slurm.network.processes(name, "spotmpi") for name in ("h1", "h2"))
    assert min(len(here), len(elsewhere)) >= 3, "an agent, a wrapper and a worker on each node"
    watched = [os.pidfd_open(pid) for pid in (*here, *elsewhere)]
    (launcher,) = running.children(running.pid)
    os.kill(launcher, signal.SIGKILL)
    for descriptor in watched:
        assert select.select([descriptor], [], [], LIMIT)[0], "a process outlived its launcher"
        os.close(descriptor)
    running.wait()  # salloc calls a killed command a success
    nothing_left_on(slurm, "h1", "h2")


def test_a_launcher_for_each_task_is_refused(cluster: Clusters) -> None:
    slurm = cluster(2)
    running = slurm.start("srun", "--nodes=2", "--ntasks=2", *RUN, 1)
    assert running.wait() == 2
    assert "srun has started this command 2 times; start it once, without srun" in running.output
