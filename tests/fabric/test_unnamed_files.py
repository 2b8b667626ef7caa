"""Where MPI's shared memory lies while MPI starts, if nobody has said it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spotmpi import job_folder
from spotmpi.fabric.mpi.unnamed_files import unnamed

PLACE = "OMPI_MCA_btl_sm_backing_directory"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(job_folder, "home", lambda: tmp_path)
    monkeypatch.delenv(PLACE, raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    return tmp_path


def test_it_lies_in_a_private_folder_that_is_gone_when_all_have_started(home: Path) -> None:
    with unnamed():
        folder = Path(os.environ[PLACE])
        assert folder.parent == home
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "sm_segment.host.0.1.0").touch()
        job_folder.remove_abandoned()
        assert folder.exists()
    assert list(home.iterdir()) == []
    assert PLACE not in os.environ


def test_it_is_gone_too_if_mpi_does_not_start(home: Path) -> None:
    with pytest.raises(OSError, match="no MPI"), unnamed():
        raise OSError("no MPI")
    assert list(home.iterdir()) == []


def test_if_the_script_has_started_mpi_before_what_is_mapped_loses_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", sys)
    for name in ("sm_segment.host.0.1.0", "other"):
        (home / name).write_bytes(bytes(4096))
    (home / "sm_segment.host.0.2.0").touch()
    with (
        (home / "sm_segment.host.0.1.0").open("r+b") as ours,
        (home / "other").open("r+b") as other,
        mmap.mmap(ours.fileno(), 4096),
        mmap.mmap(other.fileno(), 4096),
        unnamed(),
    ):
        pass
    assert {path.name for path in home.iterdir()} == {"other", "sm_segment.host.0.2.0"}


def test_what_was_left_of_one_that_was_killed_while_it_started_is_removed(home: Path) -> None:
    _, folder, lock = job_folder.create(0)
    (folder / "sm_segment.host.0.1.0").touch()
    os.close(lock)  # as the kernel does
    with unnamed():
        assert not folder.exists()


def test_where_it_was_said_it_lies_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, "/there")
    with unnamed():
        assert os.environ[PLACE] == "/there"
        assert list(home.iterdir()) == []
    assert os.environ[PLACE] == "/there"


@pytest.mark.parametrize("known", [True, False])
def test_temporary_files_go_there_too_while_mpi_starts_and_then_where_they_did(
    home: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    if known:
        monkeypatch.setenv(PLACE, str(home / "job"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/nowhere")
    with unnamed():
        assert os.environ["TMPDIR"] == os.environ[PLACE]
        tempfile.tempdir = os.environ["TMPDIR"]  # as Python does who asks for a temporary file
    assert os.environ["TMPDIR"] == "/nowhere"
    assert tempfile.tempdir is None
    monkeypatch.delenv("TMPDIR")
    with unnamed():
        pass
    assert "TMPDIR" not in os.environ


@pytest.mark.matrix
def test_an_mpi_without_a_server_leaves_no_session_folder_in_tmpdir(tmp_path: Path) -> None:
    program = (
        "import mpi4py; mpi4py.rc.finalize = False\n"
        "from spotmpi.fabric.mpi.unnamed_files import unnamed\n"
        "with unnamed():\n"
        "    from mpi4py import MPI\n"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []
