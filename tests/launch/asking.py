"""Asking jobs that run how they stand, and finding their processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from spotmpi import job_folder
from spotmpi.launch.commands import client
from spotmpi.launch.control_messages import Report
from spotmpi.launch.head.control_socket import DESK
from tests.running import LIMIT, Running


def folder_of(running: Running) -> Path:
    """The folder of a job that has said something: of all here it is that of its mpirun."""
    processes = [pid for one in running.children(running.pid) for pid in running.children(one)]
    for pid in processes:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for variable in environ:
            if variable.startswith(b"SPOTMPI_JOB="):
                folder = job_folder.home() / os.fsdecode(variable.partition(b"=")[2])
                if (folder / DESK).exists():
                    return folder
    pytest.fail(f"no folder among {processes}")


def until(folder: Path, condition: Any) -> Report:
    """Ask for the status until it is so."""
    deadline = time.monotonic() + LIMIT
    while not condition(status := client.status(folder)):
        assert time.monotonic() < deadline, status
    return status


def states(status: Report) -> list[str]:
    return [worker.state for worker in status.workers]


def step(number: int) -> Any:
    return lambda status: (status.step or 0) >= number


def below(running: Running) -> list[int]:
    """All processes of a job."""
    found = running.children(running.pid)
    for pid in found:
        found += running.children(pid)
    return found


def _file_of(pid: int, name: str) -> bytes:
    """What the kernel says of a process; nothing if it is gone by now."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def wrapper_of(running: Running, worker: int) -> int:
    """Among a job's processes, the one that has a worker for a child."""
    # Its worker looks like it, and may have children; it comes later.
    wrapper, *_ = (
        pid
        for pid in below(running)
        if b"wrapper.py" in _file_of(pid, "cmdline")
        and f"OMPI_COMM_WORLD_RANK={worker}".encode() in _file_of(pid, "environ").split(b"\0")
        and running.children(pid)
    )
    return wrapper


def worker_of(running: Running, worker: int) -> int:
    """The process of a worker."""
    (pid,) = running.children(wrapper_of(running, worker))
    return pid
