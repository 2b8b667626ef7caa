"""A job's state that tests feed with what happens."""

from __future__ import annotations

from spotmpi.launch.head.job_state import JobState
from tests.saying import said


def exited(code: int) -> int:
    return code << 8


def expecting(workers: int, again: bool = False) -> JobState:
    verdict = JobState(again=again)
    verdict.expect(["here"] * workers)
    return verdict


def started(workers: int, again: bool = False) -> JobState:
    verdict = expecting(workers, again)
    for event in ("begin", "ready"):
        for worker in range(workers):
            verdict.told(worker, said(event))
    return verdict


def code(verdict: JobState) -> int | None:
    return verdict.ending.code if verdict.ending else None
