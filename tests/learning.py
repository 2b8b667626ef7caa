"""What a job of `tests/launch/scripts/learner.py` is held to, on whatever hosts it was."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from spotmpi.trace import records as trace
from spotmpi.trace.proof import findings
from spotmpi.trace.replay import check_exactly_once, check_replicas

__all__ = ["SCRIPT", "check", "steps"]

SCRIPT = Path(__file__).parent / "launch" / "scripts" / "learner.py"

_SAMPLES = 331
"""Of the script's data, tests/chaos/model.py."""


def steps(file: Path) -> int:
    """In a trace so far."""
    return file.read_text().count('"event":"step"') if file.exists() else 0


def check(output: str, file: Path, survivors: Collection[int]) -> list[trace.Record]:
    """These have finished, with equal replicas; every sample counted once in each pass.

    Returns the records of the trace.
    """
    lines = (line.partition("FINAL ") for line in output.splitlines())
    finals = [said.split() for _, final, said in lines if final]
    assert {int(worker) for worker, _, _ in finals} == set(survivors), output
    ((_, passes),) = {(replica, int(passes)) for _, replica, passes in finals}
    records = list(trace.read(file))
    assert records[-1]["event"] == "end"
    check_exactly_once(records, _SAMPLES, passes)
    check_replicas(records)
    assert [one for one in findings(records) if one.holds is False] == []
    return records
