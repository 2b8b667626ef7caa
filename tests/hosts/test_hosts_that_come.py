"""Hosts come up late, come back, are asked for, or wait as spares: all of them join."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.patience import FOUND_SILENT

WORK = 60
"""Times that each gradient is computed: others have time to come."""


def test_a_host_that_was_cut_off_joins_again_when_the_split_heals(train) -> None:
    training = train(3, *FOUND_SILENT, of=("h1", "h2", "h3"), work=WORK).until_step(20)
    for lost, back in ((1, 3), (3, 4)):
        training.network.link("h2", "down")
        training.job.until(f"worker {lost} on h2 was revoked")
        training.network.link("h2", "up")
        training.job.until(f"worker {back} on h2 has joined")
    training.check(0, 2, 4)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("silent", marks=pytest.mark.promise("a newcomer's host that is cut off")),
        "killed",
    ],
)
def test_a_host_that_came_later_and_is_lost_for_good_costs_its_workers_only(
    train, fault: str
) -> None:
    """No packet of it ever comes again: no reset tells the others, as it would if it came back."""
    limit = FOUND_SILENT if fault == "silent" else ()
    training = train(3, *limit, "--no-replace", of=("h1", "h2"), work=WORK).until_step(20)
    assert training.command("grow", "--host", "h3").wait() == 0
    training.job.until("worker 2 on h3 has joined")
    if fault == "silent":
        training.network.link("h3", "down")
    else:
        for worker in training.network.workers("h3"):
            os.kill(worker, signal.SIGKILL)
    training.job.until("worker 2 on h3 was revoked")
    training.job.until("recovered from the loss of worker 2")
    training.check(0, 1)


def test_hosts_of_all_kinds_that_fall_silent_at_once_cost_their_workers_only(train) -> None:
    training = train(5, *FOUND_SILENT, of=("h1", "h2", "h3"), work=WORK).until_step(20)
    for number, name in enumerate(("h4", "h5"), start=3):
        assert training.command("grow", "--host", name).wait() == 0
        training.job.until(f"worker {number} on {name} has joined")
    for name in ("h2", "h3", "h5"):
        training.network.link(name, "down")
    training.job.until("worker [124] on h. was revoked", times=3)
    training.check(0, 3)


def test_a_host_is_lost_while_mpirun_does_not_answer(train) -> None:
    training = train(3, *FOUND_SILENT, of=("h1", "h2", "h3"), work=WORK).until_step(20)
    mpirun = training.job.started("prterun")
    os.kill(mpirun, signal.SIGSTOP)
    try:
        training.network.link("h3", "down")
        training.job.until("recovered from the loss of worker 2")
    finally:
        os.kill(mpirun, signal.SIGCONT)
    training.check(0, 1)


def test_a_host_is_asked_for_while_others_train_and_lost_while_it_learns(train) -> None:
    training = train(3, of=("h1", "h2"), work=WORK).until_step(20)
    asked = training.command("grow", "--host", "h3", "--slots", 2)
    assert asked.wait() == 0, asked.output
    assert "h3 is asked for 2 workers" in asked.output
    training.job.until("worker 2 on h3 was admitted")
    training.network.kill("h3")
    training.job.until("worker 2 on h3 was revoked|worker 2 on h3 did not join")
    training.check(0, 1)


def test_a_newcomer_that_does_not_reach_one_of_the_others_is_let_go(train) -> None:
    training = train(3, of=("h1", "h2"), work=WORK).until_step(20)
    training.network.rift("h1", "h3")
    assert training.command("grow", "--host", "h3").wait() == 0
    training.job.until("host h3 does not reach h1, though the head does")
    training.check(0, 1)


def test_a_host_that_is_added_to_the_file_joins(train) -> None:
    training = train(3, of=("h1", "h2"), work=WORK).until_step(20)
    training.network.hosts_file("h1", "h2", "h3")
    training.job.until("hosts was read again; asked for 1 worker: h3")
    training.job.until("worker 2 on h3 has joined")
    training.check(0, 1, 2)


def test_workers_that_are_killed_alone_are_replaced_on_their_hosts(train) -> None:
    training = train(2, of=("h1", "h2"), work=WORK).until_step(20)
    for lost, host, comes in ((0, "h1", 2), (2, "h1", 3), (1, "h2", 4)):
        (worker,) = training.network.workers(host)
        os.kill(worker, signal.SIGKILL)
        training.job.until(f"worker {comes} on {host} starts in place of worker {lost}")
        training.job.until(f"worker {comes} on {host} has joined")
        training.go_on()
    training.check(3, 4)


def test_one_worker_is_killed_and_then_its_whole_host(train) -> None:
    """What was to be started there is not: the host comes back with workers of its own."""
    training = train(3, of=("h1", "h2", "h3"), slots=2, work=WORK)
    training.until_step(20)
    os.kill(min(training.network.workers("h2")), signal.SIGKILL)
    training.network.kill("h2")
    training.job.until("worker [23] on h2 was revoked", times=2)
    training.network.start("h2")
    training.job.until("worker [67] on h2 has joined", times=2)
    training.check(0, 1, 4, 5, 6, 7)
    assert "in place of" not in training.job.output


def test_a_spare_waits_until_a_host_is_lost(train) -> None:
    training = train(3, "--spares", 1, of=("h1", "h2", "h3"), work=WORK).until_step(100)
    assert "h3" not in training.job.output
    training.network.kill("h1")
    training.job.until("worker 2 on h3 has joined")
    training.check(1, 2)


def test_a_notice_and_then_death_before_the_boundary(train) -> None:
    training = train(3, "--notice", "signal", of=("h1", "h2", "h3"), work=WORK).until_step(20)
    for agent in training.network.processes("h2", "--pipe"):
        os.kill(agent, signal.SIGUSR1)
    training.network.kill("h2")
    training.check(0, 2)


def test_with_keep_alive_the_job_waits_for_hosts_and_goes_on(train, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = ("--name", "kept", "--keep-alive", "--checkpoint", kept, "--checkpoint-every", 20)
    training = train(2, *options, hurried=True, of=("h1", "h2"), work=WORK).until_step(50)
    for name in ("h1", "h2"):
        training.network.link(name, "down")
    watch = training.command("status", "--watch", "--job", "kept")
    training.job.until("waiting for hosts, to go on from its newest checkpoint")
    watch.until("workers     none: it waits for hosts")
    for name in ("h1", "h2"):
        training.network.link(name, "up")
    while '"event":"resume"' not in training.trace.read_text():
        assert training.job.alive, training.job.wait()
    watch.until("workers     2: 2 training", times=2)
    training.go_on()  # past what the checkpoint had
    training.check(0, 1)
    assert watch.wait() == 0
    assert "ended       code 0" in watch.output
