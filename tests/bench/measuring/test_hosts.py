"""`spotmpi.bench.measuring.hosts`, small: that hosts were lost as it says. Never a timing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from spotmpi.bench import recovery
from spotmpi.bench.measuring import hosts
from spotmpi.bench.measuring.network import missing
from spotmpi.errors import UsageError
from tests.patience import FOUND_SILENT


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    recovery.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.matrix
def test_each_kind_of_loss_is_recovered_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (why := missing()) is not None:
        pytest.skip(why)
    file = tmp_path / "hosts.json"
    size = ("--hosts", "2", "--runs", "1", *FOUND_SILENT)
    assert recovery.main(arguments(*size, "--json", str(file))) == 0
    results = json.loads(file.read_text())
    assert results["failures"] == []
    found = {cell["loss"]: cell["total_ms"] for cell in results["cells"]}
    assert set(found) == {"process", "killed", "silent"}
    assert all(len(samples) == 1 and samples[0] > 0 for samples in found.values())
    assert found["silent"][0] > 500  # it is no silence before most of the limit has passed
    assert "2 hosts, silent" in capsys.readouterr().out


def test_targets_are_held_against_the_baseline_of_the_same_run() -> None:
    said = hosts.page(
        {
            (3, "process"): [20.0, 30.0, 40.0],
            (3, "killed"): [45.0, 50.0, 60.0],
            (3, "silent"): [220.0, 230.0, 451.0],
        }
    )
    assert "    3       6 killed     3         50      60" in said
    assert "  holds   3 hosts: killed +20 ms <= process + 20 ms" in said
    assert "  MISSED  3 hosts: silent, median 230 < 300, max 451 < 450" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hosts", "1"], "one host that is lost leaves none|hosts are made by root|not found"),
        (["--hosts", "3", "--lost", "2"], "--hosts goes with --runs, --detect-ms and --json only"),
        (["--detect-ms", "300"], "--detect-ms goes with --hosts"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recovery.main(arguments(*words))
