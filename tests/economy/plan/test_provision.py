"""Choosing a cluster: right against a search by hand, and what must hold of any choice."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.economy.models import profiles
from spotmpi.economy.models.spotdnn import Instance, SpotDnn
from spotmpi.economy.plan import provision
from spotmpi.economy.plan.provision import Candidate, Demand, Search, bounds, predict, search
from spotmpi.economy.quantities import Cluster
from spotmpi.errors import UsageError

PRICES = {"p3.2xl": 0.918, "g4dn.4xl": 0.3612, "g3.8xl": 0.684, "g3.16xl": 1.3676, "p2.8xl": 2.16}


def published() -> SpotDnn:
    model = profiles.shipped("spotdnn")
    assert isinstance(model, SpotDnn)
    return model


def demand(quota: Cluster, deadline_s: float = 3600.0, loss: float = 0.8) -> Demand:
    model = published()
    return Demand(lambda cluster: model.iterations(cluster, loss), deadline_s, quota, PRICES)


def found(task: Demand, *, exhaustive: bool = True) -> Search:
    return search(published(), task, 1, None, "all" if exhaustive else None)


def cheapest(task: Demand) -> float:
    """Dollars of the best plan; infinite without one."""
    return min((one.dollars for one in found(task).feasible), default=float("inf"))


quotas = st.dictionaries(st.sampled_from(sorted(PRICES)), st.integers(1, 4), min_size=1, max_size=3)
deadlines = st.floats(600, 10000)


@settings(max_examples=40)
@given(quotas, deadlines)
def test_the_cheapest_is_what_a_search_by_hand_finds(quota: Cluster, deadline: float) -> None:
    model, best = published(), float("inf")
    for counts in product(*[range(count + 1) for count in quota.values()]):
        cluster = {name: n for name, n in zip(quota, counts, strict=True) if n}
        if not cluster:
            continue
        seconds = model.iterations(cluster, 0.8) / model.rate(cluster)
        if seconds <= deadline:
            hourly = sum(PRICES[name] * n for name, n in cluster.items())
            best = min(best, seconds / 3600 * hourly)
    assert cheapest(demand(quota, deadline)) == pytest.approx(best)


@settings(max_examples=40)
@given(quotas, deadlines, st.data())
def test_more_quota_never_costs_more(quota: Cluster, deadline: float, data: st.DataObject) -> None:
    more = dict(quota)
    name = data.draw(st.sampled_from(sorted(PRICES)))
    more[name] = more.get(name, 0) + data.draw(st.integers(1, 3))
    assert cheapest(demand(more, deadline)) <= cheapest(demand(quota, deadline)) * (1 + 1e-12)


@settings(max_examples=40)
@given(quotas, deadlines, st.floats(1, 3))
def test_a_longer_deadline_never_costs_more(quota: Cluster, deadline: float, longer: float) -> None:
    assert cheapest(demand(quota, deadline * longer)) <= cheapest(demand(quota, deadline))


@settings(max_examples=40)
@given(quotas, deadlines)
def test_windows_find_nothing_that_is_not_there(quota: Cluster, deadline: float) -> None:
    task, model = demand(quota, deadline), published()
    least, most = bounds(model, task, 0.8)
    assert search(model, task, least, most).everything, "so few clusters are all searched"
    assert not search(model, task, least, most, "windows").everything
    every = {tuple(sorted(one.cluster.items())) for one in found(task).feasible}
    clusters = provision._windows(model, task, least, most)
    seen = {tuple(sorted(cluster.items())) for cluster in clusters}
    in_time = {one for one in seen if predict(model, task, dict(one)).seconds <= deadline}
    assert in_time <= every


def test_windows_are_nearly_as_good_as_all() -> None:
    """The paper's search, where there are too many clusters: how much it misses, over 60 tasks."""
    chance, model = random.Random(0), published()
    excess = []
    for _ in range(60):
        quota = {name: chance.randint(1, 5) for name in chance.sample(sorted(PRICES), 3)}
        task = demand(quota, chance.uniform(900, 6000))
        best = cheapest(task)
        least, most = bounds(model, task, 0.8)
        windows = [predict(model, task, c) for c in provision._windows(model, task, least, most)]
        costs = [one.dollars for one in windows if one.seconds <= task.deadline_s]
        if best < float("inf"):
            excess.append(min(costs, default=float("inf")) / best - 1)
    assert len(excess) > 30
    assert all(one >= -1e-12 for one in excess), "nothing is cheaper than the cheapest"
    assert sum(one < 1e-9 for one in excess) >= 0.9 * len(excess)
    assert max(excess) < 0.3


