"""`spotmpi.bench.measuring.report`: what is written, and what a run ends with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.report import Report
from spotmpi.errors import UsageError


def test_what_was_found_is_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    report = Report("step", file, rate="1gbit")
    with report.measuring("2 workers"):
        report.add({"workers": 2}, ["a row", "its aim"])
        assert json.loads(file.read_text())["cells"] == [{"workers": 2}]
    assert report.close() == 0
    found = json.loads(file.read_text())
    assert (found["bench"], found["rate"], found["cells"]) == ("step", "1gbit", [{"workers": 2}])
    assert found["machine"]["cores"] >= 1
    assert capsys.readouterr().out == "a row\nits aim\n"


def test_a_job_that_fails_is_told_of_and_the_next_one_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report("step", None)
    with report.measuring("2 workers"):
        raise JobFailed("still running after 9 s")
    with report.measuring("4 workers"):
        report.add({"workers": 4}, [])
    assert report.close() == 1
    assert report.failures == ["2 workers: still running after 9 s"]
    assert "FAILED 2 workers" in capsys.readouterr().out


def test_what_does_not_fit_into_memory_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("step", None)
    assert report.has_room(1, "nothing")
    assert not report.has_room(10**15, "8 workers, vgg16")
    assert "left out: 8 workers, vgg16: it takes 1000000.0 GB" in capsys.readouterr().out
    assert report.close() == 0


def test_a_folder_that_is_not_there_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        Report("step", tmp_path / "none" / "found.json")


def test_of_files_that_a_command_named_only_the_names_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["spotmpi", "bench", "step", "--json", str(file), "-n", "2"])
    assert Report("step", file).close() == 0
    found = json.loads(file.read_text())
    assert found["argv"] == ["bench", "step", "--json", "found.json", "-n", "2"]


def test_no_result_that_is_kept_names_a_folder_of_who_made_it() -> None:
    results = Path(__file__).parents[3] / "bench" / "results"
    files = sorted(results.glob("*.json"))
    assert files
    assert [file.name for file in files if re.search(r'"(/|~)', file.read_text())] == []
