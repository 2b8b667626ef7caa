"""The training of these tests: what is started, how far it is, and that it lost nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from spotmpi.trace import records as trace
from spotmpi.trace.replay import check_exactly_once, check_replicas
from tests.patience import NEVER_SILENT
from tests.slurm.cluster import Cluster

__all__ = [
    "JOBS",
    "PYTHON",
    "SCRIPT",
    "TRACED",
    "check",
    "events",
    "nothing_left_on",
    "resumed",
    "steps",
    "until_step",
]

_ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = _ROOT / "tests" / "chaos" / "script.py"
JOBS = _ROOT / "jobs" / "slurm"
PYTHON = {"PYTHON": sys.executable}
"""For the scripts in jobs/slurm: which interpreter has spotmpi."""

TRACED = (*NEVER_SILENT, "--trace", "trace")
"""A test in which a node falls silent says for how long it may."""

_SAMPLES = 331
"""Of the script's data, tests/chaos/model.py."""


def steps(cluster: Cluster) -> int:
    """Steps in the trace so far."""
    file = cluster.folder / "trace"
    return file.read_text().count('"event":"step"') if file.exists() else 0


def until_step(cluster: Cluster, step: int) -> None:
    """Wait until the trace has so many steps."""
    cluster.until(lambda: steps(cluster) >= step, f"there is no step {step}")


def check(cluster: Cluster, output: str, passes: int, survivors: set[int]) -> None:
    """They finished, with equal replicas; every sample counted once."""
    finals = [line.split() for line in output.splitlines() if " FINAL " in line]
    assert {int(words[2]) for words in finals} == survivors, output
    assert len({words[3] for words in finals}) == 1
    records = list(trace.read(cluster.folder / "trace"))
    assert records[-1]["event"] == "end"
    check_exactly_once(records, _SAMPLES, passes)
    check_replicas(records)


def events(cluster: Cluster, kind: str) -> list[trace.Record]:
    """What the trace has of this kind."""
    return [record for record in trace.read(cluster.folder / "trace") if record["event"] == kind]


def resumed(cluster: Cluster) -> list[int]:
    """The steps with which training went on after a checkpoint."""
    return [record["step"] for record in events(cluster, "resume")]


def nothing_left_on(cluster: Cluster, *names: str) -> None:
    """Wait until a training has left nothing on nodes: no process, no file in shared memory.

    Slurm calls a job ended when it has killed its processes, and not when these are gone.
    """
    for name in names:
        cluster.until(
            lambda name=name: not cluster.network.processes(name, "spotmpi"),
            f"processes are left on {name}",
        )
        cluster.until(
            lambda name=name: not cluster.shared_memory(name),
            f"files are left on {name}",
        )
