"""For tests of the launcher: jobs that are watched while they run."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.patience import NEVER_SILENT
from tests.running import LIMIT, Running


@pytest.fixture
def ended() -> Callable[[int], bool]:
    """``ended(pid)`` waits until a process has ended (a zombie has), and says if it did in time."""

    def wait(pid: int) -> bool:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([descriptor], [], [], LIMIT)[0])
        finally:
            os.close(descriptor)

    return wait


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Two workers behind an agent, on this host."""
    file = tmp_path / "hosts"
    file.write_text("localhost slots=2\n")
    return file


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """``start("run", "-n", 2, script)`` starts a command and returns it as `Running`.

    Agents of a job may be silent for ever, unless the command says something else.
    """
    started: list[Running] = []

    def start_one(
        *arguments: object,
        command: Sequence[str] = ("-m", "spotmpi"),
        ignore: tuple[int, ...] = (),
    ) -> Running:
        limit = NEVER_SILENT if {"--hosts", "--listen"}.intersection(arguments) else ()
        given = (*arguments[:1], *limit, *arguments[1:])
        words = [sys.executable, *command, *map(str, given)]
        started.append(Running(words, tmp_path, ignore))
        return started[-1]

    yield start_one
    for running in started:
        running.close()
