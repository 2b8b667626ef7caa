"""Planted faults fit the code, and it is said what finds them. What does, `tests.faults` shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.hunt import Copy, compared, hunt, table
from tests.faults.planted import FAULTS, Fault
from tests.running import LIMIT

ROOT = Path(__file__).resolve().parent.parent.parent


def test_each_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(fault.name.isidentifier() for fault in FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1
    compile(text.replace(fault.old, fault.new), fault.file, "exec")


CODE = """
import os
import subprocess

def half(x):
    return x // 2

def double(x):
    return x * 2
"""
TESTS = """
from code_to_test import half

def test_half():
    assert half(4) == 2

def test_what_always_fails():
    assert half(4) == 3
"""
FOUND = Fault("code", "found", "code_to_test.py", "x // 2", "x // 3")
NOT_FOUND = Fault("code", "not_found", "code_to_test.py", "x * 2", "x * 3")
ENDS = Fault("code", "ends_pytest", "code_to_test.py", "return x // 2", "os._exit(1)")
HANGS = "subprocess.run(['sh', '-c', 'echo it hangs > pipe; sleep 1000'], start_new_session=True)"
FILES = ["code_to_test.py", "test_code.py", "test_other_code.py"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some code, and two modules that test it."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "code_to_test.py").write_text(CODE)
    (folder / "test_code.py").write_text(TESTS)
    (folder / "test_other_code.py").write_text(TESTS.replace("== 2", "in (1, 2)"))
    return folder


def test_it_is_said_what_finds_a_fault(project: Path) -> None:
    faults, said = [FOUND, NOT_FOUND, ENDS], []
    known = compared(faults, hunt(project, FILES, faults, ["."], LIMIT, 2, said.append))
    assert [*known["faults"]["found"]["tests"]] == ["test_code.py::test_half"]
    assert known["missed"] == ["not_found"]
    assert [name for name, one in known["faults"].items() if not one["ended"]] == ["ends_pytest"]
    assert known["modules"].keys() == {"test_code.py", "test_other_code.py"}
    assert "test_other_code.py" in known["vain"]
    assert len(said) == 1 + len(faults)
    assert "Found by nothing:\n  not_found\n" in table(known)


def test_a_run_that_hangs_is_cut_off(project: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    fault = FOUND._replace(new=HANGS.replace("pipe", str(pipe)))
    copy = Copy(project, FILES, fault, ["."], tmp_path / "copy")
    assert pipe.read_text() == "it hangs\n"
    assert not copy.end().ended  # and `nothing_left_behind` looks for processes
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["output"]
