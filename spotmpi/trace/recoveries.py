"""The recoveries of a trace: who was lost, what the survivors saw of it, and a line for each."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spotmpi.trace import replay
from spotmpi.trace.records import Record

__all__ = ["PARTS", "Recovery", "counted", "described", "named", "parts", "recoveries", "runs"]

PARTS = ("computing", "detection", "agreement", "rebuilding", "retry")
"""Of a recovery, one after the other: what a survivor still computed, until it knew of the death
and had told the others, until all had agreed, until there was a new communicator, and the rest of
the step."""


@dataclass(frozen=True)
class Recovery:
    """One recovery as its survivors saw it."""

    generation: int
    step: int
    lost: Sequence[int]
    survivors: Sequence[Record]
    told: Record
    """By the leader."""

    @property
    def total(self) -> float | None:
        """Milliseconds from the death until the last survivor had committed, if known."""
        known = [float(r["total_ms"]) for r in self.survivors if r["total_ms"] is not None]
        return max(known, default=None)

    @property
    def last(self) -> Record:
        """What the survivor tells of it that went on last."""
        return max(self.survivors, key=lambda r: r["total_ms"] or 0.0, default=self.told)

    @property
    def label(self) -> str:
        """Who was lost, and how long it took."""
        names = f"worker{'s' if len(self.lost) > 1 else ''} {', '.join(map(str, self.lost))} lost"
        return names if self.total is None else f"{names}\n{self.total:.0f} ms"


def recoveries(records: Sequence[Record]) -> list[Recovery]:
    """One for each generation, in order; of what a resume made void, nothing."""
    found: list[Recovery] = []
    for run in runs(records):
        resumed = next((int(r["step"]) for r in run if r["event"] == "resume"), None)
        if resumed is not None:
            found = [one for one in found if one.step < resumed]
        # Two of one generation are one recovery, whose first writer died.
        told = {int(r["generation"]): r for r in run if r["event"] == "recovery"}
        for generation, record in sorted(told.items()):
            survivors = [
                r for r in run if r["event"] == "recovered" and r["generation"] == generation
            ]
            known = generation, int(record["step"]), record["lost"], survivors, record
            found.append(Recovery(*known))
    return found


def parts(record: Record) -> dict[str, float]:
    """Where the milliseconds of a recovery went, as one worker tells it: all that there are of
    `PARTS`, in order, with no remainder; empty if that is not known."""
    total, detected = record["total_ms"], record["detect_ms"]
    if total is None or detected is None:
        return {}
    known = [
        float(record.get("came_ms") or 0.0),
        float(detected) + float(record["revoke_ms"] or 0.0),
        float(record["reconcile_ms"] or 0.0) + float(record["accept_ms"] or 0.0),
        float(record["restart_ms"] or 0.0),
    ]
    found = dict(zip(PARTS, [*known, max(0.0, float(total) - sum(known))], strict=True))
    return {part: ms for part, ms in found.items() if ms or part != "computing"}


def runs(records: Sequence[Record]) -> list[list[Record]]:
    """The runs of one training: each but the first resumes it, and counts generations anew."""
    found: list[list[Record]] = [[]]
    for record in records:
        if record["event"] == "start" and found[-1]:
            found.append([])
        found[-1].append(record)
    return found


def described(records: Sequence[Record]) -> Iterator[str]:
    """A line for each recovery: who was lost, how long it took, and what took how long.

    The last line has the whole steps: the kernel reports a death only after it has taken down the
    process's memory, and the survivors wait for that, too.
    """
    stretched = []
    steps = {record["step"]: 1e3 * record["seconds"] for record in replay.steps(records)}
    for number, one in enumerate(recoveries(records), start=1):
        total = one.total
        took = "a time unknown" if total is None else f"{total:.1f} ms"
        split = ", ".join(f"{part} {ms:.1f}" for part, ms in parts(one.last).items())
        # After a repair the writer may name the step after the one in which it happened.
        stretched.append(max(steps.get(one.step - back, 0.0) for back in (0, 1)))
        yield (
            f"recovery {number}: {named(one.lost)} lost; {_go_on(len(one.survivors))} "
            f"{took} after the death{f' ({split})' if split else ''}; {one.told['verdict']}"
        )
    if steps:
        usual = statistics.median(steps.values())
        whole = ", ".join(f"{ms:.0f}" for ms in stretched)
        whole = f"; those with a recovery, from begin to end, {whole} ms" if stretched else ""
        yield f"for comparison: an ordinary step took {usual:.1f} ms (median){whole}"


def _go_on(survivors: int) -> str:
    return f"{counted(survivors, 'survivor')} {'goes' if survivors == 1 else 'go'} on"


def counted(many: int, what: str, several: str = "") -> str:
    """So many, as one says it; ``several`` if that is not ``what`` with an s."""
    return f"{many} {what if many == 1 else several or what + 's'}"


def named(workers: Sequence[object]) -> str:
    """These, as one says it."""
    names = [str(worker) for worker in workers]
    if len(names) == 1:
        return f"worker {names[0]}"
    return f"workers {', '.join(names[:-1])} and {names[-1]}"
