from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.bench.adaptive import aims, page, shares, throughputs
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.network import missing
from spotmpi.bench.scripts.adapting import policy_of
from spotmpi.policies import Best, Fixed, ThroughputBelow


def step(at: float, workers: int, seconds: float, weight: int = 8) -> dict[str, Any]:
    return {
        "event": "step",
        "at": at,
        "seconds": seconds,
        "workers": [*range(workers)],
        "contributions": [{"weight": weight}] * workers,
    }


def test_throughput_is_of_the_second_half_and_of_steps_of_so_many_workers() -> None:
    records = [
        {"event": "start", "at": 0.0},
        step(1.0, 1, 9.0),  # in the first half
        step(6.0, 1, 0.1),
        step(7.0, 1, 0.3),
        step(16.0, 1, 9.0),  # one had not come yet
        step(17.0, 2, 0.4),
    ]
    found = throughputs(records, {1: 0.0, 2: 10.0, 3: 20.0})
    assert found == pytest.approx({1: 16 / 0.4, 2: 8 / 0.4})
    with pytest.raises(JobFailed, match="no steps of 2 workers"):
        throughputs(records[:4], {1: 0.0, 2: 10.0, 3: 20.0})


CELLS = {
    "ssgd": {1: [10.0, 10.0], 2: [5.0, 5.2], 3: [3.0, 3.0]},
    "adpsgd:control=16": {1: [9.0, 9.0], 2: [8.8, 9.0], 3: [8.7, 8.9]},
    "best": {1: [9.8, 9.9], 2: [8.7, 8.7], 3: [8.0, 8.2]},
}


def test_the_table_shows_shares_of_one_alone() -> None:
    assert shares(CELLS)["best"][3] == pytest.approx([0.8, 0.82])
    found = page(CELLS)
    assert found[1].split() == ["ssgd", "1.00", "0.51", "0.30"]


def test_it_says_whether_the_policy_is_as_good_as_the_best() -> None:
    enough, more = aims(shares(CELLS))
    assert not enough.holds  # 8.1 of 8.8
    assert "0.92" in str(enough)
    assert more.holds
    assert "best is 1.5 times ssgd with 3 hosts: 2.70" in str(more)
    better = {**CELLS, "best": {**CELLS["best"], 3: [8.7, 8.7]}}
    assert [aim.holds for aim in aims(shares(better))] == [True, True]
    assert list(aims(shares({"ssgd": CELLS["ssgd"]}))) == []


def test_ways_are_policies_and_strategies() -> None:
    assert isinstance(policy_of("below"), ThroughputBelow)
    assert isinstance(policy_of("best"), Best)
    assert isinstance(policy_of("diloco:h=16"), Fixed)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.matrix
def test_a_policy_changes_while_hosts_come(run_spotmpi, tmp_path: Path) -> None:
    file, plot = tmp_path / "found.json", tmp_path / "found.png"
    given = ["--hosts", "2", "--turns", "1", "--seconds", "4", "--ms", "20", "--rate", "20mbit"]
    more = ["--params", "50000", "--ways", "ssgd", "below", "--json", file, "--plot", plot]
    done = run_spotmpi(["bench", "adaptive", *given, *more], timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["cells"]["ssgd"].keys() == {"1", "2"}
    ((_, changed),) = found["changes"]["below"][0][:1]
    assert changed == "adpsgd:control=16"
    below, ssgd = (found["cells"][way]["2"][0] for way in ("below", "ssgd"))
    assert below > ssgd
    assert plot.read_bytes().startswith(b"\x89PNG")
