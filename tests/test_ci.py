"""What CI does with tests that fail (.ci/again.py), and what tests/conftest.py tells it of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

TESTS = """
import subprocess, sys
from pathlib import Path
import pytest

def test_that_passes():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_of_this_process():
    assert not "wrong"

def test_of_a_process():
    said = subprocess.run([sys.executable, "-c", "print('the first time')"], check=True)
    once = Path(__file__).with_name("once")
    there = once.exists()
    once.touch()
    assert there, "not the first time"

@pytest.fixture
def broken():
    yield
    subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)

def test_whose_end_fails(broken):
    pass

@pytest.mark.skip(reason="only root may")
@pytest.mark.parametrize("one", [1, 2])
def test_of_root(one):
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with these tests, the conftest of this one, and CI's scripts."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    # The real one takes a namespace, which is root's.
    (tmp_path / ".ci" / "alone").write_text('exec python "$@"\n')
    for package in ("kernels", "bench", "jobs"):
        (tmp_path / "spotmpi" / package).mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    return tmp_path


def run(project: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | more
    return subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def failures(project: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    """What a run of the tests tells CI, and a reader."""
    file = project / "failures.json"
    done = run(
        project, "-m", "pytest", "-p", "no:cacheprovider", *options, SPOTMPI_FAILURES=str(file)
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return json.loads(file.read_text()), done.stdout


def again(project: Path, failed: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    (project / "failures.json").write_text(json.dumps(failed))
    return run(project, ".ci/again.py", "failures.json")


@pytest.mark.parametrize("streams", [(), ("-n", "2")], ids=["one stream", "two streams"])
def test_ci_is_told_what_failed_and_whether_it_had_started_a_process(
    project: Path, streams: tuple[str, ...]
) -> None:
    failed, said = failures(project, *streams)
    known = {one["test"].partition("::")[2]: one["processes"] for one in failed}
    assert known == {
        "test_of_this_process": False,
        "test_of_a_process": True,
        "test_whose_end_fails": True,
    }
    outputs = {one["test"].partition("::")[2]: one["output"] for one in failed}
    assert "not the first time" in outputs["test_of_a_process"]
    assert "the first time" in outputs["test_of_a_process"]
    assert "Tests left out: 2 (only root may)" in said


def test_one_that_passes_alone_is_flaked_and_its_first_failure_is_shown(project: Path) -> None:
    failed, _ = failures(project, "-k", "of_a_process")
    done = again(project, failed)
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, flaked = done.stdout.partition("FLAKED tests/test_some.py::test_of_a_process\n")
    assert "AssertionError: not the first time" in flaked


def test_one_that_fails_twice_has_failed(project: Path) -> None:
    failed, _ = failures(project, "-k", "whose_end_fails")
    done = again(project, failed)
    assert done.returncode == 1
    assert "FAILED twice: tests/test_some.py::test_whose_end_fails" in done.stdout


def test_what_starts_no_process_and_what_fails_often_has_no_second_try(project: Path) -> None:
    one = {"test": "tests/test_some.py::test_that_passes", "output": "", "processes": True}
    assert again(project, [one, one]).returncode == 0
    for failed, why in (
        ([one, one, one], "3 failed, not 2 at most"),
        ([one, one | {"processes": False}], "test_that_passes starts no process"),
        ([], "0 failed, not 2 at most"),
    ):
        done = again(project, failed)
        assert done.returncode == 1
        assert why in done.stderr