def test_a_walk_from_the_windows_finds_what_they_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tasks: the cheapest of all is found in each."""
    chance, model = random.Random(0), published()
    missed = 0
    for _ in range(60):
        quota = {name: chance.randint(1, 5) for name in chance.sample(sorted(PRICES), 3)}
        task = demand(quota, chance.uniform(900, 6000))
        least, most = bounds(model, task, 0.8)
        windows = search(model, task, least, most, "windows")
        with monkeypatch.context() as patch:
            patch.setattr(provision, "FEW", 0)
            walked = search(model, task, least, most)
        if walked.feasible:
            assert walked.feasible[0].dollars == pytest.approx(cheapest(task))
            clusters = [tuple(sorted(one.cluster.items())) for one in walked.feasible]
            assert len(clusters) == len(set(clusters)), "none is there twice"
            missed += walked.feasible[0].dollars < windows.feasible[0].dollars * (1 - 1e-9)
    assert missed >= 2, "so often the windows alone did not find it"


def test_a_walk_keeps_what_runs_and_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "FEW", 0)
    quota = {"g3.8xl": 6, "g3.16xl": 5, "g4dn.4xl": 5}
    task = replace(demand(quota, 3000.0), existing={"g3.8xl": 2})
    result = search(published(), task, 1, None)
    assert result.feasible
    for one in result.feasible:
        assert one.cluster["g3.8xl"] >= 2
        assert all(count <= quota[name] for name, count in one.cluster.items())


def test_large_quotas_are_searched_by_windows() -> None:
    task = demand(dict.fromkeys(PRICES, 20), 2600.0)
    result = found(task, exhaustive=False)
    assert not result.everything
    assert result.feasible
    assert result.searched < 5000


def test_more_workers_than_the_paper_s_bound_are_looked_at_before_there_is_no_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, task = published(), demand({"g3.16xl": 60, "g3.8xl": 10}, 31 * 60.0)
    least, most = bounds(model, task, 0.8)
    assert most == 13
    monkeypatch.setattr(provision, "FEW", 0)
    result = search(model, task, least, most, "windows")
    assert not result.everything
    assert result.feasible
    assert all(sum(one.cluster.values()) > 13 for one in result.feasible)


def test_the_paper_s_plan_is_among_those_in_time() -> None:
    task = demand({"g3.8xl": 5, "g3.16xl": 3}, 2600.0)
    (best, *_) = found(task).feasible
    assert best.cluster == {"g3.8xl": 5, "g3.16xl": 3}
    assert best.dollars == pytest.approx(5.33, abs=0.005)


def test_without_a_plan_the_fastest_is_known() -> None:
    result = found(demand({"g3.8xl": 2, "g4dn.4xl": 1}, 60.0))
    assert result.feasible == []
    assert result.fastest is not None
    assert result.late == result.searched == 5
    assert result.fastest.seconds > 60


def test_the_best_of_each_type_alone_is_known() -> None:
    result = found(demand({"g3.8xl": 6, "g3.16xl": 1}, 5000.0))
    assert set(result.alone) == {"g3.8xl", "g3.16xl"}
    assert result.alone["g3.8xl"].seconds <= 5000, "in time and the cheapest"
    assert result.alone["g3.16xl"].seconds > 5000, "late, and the fastest"


def test_hours_that_are_begun_decide_what_is_cheapest() -> None:
    by_second = demand({"g3.8xl": 4}, 9000.0)
    by_hour = replace(by_second, billing="hour")
    (first, *_), (other, *_) = found(by_second).feasible, found(by_hour).feasible
    assert (first.cluster, other.cluster) == ({"g3.8xl": 1}, {"g3.8xl": 1})
    assert other.dollars == pytest.approx(2 * 0.684), f"{other.seconds} s are two hours"
    assert [one.dollars for one in found(by_hour).feasible] == sorted(
        one.dollars for one in found(by_hour).feasible
    )


# After a revocation.


def test_what_runs_already_is_kept() -> None:
    task = replace(demand({"g3.8xl": 4, "g3.16xl": 2}, 9000.0), existing={"g3.8xl": 2})
    for windows in (False, True):
        clusters = (
            provision._windows(published(), task, 1, None)
            if windows
            else [one.cluster for one in found(task).feasible]
        )
        assert all(cluster["g3.8xl"] >= 2 for cluster in clusters)


def test_what_is_done_is_not_done_again_and_what_is_there_trains_while_the_new_starts() -> None:
    model = published()
    whole = demand({"g3.8xl": 4})
    left = replace(whole, iterations=lambda c: whole.iterations(c) - 5000)
    task = replace(left, existing={"g3.8xl": 2}, startup_s=lambda c: 300.0 * (c["g3.8xl"] > 2))
    same, more = predict(model, task, {"g3.8xl": 2}), predict(model, task, {"g3.8xl": 3})
    assert same.iterations == model.iterations({"g3.8xl": 2}, 0.8) - 5000
    assert same.seconds == pytest.approx(same.iterations / model.rate({"g3.8xl": 2}))
    before = 300 / same.seconds
    rest = (1 - before) * more.iterations / model.rate({"g3.8xl": 3})
    assert more.seconds == pytest.approx(300 + rest)
    late = replace(task, startup_s=lambda c: 1e6 * (c["g3.8xl"] > 2))
    assert predict(model, late, {"g3.8xl": 3}).seconds == pytest.approx(same.seconds)


def test_a_quota_below_what_runs_is_refused() -> None:
    task = replace(demand({"g3.8xl": 1}), existing={"g3.8xl": 2})
    with pytest.raises(UsageError, match=r"g3\.8xl runs already, 2 of them, and the quota has 1"):
        found(task)


def test_clusters_outside_of_the_model_are_counted() -> None:
    huge = replace(published(), instances={"huge": Instance(16, 2000, 1024)})
    task = Demand(lambda c: huge.iterations(c, 0.8), 3600.0, {"huge": 3}, {"huge": 1.0})
    result = search(huge, task, 1, None, "all")
    assert (result.outside, result.searched, result.fastest) == (3, 3, None)


def test_a_server_is_paid_as_long_as_training_takes() -> None:
    task = demand({"g3.8xl": 1})
    with_server = replace(task, fixed_dollars_per_hour=0.5)
    one: Candidate = predict(published(), task, {"g3.8xl": 1})
    other = predict(published(), with_server, {"g3.8xl": 1})
    assert other.dollars - one.dollars == pytest.approx(0.5 * one.seconds / 3600)


def test_windows_of_many_instances_are_thinned_and_keep_their_ends() -> None:
    few, many = list(provision._spaced(3, 60)), list(provision._spaced(1, 1_000_000))
    assert few == list(range(3, 61))
    assert (many[0], many[-1]) == (1, 1_000_000)
    assert len(many) < 2000
    assert list(provision._spaced(4, 3)) == []
    assert list(provision._spaced(4, 4)) == [4]
