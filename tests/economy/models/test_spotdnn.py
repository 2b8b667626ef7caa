"""spotDNN's formulas, against its published plans and against a plain transcript of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.economy.models import profiles
from spotmpi.economy.models.spotdnn import (
    Contention,
    Instance,
    LossCoefficients,
    SpotDnn,
    batch_that_fits,
)
from spotmpi.errors import UsageError


def published() -> SpotDnn:
    model = profiles.shipped("spotdnn")
    assert isinstance(model, SpotDnn)
    return model


# The known answers.


def test_the_published_plan_comes_out() -> None:
    model, cluster = published(), {"g3.8xl": 5, "g3.16xl": 3}
    seconds = model.iterations(cluster, 0.8) / model.rate(cluster)
    assert seconds == pytest.approx(2549.02, abs=0.01)
    assert seconds / 3600 * (5 * 0.684 + 3 * 1.3676) == pytest.approx(5.33, abs=0.005)


def test_the_other_published_plan_comes_out() -> None:
    model, cluster = published(), {"g4dn.4xl": 2, "g3.8xl": 5, "g3.16xl": 2}
    assert model.iterations(cluster, 0.8) / model.rate(cluster) == pytest.approx(2597.3, abs=0.06)


# Against a transcript of the formulas that takes workers one by one.


def transcript(
    model: SpotDnn, names: Sequence[str], iterations: float
) -> tuple[float, float, float, float]:
    """T, bw, R and the loss."""
    s, n = model.gradient_mb, len(names)
    meet = min(max(model.contention.a1 * n**0.5 + model.contention.b1, 0), 1)
    if model.required_mbps > model.server_mbps / n:
        bwk = meet * model.server_mbps / n + (1 - meet) * model.required_mbps
    else:
        bwk = model.required_mbps
    t, b = [], []
    for name in names:
        one = model.instances[name]
        t_comm = 2 * s / bwk + 2 * one.gpus * s / model.pcie_mbps
        t_comp = one.gpus * one.batch_per_gpu / one.speed
        t_comp -= 2 * s / model.required_mbps + 2 * one.gpus * s / model.pcie_mbps
        t.append(t_comm + t_comp)
        b.append(one.gpus * one.batch_per_gpu)
    t_exp = 1 / sum(1 / x for x in t)
    v = sum(x / y for x, y in zip(b, t, strict=True))
    bw = v * t_exp
    w = sorted((x / y / v for x, y in zip(b, t, strict=True)), reverse=True)
    r = math.sqrt((w[0] - 1) ** 2 + sum(x**2 for x in w[1:]))
    g = model.loss
    uneven = 1.0 if g.g4 is None else r + g.g4
    loss = (g.g2 * bw + g.g3) * math.sqrt(uneven * n) / (iterations + g.g1) + g.g5
    return iterations * t_exp, bw, r, loss


some_instances = st.builds(
    Instance, st.integers(1, 8), st.floats(100, 3000), st.sampled_from([64, 256, 1024])
)


@given(
    st.lists(some_instances, min_size=1, max_size=4),
    st.data(),
    st.floats(1, 1e6),
    st.one_of(st.none(), st.floats(0.1, 5)),
)
def test_every_formula_is_the_paper_s(
    instances: list[Instance], data: st.DataObject, iterations: float, g4: float | None
) -> None:
    named = {f"type{i}": one for i, one in enumerate(instances)}
    counts = {name: data.draw(st.integers(0, 6)) for name in named}
    cluster = {name: count for name, count in counts.items() if count} or {"type0": 1}
    model = SpotDnn(
        name="any",
        instances=named,
        gradient_mb=0.5,
        required_mbps=142,
        server_mbps=600,
        pcie_mbps=10000,
        contention=Contention(0.8, -1.92),
        loss=LossCoefficients(876.5, -0.01, 2507.6, g4, 0.5),
    )
    names = [name for name, count in cluster.items() for _ in range(count)]
    seconds, bw, r, loss = transcript(model, names, iterations)
    assert iterations / model.rate(cluster) == pytest.approx(seconds)
    assert model.weighted_batch(cluster) == pytest.approx(bw)
    assert model.unevenness(cluster) == pytest.approx(r, abs=1e-7)
    assert model.loss_after(cluster, iterations) == pytest.approx(loss)
    assert model.iterations(cluster, loss) == pytest.approx(iterations, rel=1e-6, abs=1e-3)


def test_a_worker_alone_takes_what_was_measured() -> None:
    model = published()
    for name, one in model.instances.items():
        assert model.seconds(name, 1) == pytest.approx(one.batch / one.speed)


def test_beyond_the_server_s_network_workers_share_it() -> None:
    model = published()
    assert model.bandwidth(8) == 142  # 1200 / 8 is more
    assert model.bandwidth(13) < 142
    assert model.contention.probability(model.most_workers()) == pytest.approx(0.964, abs=0.001)
    assert model.bandwidth(model.most_workers() + 1) == pytest.approx(1200 / 14)
    assert model.most_workers() == 13


def test_a_lower_bound_holds_for_every_cluster_in_time() -> None:
    model = replace(published(), loss=LossCoefficients(876.5, -0.2, 2507.6, 0.1, 0.5))
    kinds = ("g4dn.4xl", "g3.8xl", "p2.8xl")
    bounds = []
    for deadline in (1500.0, 5000.0, 20000.0):
        bound = model.fewest_workers(kinds, 0.53, deadline)
        bounds.append(bound)
        clusters = [{"g4dn.4xl": a, "g3.8xl": b, "p2.8xl": c}
                    for a in range(5) for b in range(5) for c in range(5) if a + b + c]  # fmt: skip
        for cluster in clusters:
            there = {name: count for name, count in cluster.items() if count}
            if model.iterations(there, 0.53) / model.rate(there) <= deadline:
                assert sum(there.values()) >= bound
    assert bounds[0] > 1, "the bound must be able to say something"


def test_the_bottleneck_is_named() -> None:
    slow_network = replace(published(), server_mbps=20, contention=Contention(0.8, 0.5))
    slow_pcie = replace(published(), pcie_mbps=30)
    assert published().bottleneck({"g3.8xl": 2}) == "compute"
    assert slow_network.bottleneck({"g3.8xl": 8}) == "parameter server's network"
    assert slow_pcie.bottleneck({"g3.16xl": 2}) == "PCIe"


@pytest.mark.parametrize(("memory", "batch"), [(16, 1024), (8, 512), (15.9, 512), (1, 64)])
def test_a_batch_is_the_power_of_two_that_fits(memory: float, batch: int) -> None:
    assert batch_that_fits(memory, 64, 0) == batch


# What cannot be.


def test_a_loss_at_the_floor_is_refused() -> None:
    with pytest.raises(UsageError, match=r"never reached: the floor of ResNet-110 .* is 0\.5"):
        published().iterations({"g3.8xl": 1}, 0.5)


def test_batches_outside_of_the_loss_model_are_refused() -> None:
    model = replace(published(), instances={"huge": Instance(16, 2000, 1024)})
    with pytest.raises(UsageError, match="does not hold for batches of 16384 samples"):
        model.iterations({"huge": 2}, 0.8)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(UsageError, match=r"does not know instance type 'p4d'; it knows p3\.2xl"):
        published().rate({"p4d": 1})


def edited(tmp_path: Path, before: str, after: str) -> Path:
    """The shipped profile with one change."""
    text = (Path(profiles.__file__).parents[1] / "data" / "spotdnn-profile.yaml").read_text()
    assert before in text
    path = tmp_path / "profile.yaml"
    path.write_text(text.replace(before, after))
    return path


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("server_mbps: 1200", "server_mbps: -5", "line 11: server_mbps is -5 MB/s, expected more"),
        ("required_mbps: 142", "required_mbps: fast", "line 10: required_mbps is 'fast', expected"),
        ("gradient_mb: 11.5", "gradient: 11.5", "gradient is not known here; did you mean grad"),
        ("a1: 0.8", "a1: 0", "contention.a1 is 0, expected more than 0"),
        ("gpus: 2,", "gpus: 2.5,", r"instances.g3.8xl.gpus is 2.5, expected a whole number"),
        ("per_second: 2115", "per_second: 9e8", r"p2.8xl has no time left to compute"),
        (", batch_per_gpu: 512}", "}", "has no batch_per_gpu, and there is no batch to compute"),
        ("model: spotdnn", "model: spotdn", "model is 'spotdn', expected spotdnn or queue or ring"),
    ],
)
def test_an_impossible_profile_is_refused(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        profiles.load(edited(tmp_path, before, after))
