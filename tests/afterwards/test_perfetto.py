"""`spotmpi why --perfetto`: what a viewer of timelines is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi import cli
from spotmpi.afterwards.perfetto import perfetto
from spotmpi.trace.interruptions import story
from spotmpi.trace.records import Record
from tests.trace.traced import changed, trace

AHEAD = 5000.0
"""Seconds by which the clock of the second host is ahead."""


def timed() -> list[Record]:
    """On two hosts; worker 2 is on the second."""
    records = changed(trace(), "start", 0, hosts=["a", "a", "b"])
    for worker in (0, 2):
        steps = list(range(10))
        known = {"script_ms": [4.0] * 10, "round_ms": [6.0] * 10}
        end = 100.1 + AHEAD * (worker == 2)
        told = {"worker": worker, "steps": steps, "committed": end, **known}
        records.append({"event": "timing", "at": end, **told})
    return [
        {**one, "at": one["at"] + AHEAD}
        if one["event"] == "recovered" and one["worker"] == 2
        else one
        for one in records
    ]


def events(records: list[Record], kind: str) -> list[dict[str, Any]]:
    found = json.loads(perfetto(story(records)))["traceEvents"]
    return [one for one in found if one["ph"] == kind]


def test_each_worker_is_a_thread_of_its_host() -> None:
    named = {(one["name"], one["tid"]): one for one in events(timed(), "M") if one["pid"] > 1}
    hosts = {one["args"]["name"] for one in named.values() if one["name"] == "process_name"}
    assert all(name in {n for _, n in named} for name in (0, 2))
    processes = [one for one in events(timed(), "M") if one["name"] == "process_name"]
    pids = {one["pid"]: one["args"]["name"] for one in processes}
    assert pids[named["thread_name", 0]["pid"]] == "host a (its clock counts)"
    assert pids[named["thread_name", 2]["pid"]].startswith("host b (its clock \u00b16.00 ms")
    assert hosts


def test_clocks_are_aligned() -> None:
    rounds = [one for one in events(timed(), "X") if one["name"] == "round"]
    of = {w: [one["ts"] for one in rounds if one["tid"] == w] for w in (0, 2)}
    assert len(of[0]) == 10
    assert of[0] == pytest.approx(of[2], abs=1e-3 * 1e6 * 6)
    assert min(of[0]) == pytest.approx(4000.0, abs=1)
    assert {one["dur"] for one in rounds} == {6000.0}


def test_a_recovery_is_split_into_its_parts_on_each_survivor() -> None:
    parts = [one for one in events(timed(), "X") if one["name"] == "rebuilding"]
    assert {one["tid"] for one in parts} == {0, 2}
    killed = [one for one in events(timed(), "X") if one["name"] == "killed"]
    assert [one["args"]["why"] for one in killed] == ["SIGKILL; retry"]


def threads(records: list[Record]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Of each, its slices as they stand in the file: from when to when."""
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in events(records, "X"):
        slices = found.setdefault((one["pid"], one["tid"]), [])
        slices.append((one["ts"], one["ts"] + one["dur"]))
    return found


def test_nothing_is_before_zero_where_viewers_drop_it() -> None:
    early = changed(timed(), "step", 0, seconds=0.001)
    begun = [one["ts"] for kind in "XC" for one in events(early, kind)]
    assert min(begun) == 0
    assert all(isinstance(one, int) for one in begun)


@pytest.mark.parametrize("script_ms", [4.0, 4.0004, 4.1, 5.5, 30.0])
def test_slices_of_a_thread_hold_each_other_or_do_not_meet(script_ms: float) -> None:
    records = timed()
    for one in records:
        if one["event"] == "timing":
            one["script_ms"] = [script_ms] * 10
    for slices in threads(records).values():
        open_until: list[float] = []
        assert slices == sorted(slices, key=lambda one: (one[0], -one[1]))
        for began, ended in slices:
            while open_until and open_until[-1] <= began:
                open_until.pop()
            assert not open_until or ended <= open_until[-1]
            open_until.append(ended)


def test_it_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "run.jsonl", tmp_path / "x.json"
    path.write_text("".join(json.dumps(one) + "\n" for one in timed()))
    assert cli.main(["why", str(path), "--perfetto", str(out)]) == 0
    assert json.loads(out.read_text())["displayTimeUnit"] == "ms"
    assert "goodput" in capsys.readouterr().out
    for wrong, sentence in (("x.jsonl", "ends in .json"), ("no/x.json", "cannot be written")):
        assert cli.main(["why", str(path), "--perfetto", str(tmp_path / wrong)]) == 2
        assert sentence in capsys.readouterr().err
