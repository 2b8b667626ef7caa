"""Models that workers of several hosts fetch, over real lines, while hosts and workers vanish."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from spotmpi.bench.measuring.network import Network
from tests import learning
from tests.hosts import gathering, gossip, mailing
from tests.patience import FOUND_SILENT, NEVER_SILENT
from tests.running import Running


def train(job: Running, file: Path, steps: int) -> None:
    """Return once the job has trained ``steps`` more steps."""
    until = learning.steps(file) + steps
    while learning.steps(file) < until:
        assert job.alive, f"{job.wait()}: {job.output}"


@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_models_are_fetched_past_the_loss_of_a_host_and_of_a_newcomer(
    network: Callable[[int], Network], how: str
) -> None:
    """Any of three hosts' by any other; every worker is in the middle of an answer all the time."""
    there = network(3)
    file = there.folder / "trace.jsonl"
    hosts = there.hosts_file("h1 slots=1", "h2 slots=2", "h3 slots=1")
    command = there.in_head(
        *(sys.executable, "-m", "spotmpi", "run", "--hosts", hosts, "--trace", file),
        *(NEVER_SILENT if how == "killed" else FOUND_SILENT),
        Path(gossip.__file__),
    )
    job = Running(command, there.folder, environ=there.environ)
    try:
        for one in range(4):
            for other in range(4):
                if one != other:
                    job.until(f"FETCHED {one} of {other}")
        os.kill(min(there.workers("h2")), signal.SIGKILL)
        job.until("worker 4 on h2 has joined")
        for one in (0, 3):
            job.until(f"FETCHED {one} of 4")
            job.until(f"FETCHED 4 of {one}")
        job.until("FETCHED 4 of [12]")
        if how == "killed":
            there.kill("h3")
        else:
            there.link("h3", "down")
        job.until("worker 3 ")
        train(job, file, 30)
        (there.folder / "enough").touch()
        assert job.wait() == 0, job.output
    finally:
        job.close()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("script", "said"),
    [(gossip, "FETCHED"), (mailing, "HAD"), (gathering, "HAD")],
    ids=["models", "messages", "gathers"],
)
def test_workers_die_one_after_another_in_the_middle_of_large_messages(
    network: Callable[[int], Network], script: ModuleType, said: str
) -> None:
    """What they have sent comes late, for their kernels send on for half a second, and counts for
    nothing else. What is sent to them breaks off, and nothing else does."""
    there = network(6)
    there.limit("50mbit", "64kb")
    file = there.folder / "trace.jsonl"
    hosts = there.hosts_file(*(f"{name} slots=1" for name in there.names))
    command = there.in_head(
        *(sys.executable, "-m", "spotmpi", "run", "--hosts", hosts, "--no-replace"),
        *(*NEVER_SILENT, "--trace", file, Path(script.__file__ or "")),
    )
    job = Running(command, there.folder, environ=there.environ)
    try:
        job.until(f"{said} 0 of 5")
        for victim in (5, 4, 3, 2):
            train(job, file, 8)
            os.kill(min(there.workers(f"h{victim + 1}")), signal.SIGKILL)
        job.until("worker 2 ")
        train(job, file, 8)
        (there.folder / "enough").touch()
        assert job.wait() == 0, job.output
    finally:
        job.close()
