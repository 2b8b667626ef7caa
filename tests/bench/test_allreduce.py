"""``bench allreduce``: real hosts, real sums, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spotmpi import cli
from spotmpi.bench import allreduce
from spotmpi.bench.allreduce import Measured
from spotmpi.bench.measuring import network
from spotmpi.bench.scripts import gloo, reducing


def test_a_row_says_what_the_line_needs_and_which_aims_are_reached() -> None:
    times = {"mpi": [0.3, 0.2], "spotmpi": [0.11, 0.12], "bf16": [0.06, 0.06], "int8": [0.05, 0.05]}
    fast = Measured((1, 1, 1), "1gbit", "10", 10_000_000, times)
    row, line, mpi, bf16, int8 = map(str, allreduce.lines(fast))
    assert row.split() == ["1+1+1", "1gbit", "10", "|", "106.667", "115.000", "250.000", "-"]
    assert line.split() == ["holds", "within", "1.10", "of", "the", "line:", "1.08"]
    assert mpi.split()[0] == "holds"
    assert bf16.strip() == "holds   bf16 1.8 times faster than float32: 1.92, in 60.0 ms"
    assert int8.strip() == "MISSED  int8 3.3 times faster than float32: 2.30, in 50.0 ms"
    slow = Measured((2, 1), "unlimited", "4", 4_000_000, {"mpi": [0.3], "spotmpi": [0.2]})
    row, mpi = map(str, allreduce.lines(slow))
    assert row.split() == ["2+1", "unlimited", "4", "|", "-", "200.000", "300.000", "-"]
    assert mpi.split()[0] == "MISSED"


def test_on_one_host_sums_are_compared_with_mpi_and_gloo_and_copies() -> None:
    # 100 MB copied in 8 ms: 200 MB read and written; so 3 times 102.4 MB take 12.3 ms at least.
    times = {"mpi": [0.04], "gloo": [0.1], "spotmpi": [0.016], "copy": [0.008]}
    large = Measured((2,), None, "102.4", 102_400_000, times)
    assert large.floor == pytest.approx(0.012288)
    row, mpi, by_gloo, copies = map(str, allreduce.lines(large))
    assert row.split() == ["2", "memory", "102.4", "|", "12.288", "16.000", "40.000", "100.000"]
    assert mpi.strip() == "MISSED  4 times faster than MPI: 2.50"
    assert by_gloo.strip() == "MISSED  8 times faster than gloo: 6.25"
    assert copies.strip() == "holds   at 60% of the speed of copies: 77%"
    times = {"mpi": [0.04], "spotmpi": [0.041], "copy": [0.008]}
    (small,) = Measured((2,), None, "0.04", 40_000, times).aims
    assert small.holds
    assert small.text.startswith("at most 1.05 times MPI's: 1.0")


def test_sums_that_are_wrong_are_found() -> None:
    arrays = [np.empty(10_000, np.float32), np.empty(3, np.float32)]
    reducing.fill(arrays, 1)
    assert reducing.off_by(arrays, 1) == 0
    assert reducing.off_by(arrays, 3) > 0.5
    arrays[0][9_999] += 0.01 * arrays[0].max()
    assert reducing.off_by(arrays, 1) == pytest.approx(0.01, rel=1e-2)


def test_a_models_gradients_are_summed_in_buckets() -> None:
    sizes = reducing.buckets("resnet50")
    assert sum(sizes) == 25_583_592
    assert 4 <= len(sizes) <= 8
    assert reducing.buckets("4000") == [1000]


@pytest.mark.matrix
def test_sums_on_one_host_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "here.json"
    arguments = ["--here", "2", "--mb", "0.04", "--turns", "2", "--json", str(file)]
    assert cli.main(["bench", "allreduce", *arguments]) == 0
    (cell,) = json.loads(file.read_text())["cells"]
    assert (cell["workers"], cell["rate"], cell["bytes"]) == ([2], None, 40_000)
    sides = ("mpi", "spotmpi", "copy", *(["gloo"] if gloo.there() else []))
    for side in sides:
        assert len(cell[f"{side}_s"]) == 2
        assert min(cell[f"{side}_s"]) > 0
    assert ("torch is not installed" in capsys.readouterr().out) == (not gloo.there())


@pytest.mark.skipif(network.missing() is not None, reason=str(network.missing()))
@pytest.mark.matrix
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


def test_what_does_not_fit_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "allreduce", "--here", "1000", "--mb", "400"]) == 0
    assert "left out: 1000 workers" in capsys.readouterr().out


def test_a_rate_that_tc_does_not_know_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "allreduce", "--rates", "fast"]) == 2
    said = capsys.readouterr().err
    assert "fast is no rate" in said or "hosts cannot be made here" in said
