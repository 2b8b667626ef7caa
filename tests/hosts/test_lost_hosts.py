"""Whole hosts vanish from a training over ssh, and it goes on without them."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

import pytest

from spotmpi.trace.records import read
from spotmpi.trace.timeline import timeline
from tests.hosts.training import Training
from tests.patience import FOUND_SILENT, FOUND_SILENT_S
from tests.running import LIMIT


def test_workers_on_three_hosts_train_together(train) -> None:
    training = train(3, slots=2)
    network = training.network
    training.check(0, 1, 2, 3, 4, 5)
    assert "[5] FINAL 5" in training.job.output
    assert all(network.processes(name, "spotmpi agent") == [] for name in network.names)


@pytest.mark.parametrize(
    "victim",
    [pytest.param("h1", marks=pytest.mark.promise("a host that is killed")), "h3"],
)
def test_a_killed_host_costs_its_workers_only(train, victim: str) -> None:
    training = train(3, slots=2)
    network = training.network
    training.until_step(20)
    network.kill(victim)
    training.check(*((2, 3, 4, 5) if victim == "h1" else (0, 1, 2, 3)))
    assert f"host {victim}" in training.job.output
    lost = (0, 1) if victim == "h1" else (4, 5)
    assert training.causes == dict.fromkeys(lost, "reset")


@pytest.mark.parametrize("strategy", ["adpsgd:control=8", "gossip:control=8", "hogwild:control=8"])
@pytest.mark.parametrize("fault", ["killed", "silent"])
def test_workers_that_exchange_models_go_on_without_a_host(
    train, fault: str, strategy: str
) -> None:
    limit = () if fault == "killed" else FOUND_SILENT
    training = train(3, *limit, "--strategy", strategy, hurried=True, slots=2)
    training.until_step(40)
    if fault == "killed":
        training.network.kill("h2")
    else:
        training.network.link("h2", "down")
    training.check(0, 1, 4, 5)


def test_who_comes_to_a_host_shares_the_model_that_its_workers_share(train) -> None:
    training = train(2, "--strategy", "hogwild:control=8", slots=2)
    network = training.network
    training.until_step(40)
    os.kill(min(network.workers("h2")), signal.SIGKILL)
    training.job.until("worker 4 on h2 has joined")
    training.go_on()
    assert training.finish() == 0, training.job.output
    finals = [line.split() for line in training.job.output.splitlines() if "FINAL" in line]
    there = {int(words[2]) for words in finals}
    assert {0, 1, 4} < there, training.job.output
    training.check(*there)


def test_both_who_have_a_shard_are_lost_with_their_host(train) -> None:
    training = train(3, "--strategy", "parameterserver:control=8", hurried=True, slots=2)
    training.until_step(40)
    training.network.kill("h1")  # of workers 0 and 1
    training.check(2, 3, 4, 5)


@pytest.mark.promise("a host that is cut off")
def test_a_host_that_falls_silent_is_found_and_ends_its_own_workers(train) -> None:
    training = train(3, *FOUND_SILENT, hurried=True, slots=2)
    network = training.network
    training.until_step(20)
    there = network.processes("h2", "agent") + network.processes("h2", "wrapper")
    assert len(there) >= 3
    watched = [os.pidfd_open(pid) for pid in there]
    network.link("h2", "down")
    training.check(0, 1, 4, 5)
    assert "host h2 was silent for" in training.job.output
    assert training.causes == {2: "silent", 3: "silent"}
    (run,) = timeline(list(read(training.trace)))
    for name, clock in run.clocks.items():  # they have one and the same
        assert clock.error is not None, name
        assert abs(clock.ahead) <= clock.error + 1e-3
    for descriptor in watched:
        assert select.select([descriptor], [], [], LIMIT)[0], "a worker outlived its exclusion"
        os.close(descriptor)


def test_a_frozen_host_is_lost_and_does_not_come_back_to_life(train) -> None:
    training = train(2, *FOUND_SILENT, slots=2)
    network = training.network
    training.until_step(20)
    frozen = network.processes("h2", "")
    watched = [os.pidfd_open(pid) for pid in network.processes("h2", "wrapper")]
    assert len(watched) == 4
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    training.check(0, 1)
    for pid in frozen:
        with suppress(ProcessLookupError):  # the agent, woken before it, has ended it already
            os.kill(pid, signal.SIGCONT)
    for descriptor in watched:
        assert select.select([descriptor], [], [], LIMIT)[0], "a worker came back to life"
        os.close(descriptor)


def test_two_hosts_lost_almost_at_once(train) -> None:
    training = train(3, slots=2)
    network = training.network
    training.until_step(20)
    network.kill("h1")
    network.kill("h3")
    training.check(2, 3)


def test_a_host_lost_during_the_recovery_from_another(train) -> None:
    training = train(3, *FOUND_SILENT, slots=2)
    network = training.network
    training.until_step(20)
    network.link("h2", "down")
    training.job.until("host h2 was silent")  # and the others have just begun to recover
    network.kill("h3")
    training.check(0, 1)


def test_one_side_of_a_partition_trains_on_and_it_is_the_head_s(train) -> None:
    options = ("--min-workers", 2, "--checkpoint", "checkpoints")
    training = train(3, *FOUND_SILENT, *options, hurried=True, slots=2)
    network = training.network
    training.until_step(20)
    apart = [pid for name in ("h2", "h3") for pid in network.processes(name, "wrapper")]
    watched = [os.pidfd_open(pid) for pid in apart]
    network.separate("h2", "h3")
    training.check(0, 1)
    for descriptor in watched:
        assert select.select([descriptor], [], [], LIMIT)[0], "two trainings"
        os.close(descriptor)


def test_of_two_hosts_that_do_not_reach_each_other_one_goes(train) -> None:
    training = train(3, slots=2)
    network = training.network
    training.until_step(20)
    network.rift("h1", "h2")
    (told,) = training.job.until("worker [02] on (h[12]) .*though the head does")
    gone, other = told[1], "h1" if told[1] == "h2" else "h2"
    assert f"host {gone} does not reach {other}" in told[0]
    training.check(*((2, 3, 4, 5) if gone == "h1" else (0, 1, 4, 5)))
    assert network.processes(gone, "agent") == []
    assert network.processes(gone, "wrapper") == []


def test_a_training_whose_hosts_never_reach_each_other_says_so_and_ends(network) -> None:
    there = network(3)
    there.rift("h2", "h3")
    training = Training(there, slots=2)
    try:
        assert training.job.wait() == 71, training.job.output
    finally:
        training.close()
    training.job.until(r"host (h3|h2) does not reach (?!\1)h[23], though the head does")


def test_a_head_cut_off_from_all_hosts_ends_and_so_do_they(train) -> None:
    training = train(2, hurried=True, slots=2)
    network = training.network
    training.until_step(20)
    there = [pid for name in network.names for pid in network.processes(name, "wrapper")]
    watched = [os.pidfd_open(pid) for pid in there]
    for name in network.names:
        network.link(name, "down")
    assert training.job.wait() == 69, training.job.output
    for descriptor in watched:
        assert select.select([descriptor], [], [], LIMIT)[0]
        os.close(descriptor)


def test_an_outage_shorter_than_the_limit_is_no_rift_either(train) -> None:
    # TCP sends again only as long after it as the outage was: the links get no answer until then.
    training = train(3).until_step(20)
    for seconds in (4.0, 7.0):
        training.network.stutter(seconds, "h2")
        training.go_on()
    training.check(0, 1, 2)


def test_a_stutter_shorter_than_the_limit_loses_nobody(train) -> None:
    training = train(3, slots=2)
    network = training.network
    training.until_step(20)
    network.stutter(0.5, "h2")
    training.go_on().check(0, 1, 2, 3, 4, 5)
    assert "revoked" not in training.job.output


def test_a_lost_host_whose_agent_is_stopped_does_not_train_on_by_itself(train) -> None:
    """Its workers see the others go, and nobody is awake there who could end them."""
    training = train(2, *FOUND_SILENT, slots=2)
    network = training.network
    training.until_step(20)
    agent = network.processes("h2", "agent")
    workers = [os.pidfd_open(pid) for pid in network.workers("h2")]
    for pid in agent:
        os.kill(pid, signal.SIGSTOP)
    training.job.until("host h2 was silent")  # until then its workers take part
    training.check(0, 1)
    written = training.trace.read_bytes()
    assert not select.select(workers, [], [], 3)[0], "it finished a training of its own"
    for pid in agent:
        os.kill(pid, signal.SIGCONT)
    for descriptor in workers:
        assert select.select([descriptor], [], [], LIMIT)[0], "a worker outlived its exclusion"
        os.close(descriptor)
    assert training.trace.read_bytes() == written


def test_a_host_whose_ssh_waits_for_a_core_is_heard_by_its_datagrams(train) -> None:
    training = train(2, *FOUND_SILENT, slots=2)
    network = training.network
    training.until_step(20)
    network.pause(FOUND_SILENT_S + 2, training.job.started(r"ssh .*\bh2\b"))
    training.go_on().check(0, 1, 2, 3)
    assert "revoked" not in training.job.output


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_host_whose_datagrams_are_kept_back_is_heard_by_its_ssh(
    network, from_the_start: bool
) -> None:
    there = network(2)
    if from_the_start:
        there.keep_datagrams("h2")
    training = Training(there, *FOUND_SILENT, slots=2)
    try:
        training.until_step(20)
        if not from_the_start:
            there.keep_datagrams("h2")
        # For longer than a host may be silent; h1 is heard by its datagrams meanwhile.
        there.pause(FOUND_SILENT_S + 2, training.job.started(r"ssh .*\bh1\b"))
        assert training.job.alive
        assert "revoked" not in training.job.output
        there.link("h2", "down")
        training.job.until("host h2 was silent for")
        os.kill(training.job.pid, signal.SIGTERM)
        assert training.job.wait() == 143
    finally:
        training.close()


@pytest.mark.parametrize("seconds", [FOUND_SILENT_S + 1, 12.0])
def test_a_head_that_pauses_loses_nobody(train, seconds: float) -> None:
    training = train(2, *FOUND_SILENT, slots=2)
    network = training.network
    training.until_step(20)
    network.pause(seconds, training.job.pid)
    training.go_on().check(0, 1, 2, 3)
    assert "revoked" not in training.job.output


def test_a_head_that_pauses_while_its_hosts_start_loses_none(train) -> None:
    training = train(2, *FOUND_SILENT, slots=2)
    network = training.network
    while not all(network.processes(name, "agent") for name in network.names):
        assert training.job.alive, training.job.wait()
    network.pause(FOUND_SILENT_S + 1, training.job.pid)
    while not any(network.workers(name) for name in network.names):
        assert training.job.alive, training.job.wait()
    network.pause(7, training.job.pid)
    training.go_on().check(0, 1, 2, 3)
    assert "revoked" not in training.job.output


def test_a_worker_that_dies_while_the_head_pauses_is_all_that_is_lost(train) -> None:
    training = train(3, *FOUND_SILENT, "--no-replace", slots=2)
    network = training.network
    training.until_step(20)
    os.kill(training.job.pid, signal.SIGSTOP)
    os.kill(min(network.workers("h2")), signal.SIGKILL)
    network.pause(FOUND_SILENT_S + 1, training.job.pid)
    assert training.finish() == 0, training.job.output
    finals = [line.split() for line in training.job.output.splitlines() if "FINAL" in line]
    assert len(finals) == 5, training.job.output
    assert len({words[3] for words in finals}) == 1


def test_a_head_that_is_cut_off_from_all_hosts_for_a_while_loses_none(train) -> None:
    training = train(3, *FOUND_SILENT, slots=2)
    network = training.network
    training.until_step(20)
    network.stutter(FOUND_SILENT_S + 1, *network.names)
    training.go_on().check(0, 1, 2, 3, 4, 5)
    assert "revoked" not in training.job.output
