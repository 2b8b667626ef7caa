"""``bench allreduce``: real hosts, real sums, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.bench import allreduce, network
from spotmpi.bench.allreduce import Measured


def test_a_row_says_what_the_line_needs_and_which_targets_hold() -> None:
    seconds, narrow = [0.11, 0.12], {"bf16": [0.06], "int8": [0.05]}
    fast = Measured((1, 1, 1), "1gbit", 10_000_000, [0.3, 0.2], seconds, narrow)
    row, line, mpi, bf16, int8 = allreduce.lines(fast)
    assert row.split() == ["3", "1gbit", "10", "|", "106.7", "115.0", "250.0"]
    assert line.split() == ["holds", "within", "1.10", "of", "the", "line:", "1.08"]
    assert mpi.split()[0] == "holds"
    assert bf16.strip() == "holds   bf16 1.8 times faster than float32: 1.92, in 60.0 ms"
    assert int8.strip() == "MISSED  int8 3.3 times faster than float32: 2.30, in 50.0 ms"
    slow = Measured((2, 1, 1, 1), "unlimited", 4_000_000, [0.3], [0.2], {})
    row, mpi = allreduce.lines(slow)
    assert row.split() == ["4", "unlimited", "4", "|", "-", "200.0", "300.0"]
    assert mpi.split()[0] == "MISSED"


@pytest.mark.skipif(network.missing() is not None, reason=str(network.missing()))
def test_sums_between_hosts_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "allreduce.json"
    arguments = ["--hosts", "2", "--workers", "1", "2", "--mb", "4", "--turns", "1"]
    arguments += ["--narrow", "bf16", "int8"]
    assert cli.main(["bench", "allreduce", *arguments, "--json", str(file)]) == 0
    (cell,) = json.loads(file.read_text())["cells"]
    assert cell["workers"] == [1, 2]
    # The links were limited: 4 MB take 32 ms, but for what may go at once.
    assert min(cell["spotmpi_s"]) > 0.02
    assert len(cell["bf16_s"]) == len(cell["int8_s"]) == 1


def test_a_rate_that_tc_does_not_know_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "allreduce", "--rates", "fast"]) == 2
    said = capsys.readouterr().err
    assert "fast is no rate" in said or "hosts cannot be made here" in said
