"""Job folders are private, and those of the dead are removed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spotmpi import job_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(job_folder, "home", lambda: tmp_path)
    return tmp_path


def test_a_folder_is_its_owners_alone() -> None:
    job, path, lock = job_folder.create(3)
    os.close(lock)
    assert path.name == job
    assert path.stat().st_mode & 0o777 == 0o700
    assert (path / "deaths").stat().st_size == 24


def test_a_folder_that_somebody_holds_stays(home: Path) -> None:
    _, path, lock = job_folder.create(1)
    job_folder.remove_abandoned()
    assert path.exists()
    second = job_folder.hold(path)
    os.close(lock)
    job_folder.remove_abandoned()
    assert path.exists()
    os.close(second)
    (home / "spotmpi-of-nobody").symlink_to(home.parent)
    (home / "something-else").mkdir()
    job_folder.remove_abandoned()
    assert not path.exists()
    assert (home / "something-else").exists()
    assert home.parent.exists()


def test_a_folder_that_is_gone_cannot_be_held(home: Path) -> None:
    with pytest.raises(FileNotFoundError):
        job_folder.hold(home / "nothing")


def test_removing_twice_is_no_error() -> None:
    _, path, lock = job_folder.create(1)
    os.close(lock)
    (path / "below").mkdir()
    (path / "below" / "file").touch()
    job_folder.remove(path)
    job_folder.remove(path)
    assert not path.exists()


def test_a_folder_goes_as_soon_as_nobody_holds_it(home: Path) -> None:
    path, lock = job_folder.make("spotmpi-it")
    threading.Timer(0.05, os.close, [lock]).start()
    job_folder.remove_when_free(path, patience=60)
    assert not path.exists()
    job_folder.remove_when_free(path)
    path, lock = job_folder.make("spotmpi-it")
    job_folder.remove_when_free(path, patience=0.01)
    assert path.exists()
    os.close(lock)
