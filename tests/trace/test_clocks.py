"""Clocks of hosts are aligned by the rounds that all were in, and the error bounds the truth."""

from __future__ import annotations

import random

import pytest

from spotmpi.trace.clocks import Clock, aligned, hosts_of

AHEAD = {"a": 0.0, "b": 1234.5, "c": -0.75}
HOSTS = {0: "a", 1: "b", 2: "c", 3: "b"}


def rounds(many: int, seed: int = 1) -> list[dict[int, tuple[float, float]]]:
    """As they were: nobody is through before all have come."""
    chance, now, found = random.Random(seed), 50.0, []
    for _ in range(many):
        came = {worker: now + chance.uniform(0.0, 0.01) for worker in HOSTS}
        over = {worker: max(came.values()) + chance.uniform(0.0, 0.005) for worker in HOSTS}
        now = max(over.values())
        found.append(
            {w: (came[w] + AHEAD[host], over[w] + AHEAD[host]) for w, host in HOSTS.items()}
        )
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_lies_within_the_error(seed: int) -> None:
    found = aligned(rounds(30, seed), HOSTS, "a")
    for host, ahead in AHEAD.items():
        error = found[host].error
        assert error is not None
        assert abs(found[host].ahead - ahead) <= error + 1e-9
        assert error < 0.01
    assert found["a"] == Clock(0.0, 0.0)


def test_more_rounds_make_it_smaller() -> None:
    few, many = (aligned(rounds(n), HOSTS, "a")["b"].error for n in (1, 200))
    assert few is not None
    assert many is not None
    assert many < few / 2


def test_of_a_host_that_was_in_no_round_with_the_first_nothing_is_known() -> None:
    assert aligned([{1: (1.0, 2.0)}], HOSTS, "a")["b"] == Clock(0.0, None)


def test_hosts_are_told_at_the_start_and_with_newcomers() -> None:
    start = {"event": "start", "workers": [0, 1], "hosts": ["a", "b"]}
    change = {"event": "change", "joined": [5], "left": [], "hosts": ["c"]}
    step = {"event": "step", "workers": [0, 1], "hosts": [[0], [1]]}
    assert hosts_of([start, step, change]) == {0: "a", 1: "b", 5: "c"}
