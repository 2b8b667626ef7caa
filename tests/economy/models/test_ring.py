"""The ring model: its formula, its questions, and profiles that say what is wrong with them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.economy import reading
from spotmpi.economy.models import Model
from spotmpi.economy.models.ring import HostType, Ring, RingLoss, from_profile, load, to_yaml
from spotmpi.errors import UsageError

PROFILE = """\
model: ring
name: train.py
source: profiled 2026-11-22, 2 cores, from a.jsonl b.jsonl
error_percent: 7.3
gradient_mb: 4.0
strategy: SSGD
loss: {g1: 100, g3: 2000, g5: 0.5}
instances:
  small: {workers_per_host: 1, cores: 2, compute_s: 0.010, exchange_s_per_worker: 0.002,
          bandwidth_mbps: 100, latency_s: 0.001}
  large:
    workers_per_host: 4
    cores: 2
    compute_s: 0.006
    exchange_s_per_worker: 0.003
    crowding_s: 0.001
    bandwidth_mbps: 400
    latency_s: 0.0005
"""


def profile(tmp_path: Path, text: str = PROFILE) -> Ring:
    file = tmp_path / "profile.yaml"
    file.write_text(text, encoding="utf-8")
    return from_profile(reading.load(file))


def test_it_answers_what_every_model_answers(tmp_path: Path) -> None:
    model: Model = profile(tmp_path)
    assert (model.name, list(model.types), model.error) == ("train.py", ["small", "large"], 0.073)
    assert model.rate({}) == model.rate({"small": 0}) == 0


def test_one_worker_alone_only_computes(tmp_path: Path) -> None:
    assert profile(tmp_path).rate({"small": 1}) == pytest.approx(1 / 0.010)


def test_hosts_send_their_share_and_wait_for_each_hop(tmp_path: Path) -> None:
    # 2 * 3/4 * 4 MB at 100 MB/s, and 6 hops of 1 ms.
    assert profile(tmp_path).rate({"small": 4}) == pytest.approx(4 / (0.010 + 0.060 + 0.006))


def test_numbers_of_hosts_that_are_no_power_of_two_are_like_the_others(tmp_path: Path) -> None:
    # 2 * 1/2 and 2 * 2/3 of 4 MB at 100 MB/s.
    two, three = 0.010 + 0.040 + 0.002, 0.010 + 0.16 / 3 + 0.004
    assert profile(tmp_path).rate({"small": 2}) == pytest.approx(2 / two)
    assert profile(tmp_path).rate({"small": 3}) == pytest.approx(3 / three)


def test_workers_of_a_host_share_its_cores_and_its_memory(tmp_path: Path) -> None:
    # Two workers to a core, one too many on each; three further ones in the all-reduce.
    step = 2 * 0.006 + 0.001 + 3 * 0.003
    assert profile(tmp_path).rate({"large": 1}) == pytest.approx(4 / step)


def test_in_a_mixed_cluster_the_slowest_decides_each_part(tmp_path: Path) -> None:
    compute = max(0.010, 2 * 0.006 + 0.001)
    network = 4 / 3 * 4 / 100 + 4 * 0.001  # the small ones', of three hosts
    rate = profile(tmp_path).rate({"small": 2, "large": 1})
    assert rate == pytest.approx((2 + 4) / (compute + 3 * 0.003 + network))


def test_hosts_exchange_at_the_same_time() -> None:
    kinds = {"a": HostType(2, 2, 1.0, 0.3, 0.0, 4.0), "b": HostType(2, 2, 1.0, 0.5, 0.0, 8.0)}
    assert Ring("x", kinds, 4.0).rate({"a": 1, "b": 1}) == pytest.approx(4 / (1.0 + 0.5 + 1.0))


def test_three_workers_on_two_cores_are_as_slow_as_four() -> None:
    # A core runs two batches one after the other, and all wait for it.
    assert load(3, 2, 1, 1.0).compute == load(4, 2, 1, 1.0).compute == 2
    assert load(5, 2, 1, 1.0).compute == 3
    assert load(2, 2, 1, 1.0).compute == load(1, 64, 1, 1.0).compute == 1


@pytest.mark.parametrize(
    ("host", "hosts", "part"),
    [
        (HostType(1, 2, 1.0, 0.1), 1, "compute"),
        (HostType(8, 2, 1.0, 0.1), 1, "cores"),
        (HostType(2, 2, 1.0, 3.0), 1, "memory bandwidth within a host"),
        (HostType(1, 2, 1.0, 0.1, bandwidth_mbps=1.0), 2, "network"),
        (HostType(1, 2, 1.0, 0.1, bandwidth_mbps=1e9, latency_s=1.0), 2, "network"),
    ],
)
def test_the_bottleneck_is_the_largest_part(host: HostType, hosts: int, part: str) -> None:
    assert Ring("x", {"a": host}, 4.0).bottleneck({"a": hosts}) == part


def test_a_loss_takes_so_many_iterations(tmp_path: Path) -> None:
    model = profile(tmp_path)
    assert model.iterations({"small": 4}, 0.8) == pytest.approx(2000 / 0.3 - 100)
    assert model.iterations({"small": 4}, 1e9) == 0, "it is there already"
    assert model.loss_after({"small": 4}, 2000 / 0.3 - 100) == pytest.approx(0.8)
    for floor in (0.5, 0.4, math.nan):
        with pytest.raises(UsageError, match=r"tends to 0\.5; ask for more"):
            model.iterations({"small": 4}, floor)


def test_without_a_curve_a_loss_cannot_be_asked_for() -> None:
    model = Ring("x", {"a": HostType(1, 2, 1.0, 0.1)}, 4.0)
    for question in (model.iterations, model.loss_after):
        with pytest.raises(UsageError, match=r"the profile of x has no loss; profile a trace"):
            question({"a": 1}, 1.0)


def test_what_nobody_measured_cannot_be_asked_for() -> None:
    model = Ring("x", {"a": HostType(2, 2, 1.0, 0.1)}, 4.0)
    with pytest.raises(UsageError, match="add bandwidth_mbps"):
        model.rate({"a": 2})
    alone = HostType(2, 2, 1.0, None)
    assert alone.step(2, 1, 4.0) == 1.0, "two workers are what was measured"
    with pytest.raises(UsageError, match="knows 2 for each host, and 3 are asked for"):
        alone.step(3, 1, 4.0)


def test_an_unknown_type_is_named(tmp_path: Path) -> None:
    for ask in (Ring.rate, Ring.bottleneck):
        with pytest.raises(UsageError, match=r"type 'V100'; it knows small, large, as it was"):
            ask(profile(tmp_path), {"V100": 2})


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("bandwidth_mbps: 400", "bandwidth_mbps: -400", "line 17: .*is -400 MB/s, expected more"),
        ("compute_s: 0.006", "compute_s: 0", "line 14: .*compute_s is 0 s, expected more than 0"),
        ("    latency_s: 0.0005", "    latency: 1", "line 18: .*did you mean latency_s"),
        ("exchange_s_per_worker: 0.003", "exchange_s_per_worker: .nan", "line 15: .*'.nan'"),
        ("crowding_s: 0.001", "crowding_s: -1", "line 16: .*expected at least 0"),
        ("cores: 2\n    c", "cores: 0\n    c", "line 13: .*cores is 0, expected at least 1"),
        ("workers_per_host: 4", "workers_per_host: 1.5", "line 12: .*whole number"),
        ("gradient_mb: 4.0", "gradient_mb: none", "line 5: .*expected a number of MB"),
        ("gradient_mb: 4.0", "", "no gradient_mb, which is needed"),
        ("error_percent: 7.3", "error_percent: -1", "line 4: error_percent is -1 %"),
        ("error_percent", "error_percnt", "line 4: .*did you mean error_percent"),
        ("strategy: SSGD", "strategy: gossip", "line 6: strategy is 'gossip', expected SSGD"),
        ("model: ring", "model: queue", "line 1: model is 'queue', expected ring"),
        ("g3: 2000", "g3: -1", "line 7: loss.g3 is -1, expected at least 0"),
        ("g1: 100", "g2: 100", "line 7: .*g2 is not known"),
    ],
)
def test_a_mistake_in_a_profile_has_its_line(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert PROFILE.count(old) >= 1
    with pytest.raises(UsageError, match=complaint):
        profile(tmp_path, PROFILE.replace(old, new, 1))


def test_a_profile_without_types_is_refused(tmp_path: Path) -> None:
    nothing = PROFILE[: PROFILE.index("  small")].replace("instances:", "instances: {}")
    with pytest.raises(UsageError, match="line 8: instances is empty"):
        profile(tmp_path, nothing)


positive = st.floats(1e-7, 1e7)
hosts = st.builds(
    HostType,
    workers=st.integers(1, 64),
    cores=st.integers(1, 64),
    compute_s=positive,
    exchange_s_per_worker=st.none() | st.just(0.0) | positive,
    crowding_s=st.just(0.0) | positive,
    bandwidth_mbps=st.none() | positive,
    latency_s=st.just(0.0) | positive,
)
names = st.text(min_size=1, max_size=12).filter(lambda text: text not in ("~", "null"))


@given(name=names, source=names, kinds=st.dictionaries(names, hosts, min_size=1, max_size=3),
       megabytes=positive, error=st.none() | st.floats(0, 10),
       loss=st.none() | st.builds(RingLoss, positive, positive, positive))  # fmt: skip
def test_a_profile_that_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    source: str,
    kinds: dict[str, HostType],
    megabytes: float,
    error: float | None,
    loss: RingLoss | None,
) -> None:
    file = tmp_path_factory.getbasetemp() / "written.yaml"
    file.write_text(
        to_yaml(Ring(name, kinds, megabytes, error=error, loss=loss), source), encoding="utf-8"
    )
    got = from_profile(reading.load(file))
    assert (got.name, list(got.types)) == (name, list(kinds))
    assert numbers([got.gradient_mb, got.error]) == numbers([megabytes, error])
    assert (got.loss is None) == (loss is None)
    if got.loss is not None and loss is not None:
        assert numbers(vars(got.loss).values()) == numbers(vars(loss).values())
    for kind, host in kinds.items():
        there = vars(host)
        if host.bandwidth_mbps is None:
            there = {**there, "latency_s": 0.0}  # says nothing without the bandwidth
        assert numbers(vars(got.hosts[kind]).values()) == numbers(there.values())


def numbers(values: object) -> list[object]:
    assert isinstance(values, list) or hasattr(values, "__iter__")
    return [None if value is None else pytest.approx(value, rel=1e-5) for value in values]


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "written.yaml"
    text = to_yaml(Ring("a\udcffb", {"x": HostType(1, 1, 1.0, 0.0)}, 1.0), "somewhere")
    file.write_text(text, encoding="utf-8")
    assert from_profile(reading.load(file)).name == "a?b"


@given(kind=hosts, count=st.integers(1, 100), megabytes=positive, more=st.floats(1, 1000))
def test_more_bandwidth_is_never_slower_and_nothing_is_not_a_number(
    kind: HostType, count: int, megabytes: float, more: float
) -> None:
    if kind.bandwidth_mbps is None:
        kind = HostType(**{**vars(kind), "bandwidth_mbps": 1.0})
    assert kind.bandwidth_mbps is not None
    faster = HostType(**{**vars(kind), "bandwidth_mbps": kind.bandwidth_mbps * more})
    slow, fast = (Ring("x", {"a": one}, megabytes).rate({"a": count}) for one in (kind, faster))
    assert 0 < slow <= fast * (1 + 1e-12) < math.inf


@given(kind=hosts, workers=st.integers(1, 100), megabytes=positive)
def test_a_further_worker_never_makes_a_step_shorter(
    kind: HostType, workers: int, megabytes: float
) -> None:
    kind = HostType(**{**vars(kind), "exchange_s_per_worker": kind.exchange_s_per_worker or 0.0})
    assert kind.step(workers, 1, megabytes) <= kind.step(workers + 1, 1, megabytes) * (1 + 1e-12)
