"""Each worker's file is private and complete, or says what it lacks; training goes on anyhow."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.launch.showing.worker_logs import Logs


@pytest.fixture
def said() -> list[str]:
    """What the user was told."""
    return []


@pytest.fixture
def logs(tmp_path: Path, said: list[str]) -> Iterator[Logs]:
    (tmp_path / "logs").mkdir()
    made = Logs(tmp_path / "logs", said.append)
    yield made
    made.close()


def test_each_worker_has_a_private_file_that_is_appended_to(logs: Logs, tmp_path: Path) -> None:
    (tmp_path / "logs" / "worker-1.log").write_text("before\n")
    logs.of("worker-0").write(b"zero\n")
    logs.of("worker-1").write(b"one\n")
    logs.of("worker-0").write(b"more\n")
    file = tmp_path / "logs" / "worker-0.log"
    assert file.read_text() == "zero\nmore\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "logs" / "worker-1.log").read_text() == "before\none\n"


def test_a_file_that_was_removed_is_begun_anew(logs: Logs, said: list[str], tmp_path: Path) -> None:
    file = tmp_path / "logs" / "worker-0.log"
    logs.of("worker-0").write(b"zero\n")
    file.unlink()
    logs.of("worker-0").write(b"one\n")
    assert file.read_text() == "one\n"
    assert said == []


def test_a_removed_folder_is_said_once(logs: Logs, said: list[str], tmp_path: Path) -> None:
    logs.of("worker-0").write(b"zero\n")
    shutil.rmtree(tmp_path / "logs")
    for worker in (0, 1, 0):
        logs.of(f"worker-{worker}").write(b"lost\n")
    (told,) = said
    assert "worker-0.log cannot be written (No such file or directory); the training goes" in told
    (tmp_path / "logs").mkdir()
    logs.of("worker-0").write(b"back\n")
    expected = "\nspotmpi: 10 bytes are missing here\nback\n"
    assert (tmp_path / "logs" / "worker-0.log").read_text() == expected
    assert len(said) == 1


def test_a_full_disk_is_said_once_and_leaves_no_half_line(
    logs: Logs, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, 8

    def scarce(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[:room])
        room -= written
        return written

    monkeypatch.setattr("spotmpi.launch.showing.worker_logs.os.write", scarce)
    for line in (b"first\n", b"second\n", b"third\n"):
        logs.of("worker-0").write(line)
    file = tmp_path / "logs" / "worker-0.log"
    assert file.read_text() == "first\n"
    room = 1000
    logs.of("worker-0").write(b"fourth\n")
    assert file.read_text() == "first\n\nspotmpi: 13 bytes are missing here\nfourth\n"
    (told,) = said
    assert "No space left on device" in told


def test_neither_a_link_nor_a_pipe_is_written_to(
    logs: Logs, said: list[str], tmp_path: Path
) -> None:
    (tmp_path / "logs" / "worker-0.log").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "logs" / "worker-1.log")
    logs.of("worker-0").write(b"zero\n")
    logs.of("worker-1").write(b"one\n")
    assert not (tmp_path / "precious").exists()
    assert len(said) == 1
