"""`spotmpi bench curves`: how curves are compared, and that it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi import cli
from spotmpi.bench.pytorch import curves
from spotmpi.bench.pytorch.curves import Way


def cell(
    lost: int, curve: list[tuple[int, float]], sampler: str = "ElasticSampler"
) -> dict[str, Any]:
    return {"seed": 1, "lost": lost, "sampler": sampler, "deaths": [], "curve": curve}


CALM = [
    cell(0, [(0, 4.6), (100, 2.0), (200, 1.6)], "DistributedSampler"),
    cell(0, [(0, 4.5), (100, 2.2), (200, 1.5)], "DistributedSampler"),
]


def test_curves_are_compared_where_as_many_samples_were_used() -> None:
    """The highest at 50, 100 and 150 samples are 3.35, 2.2 and 1.85."""
    good = cell(1, [(0, 5.0), (50, 3.3), (150, 1.85), (200, 1.55)])
    assert curves.above(good, CALM) == (0.0, 0.0)
    rises = cell(1, [(0, 4.6), (50, 3.45), (100, 2.1), (200, 1.6)])
    assert curves.above(rises, CALM) == pytest.approx((0.1, 0.0))
    ends_early = cell(1, [(0, 4.6), (150, 1.8)])
    assert curves.above(ends_early, CALM) == pytest.approx((0.0, 0.2))


def test_a_killed_training_is_to_be_as_good_as_the_unharmed() -> None:
    good, bad = cell(1, [(0, 4.6), (200, 1.3)]), cell(1, [(0, 4.6), (200, 1.7)])
    assert all(aim.holds for aim in curves.aims([*CALM, good]))
    on_way, at_end = curves.aims([*CALM, good, bad])
    assert not on_way.holds
    assert "1 killed, ElasticSampler: a loss is never above all of 2 unharmed" in on_way.text
    assert "so in 1 of 2, 0.100 above at most" in on_way.text
    assert not at_end.holds
    assert at_end.text.endswith("so in 1 of 2")
    early = cell(1, [(0, 4.6), (150, 1.8)], "DistributedSampler")
    assert [aim.holds for aim in curves.aims([*CALM, early])] == [True, False]
    assert not list(curves.aims([good]))


def test_of_each_seed_there_is_an_unharmed_one_and_two_for_each_number_of_lost_workers() -> None:
    found = curves.ways([1, 2])
    assert list(map(str, found)) == [
        "unharmed",
        "1 killed, DistributedSampler",
        "1 killed, ElasticSampler",
        "2 killed, DistributedSampler",
        "2 killed, ElasticSampler",
    ]


def test_deaths_are_drawn_and_the_first_worker_is_among_them() -> None:
    for seed in range(50):
        one, two = curves.deaths(4, 1, 2, seed), curves.deaths(4, 2, 2, seed)
        assert one[0] in two
        assert two[0][1] < two[1][1]
        assert len({worker for worker, _ in two}) == 2
        assert max(step for _, step in curves.deaths(8, 7, 1, seed)) < 6540 // 16 // 8
    assert any(curves.deaths(4, 1, 2, seed)[0][0] == 0 for seed in range(1, 6))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lost", "4"], "fewer are lost than --workers"),
        (["--epochs", "0"], "1 or more"),
        (["--seeds", "1", "1"], "each once"),
        (["--workers", "40"], "give more --epochs"),
        (["--plot", "/nowhere/x.png"], "no such folder"),
    ],
)
def test_what_measures_nothing_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="no torch: python -m pip install torch")
    assert cli.main(["bench", "curves", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.matrix
def test_trainings_run_and_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="no torch: python -m pip install torch")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    file, plot = tmp_path / "curves.json", tmp_path / "curves.png"
    options = ["--workers", "3", "--lost", "1", "--epochs", "1", "--seeds", "1"]
    assert cli.main(["bench", "curves", *options, "--json", str(file), "--plot", str(plot)]) == 0
    found = json.loads(file.read_text())
    assert not found["failures"]
    assert [(one["lost"], one["sampler"]) for one in found["cells"]] == [
        tuple(way) for way in (Way(0, "DistributedSampler"), *curves.ways([1])[1:])
    ]
    calm, lossy, elastic = (one["curve"] for one in found["cells"])
    assert calm[0][0] == 0
    assert calm[0][1] > calm[-1][1] + 1
    assert lossy[-1][0] < elastic[-1][0]
    assert plot.stat().st_size > 10_000
