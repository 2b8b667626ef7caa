"""`spotmpi.bench.exposed`: what is made of times, and a small run on real hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi.bench.exposed import Run, exposed, lines
from spotmpi.bench.measuring.network import missing

STREAMING = "diloco:h=64,fragments=4,delay=4"


def over(*seconds: float) -> dict[int, list[float]]:
    """Ten steps of so many seconds, of each worker."""
    return {worker: [5 + step * one for step in range(11)] for worker, one in enumerate(seconds)}


def test_the_worker_that_lost_most_counts() -> None:
    assert exposed(over(0.2, 0.21, 0.2), 0.2) == pytest.approx(0.05)
    stopped_once = {0: [0.0, 0.2, 0.4, 0.9, 1.1]}
    assert exposed(stopped_once, 0.2) == pytest.approx(0.375)


def test_the_table_has_shares_and_what_was_sent_beside_synchronous_sgd() -> None:
    runs = {
        "localsgd:h=1000000": {"steady": [Run(over(0.2, 0.2), 0.0)]},
        "ssgd": {"steady": [Run(over(0.5, 0.5), 100.0)], "changing": [Run(over(0.6, 0.5), 120.0)]},
        STREAMING: {
            "steady": [Run(over(0.201, 0.202), 0.5)],
            "changing": [Run(over(0.206, 0.204), 0.7)],
        },
    }
    alone, _, ssgd, streaming, *aims = lines(runs)
    assert alone == "alone a step takes 200.0 ms"
    assert ssgd.split() == ["ssgd", "150.00%", "200.00%", "100.000", "1.0000"]
    assert streaming.split() == [STREAMING, "1.00%", "3.00%", "0.500", "0.0050"]
    assert ["holds" in aim for aim in aims] == [True, False]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.matrix
def test_hosts_come_and_go_under_way(run_spotmpi, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    # On a busy machine a host may take ten seconds to come, and it has three quarters of the steps.
    given = ["--hosts", "2", "--turns", "1", "--steps", "256", "--ms", "100", "--rate", "100mbit"]
    more = ["--params", "50000", "--strategies", STREAMING, "--json", file]
    done = run_spotmpi(["bench", "exposed", *given, *more], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads(file.read_text())["runs"]
    (steady,), (changing,) = runs[STREAMING]["steady"], runs[STREAMING]["changing"]
    assert steady["over"].keys() == {"0", "1"}
    assert changing["over"].keys() == {"0", "2"}, "worker 1 is lost, and worker 2 has come"
    assert len(changing["over"]["2"]) < len(changing["over"]["0"])
    # In 64 steps all of the model once, 200 kB; and what holds the job together.
    assert 0.003 < steady["sent"] < 0.05
    assert f"{STREAMING}, changing: at most 2% exposed" in done.stdout
