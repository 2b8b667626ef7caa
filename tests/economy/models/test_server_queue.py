"""The queue at the parameter server, against slower ways and closed forms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.economy import reading
from spotmpi.economy.models import Model, server_queue
from spotmpi.economy.models.server_queue import Queue, Station, from_profile
from spotmpi.errors import UsageError
from tests.economy.models.queueing import chained, exponential, simulated

WORKERS = st.lists(st.tuples(st.integers(1, 9), st.floats(1e-4, 100)), min_size=1, max_size=3)
SERVICE = st.floats(1e-4, 10)


def throughput(counts: Sequence[int], think_s: Sequence[float], service_s: float) -> float:
    return Station(think_s, service_s).throughput(counts)


def integral(counts: Sequence[int], think_s: Sequence[float], service_s: float) -> float:
    return sum(server_queue._integral(counts, think_s, service_s))


@pytest.mark.parametrize(
    ("counts", "think_s", "service_s"),
    [
        ((1,), (2.0,), 0.5),
        ((3,), (0.3,), 1.0),
        ((2, 2), (0.2, 3.0), 0.5),
        ((2, 1), (0.2, 3.0), 0.5),
        ((1, 1, 2), (0.1, 0.7, 2.0), 0.9),
    ],
)
def test_the_recursion_gives_what_the_markov_chain_gives(
    counts: tuple[int, ...], think_s: tuple[float, ...], service_s: float
) -> None:
    expected = chained(counts, think_s, service_s)
    assert throughput(counts, think_s, service_s) == pytest.approx(expected, rel=1e-9)
    assert integral(counts, think_s, service_s) == pytest.approx(expected)


def test_a_simulation_agrees() -> None:
    think_s = [0.2] * 3 + [0.06] * 2 + [0.045] * 4
    rate = simulated(think_s, 0.023, 60_000, exponential(1), exponential(2))
    expected = throughput((3, 2, 4), (0.2, 0.06, 0.045), 0.023)
    assert rate == pytest.approx(expected, rel=0.02)


@given(WORKERS, SERVICE)
def test_the_integral_is_as_exact_as_the_recursion(
    workers: list[tuple[int, float]], service_s: float
) -> None:
    counts, think_s = zip(*workers, strict=True)
    found = integral(counts, think_s, service_s)
    assert found == pytest.approx(throughput(counts, think_s, service_s), rel=1e-11)


@given(WORKERS, SERVICE, st.randoms(use_true_random=False))
def test_what_was_computed_before_changes_nothing(
    workers: list[tuple[int, float]], service_s: float, source: random.Random
) -> None:
    counts, think_s = zip(*workers, strict=True)
    station = Station(think_s, service_s)
    for _ in range(6):
        some = [source.randint(0, n) for n in counts]
        assert station.throughput(some) == pytest.approx(throughput(some, think_s, service_s))


def test_a_search_through_many_clusters_takes_a_step_for_each() -> None:
    station = Station((0.2, 0.06, 0.05), 0.02)
    began = process_time()
    found = [station.throughput(one) for one in product(range(40), repeat=3)]
    assert process_time() - began < 5  # 64,000 of them: less than one; by integrals half a minute
    assert found[-1] == pytest.approx(integral((39, 39, 39), (0.2, 0.06, 0.05), 0.02), rel=1e-9)


@pytest.mark.parametrize("think_s", [1e-6, 0.2, 2267.0, 2268.1, 2270.0, 1e5])
def test_a_hundred_thousand_workers_are_exact_and_take_no_time(think_s: float) -> None:
    service_s, count = 0.02268, 100_000
    queue = rate = 0.0
    for n in range(1, count + 1):  # mean-value analysis as it is in the books
        response = service_s * (1 + queue)
        rate = n / (think_s + response)
        queue = rate * response
    began = process_time()
    assert throughput((count,), (think_s,), service_s) == pytest.approx(rate, rel=1e-11)
    assert process_time() - began < 5  # and not the square of so many


def test_many_workers_of_several_types_saturate_the_server() -> None:
    rate = throughput((40_000, 30_000, 30_000), (0.2, 0.06, 0.05), 0.01)
    assert rate == pytest.approx(1 / 0.01, rel=1e-4)


@given(st.floats(1e-4, 100), SERVICE)
def test_one_worker_never_waits(think_s: float, service_s: float) -> None:
    rate = throughput((1,), (think_s,), service_s)
    assert rate == pytest.approx(1 / (think_s + service_s))


@given(WORKERS)
def test_without_service_nobody_waits(workers: list[tuple[int, float]]) -> None:
    counts, think_s = zip(*workers, strict=True)
    alone = sum(n / z for n, z in workers)
    assert throughput(counts, think_s, 0.0) == pytest.approx(alone)
    assert throughput(counts, think_s, 1e-12) == pytest.approx(alone, rel=1e-6)


def test_nobody_makes_no_updates() -> None:
    assert throughput((), (), 1.0) == 0
    assert throughput((0, 0), (1.0, 2.0), 1.0) == 0
    assert throughput((0, 1), (1.0, 2.0), 1.0) == pytest.approx(1 / 3)


@given(WORKERS, SERVICE, st.data())
def test_more_is_never_slower(
    workers: list[tuple[int, float]], service_s: float, data: st.DataObject
) -> None:
    counts, think_s = map(list, zip(*workers, strict=True))
    before = throughput(counts, think_s, service_s)
    least = before * (1 - 1e-11)
    assert throughput(counts, think_s, service_s * 0.9) >= least
    assert before <= 1 / service_s * (1 + 1e-11)
    which = data.draw(st.integers(0, len(counts) - 1))
    counts[which] += 1
    assert throughput(counts, think_s, service_s) >= least


# The model.

PROFILE = """\
model: queue
name: a network
source: measured
error_percent: 12
update_s: 0.02
updates: 64000
server: {instance: PS, count: 1}
instances:
  slow: {compute_s: 0.2}
  fast: {compute_s: 0.05}
