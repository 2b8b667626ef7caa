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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with these tests, the conftest of this one, and CI's scripts."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    # The real one takes a namespace, which is root's.
    (folder / ".ci" / "alone").write_text('exec python "$@"\n')
    for package in ("kernels", "bench", "jobs"):
        (folder / "spotmpi" / package).mkdir(parents=True)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_some.py").write_text(TESTS)
    return folder


def run(project: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | more
    return subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,  # it only ends a hang
        check=False,
    )


def first_run(project: Path, *options: str) -> tuple[dict[str, dict[str, Any]], str]:
    """What a run of the tests tells CI of each that failed, and a reader."""
    file = project / "failures.json"
    (project / "tests" / "once").unlink(missing_ok=True)
    done = run(
        project, "-m", "pytest", "-p", "no:cacheprovider", *options, SPOTMPI_FAILURES=str(file)
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed = json.loads(file.read_text())
    return {one["test"].partition("::")[2]: one for one in failed}, done.stdout


@pytest.fixture(scope="module")
def failed(project: Path) -> dict[str, dict[str, Any]]:
    """What failed in one stream."""
    return first_run(project)[0]


def again(project: Path, *failed: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (project / "failures.json").write_text(json.dumps(failed))
    return run(project, ".ci/again.py", "failures.json")


@pytest.mark.parametrize("streams", [(), ("-n", "2")], ids=["one stream", "two streams"])
@pytest.mark.first("two streams")
def test_ci_is_told_what_failed_and_whether_it_had_started_a_process(
    project: Path, streams: tuple[str, ...]
) -> None:
    failed, said = first_run(project, *streams)
    assert {name: one["processes"] for name, one in failed.items()} == {
        "test_of_this_process": False,
        "test_of_a_process": True,
        "test_whose_end_fails": True,
    }
    assert "not the first time" in failed["test_of_a_process"]["output"]
    assert "Tests left out: 2 (only root may)" in said


def test_one_that_passes_alone_is_flaked_and_one_that_fails_twice_has_failed(
    project: Path, failed: dict[str, dict[str, Any]]
) -> None:
    done = again(project, failed["test_of_a_process"], failed["test_whose_end_fails"])
    assert done.returncode == 1
    _, _, flaked = done.stdout.partition("FLAKED tests/test_some.py::test_of_a_process\n")
    assert "AssertionError: not the first time" in flaked
    assert "FAILED twice: tests/test_some.py::test_whose_end_fails" in flaked
    assert again(project, failed["test_of_a_process"]).returncode == 0


def test_what_starts_no_process_and_what_fails_often_has_no_second_try(
    project: Path, failed: dict[str, dict[str, Any]]
) -> None:
    one = failed["test_of_a_process"]
    for some, why in (
        ([one, one, one], "3 failed, not 2 at most"),
        ([one, failed["test_of_this_process"]], "test_of_this_process starts no process"),
        ([], "0 failed, not 2 at most"),
    ):
        done = again(project, *some)
        assert done.returncode == 1
        assert why in done.stderr