"""


def parse(folder: Path, text: str) -> Queue:
    path = folder / "profile.yaml"
    path.write_text(text)
    return from_profile(reading.load(path))


def test_a_profile_becomes_a_model(tmp_path: Path) -> None:
    queue = parse(tmp_path, PROFILE)
    model: Model = queue
    assert (model.name, model.types, model.error) == ("a network", ("slow", "fast"), 0.12)
    assert (queue.updates, queue.server_instance, queue.servers) == (64000, "PS", 1)
    assert model.rate({}) == model.rate({"slow": 0, "unknown": 0}) == 0
    assert model.rate({"slow": 1}) == pytest.approx(1 / 0.22)
    assert model.rate({"fast": 2, "slow": 3}) == throughput((3, 2), (0.2, 0.05), 0.02)
    two = queue.with_servers(2)
    assert two.servers == 2
    assert two.rate({"fast": 5}) == throughput((5,), (0.05,), 0.01), "twice as fast"
    assert (queue.error, two.error) == (0.12, None)
    assert two.with_servers(1) == queue


def test_what_a_profile_may_leave_out(tmp_path: Path) -> None:
    short = PROFILE.replace("error_percent: 12\n", "").replace("updates: 64000\n", "")
    queue = parse(tmp_path, short)
    assert queue.error is None
    assert queue.updates is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("update_s: 0.02", "update_s: -1"), "line 5: update_s is -1 s, expected at least 0"),
        (("compute_s: 0.05", "compute_s: 0"), "line 10: instances.fast.compute_s is 0 s"),
        (("compute_s: 0.05", "compute: 1"), "line 10: .*did you mean compute_s"),
        (("count: 1", "count: 0"), "line 7: server.count is 0, expected at least 1"),
        (("count: 1", "count: 1.5"), "line 7: server.count is 1.5, expected a whole number"),
        (("updates: 64000", "updates: 0"), "line 6: updates is 0, expected at least 1"),
        (("error_percent: 12", "error_percent: -1"), "line 4: error_percent is -1 %"),
        (("model: queue", "model: ring"), "line 1: model is 'ring', expected queue"),
        (("source: measured\n", ""), "there is no source"),
        (("server: {instance: PS, count: 1}", ""), "there is no server"),
        (("instance: PS, ", ""), "line 7: there is no instance of server"),
        (("name: a network", "nam: x"), "line 2: nam is not known here; did you mean name"),
    ],
)
def test_a_profile_that_is_wrong_says_where(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse(tmp_path, PROFILE.replace(*change))


def test_a_profile_without_instances_is_refused(tmp_path: Path) -> None:
    text = PROFILE[: PROFILE.index("instances:")] + "instances: {}\n"
    with pytest.raises(UsageError, match="expected compute_s of at least one instance type"):
        parse(tmp_path, text)


def test_the_server_is_the_bottleneck_where_one_more_worker_adds_less_than_half(
    tmp_path: Path,
) -> None:
    queue = parse(tmp_path, PROFILE)
    bottlenecks = [queue.bottleneck({"fast": n}) for n in range(8)]
    adds = [queue.rate({"fast": n + 1}) - queue.rate({"fast": n}) for n in range(8)]
    assert bottlenecks == [
        "parameter server" if added < adds[0] / 2 else "compute" for added in adds
    ]
    assert bottlenecks[1] == "compute"
    assert bottlenecks[-1] == "parameter server"
    assert queue.bottleneck({}) == "compute"
    assert queue.bottleneck({"slow": 4, "fast": 0}) == "compute"
    # A fast one would add 0.41 of its speed here, a slow one 0.52.
    assert queue.bottleneck({"slow": 4, "fast": 2}) == "parameter server"
    assert queue.with_servers(8).bottleneck({"fast": 7}) == "compute"


def test_what_the_model_cannot_say(tmp_path: Path) -> None:
    queue = parse(tmp_path, PROFILE)
    with pytest.raises(UsageError, match=r"no loss model.*say --iterations instead"):
        queue.iterations({"slow": 1}, 0.5)
    with pytest.raises(UsageError, match="does not know instance type 'K80'; it knows slow, fast"):
        queue.rate({"slow": 1, "K80": 1})
    with pytest.raises(UsageError, match="'K80'"):
        queue.bottleneck({"K80": 1, "slow": 1})
    with pytest.raises(UsageError, match="0 parameter servers, expected at least 1"):
        queue.with_servers(0)
