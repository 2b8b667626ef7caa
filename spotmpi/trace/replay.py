"""The truth of a run, from its trace alone: which samples counted, and what parameters follow.

Nothing here takes part in training; it reads what `trace.records` wrote. All functions are local.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spotmpi.arrays.backend import kernels_for
from spotmpi.arrays.layout import BUCKET_MB
from spotmpi.arrays.narrowing import NARROWED, Narrowing, narrowed_sum
from spotmpi.arrays.sums_of_hosts import sum_of_hosts
from spotmpi.errors import TraceError
from spotmpi.protocol.host_ring import RING
from spotmpi.protocol.membership import WorkerId
from spotmpi.trace.records import Record

__all__ = [
    "Rests",
    "bucket_mb_of",
    "check_exactly_once",
    "check_replicas",
    "contributions",
    "resumed",
    "samples_of",
    "steps",
    "summed",
    "switches",
    "uses",
]


def steps(records: Iterable[Record]) -> list[Record]:
    """The step records that count, in order; those that a resume made void are left out.

    A trace may begin with a resume, of a run whose beginning is in another. TraceError if a step
    is missing or there twice, or if the trace says itself that it lacks one.
    """
    counted: list[Record] = []
    missing: Record | None = None
    due = 0
    for record in records:
        event: str = record["event"]
        step: Any = record.get("step")
        if event == "resume":
            due = min(due, step) if due else step
            counted = [done for done in counted if done["step"] < step]
            missing = missing if missing is not None and missing["step"] < step else None
        if event in ("resume", "step", "gap") and step != due:
            raise TraceError(f"the trace has {event} {step} where step {due} is due")
        if event == "step":
            counted.append(record)
            due += 1
        if event == "gap":
            missing = missing or record
            due += record["steps"]
    if missing is not None:
        raise TraceError(
            f"the trace lacks {missing['steps']} steps, from step {missing['step']} on: they were "
            "trained, and all workers who had taken part were lost before they could write them"
        )
    return counted


def switches(records: Iterable[Record]) -> dict[int, str]:
    """The steps from which on another strategy was followed, and which: those that count."""
    found: dict[int, str] = {}
    first = begins = ""
    for record in records:
        event: str = record["event"]
        if event == "start":
            begins = str(record.get("strategy"))
            first = first or begins
        elif event == "resume":
            found = {step: name for step, name in found.items() if step < record["step"]}
            # It may be another one though no line says so: a change after the last step of a job
            # has none, and the script may no longer have the strategy of its checkpoint.
            if found or begins != first:
                found[record["step"]] = begins
        elif event == "strategy":
            found[record["step"]] = str(record["strategy"])
    return found


def uses(records: Sequence[Record]) -> Iterator[tuple[Record, list[dict[str, Any]]]]:
    """Yield the steps that count, each with those of its contributions whose samples count.

    If contributions are made before the last step of a round, nobody knows whether a worker that
    dies took the later steps. Their samples count if the worker takes part in the next round of the
    same loop over batches, and no resume lies between; else they are dealt again. TraceError as in
    `steps`.
    """
    begun, rounds = sorted(resumed(records)), list[list[Record]]()
    for record in steps(records):
        of = record.get("round")
        if not rounds or of is None or of != rounds[-1][0].get("round") or record["step"] in begun:
            rounds.append([])
        rounds[-1].append(record)
    goes_on: list[Collection[WorkerId]] = []
    after: dict[tuple[Any, int], Collection[WorkerId]] = {}
    for of_round in reversed(rounds):
        first = of_round[0]
        part = first.get("loop"), bisect_right(begun, first["step"])
        goes_on.append(after.get(part, ()))
        after[part] = first.get("workers", ())
    for of_round, there in zip(rounds, reversed(goes_on), strict=True):
        for number, record in enumerate(of_round):
            brought = contributions(record)
            if number >= record.get("sent", len(of_round)):
                brought = [one for one in brought if one["worker"] in there]
            yield record, brought


def check_exactly_once(records: Iterable[Record], n: int, passes: int) -> None:
    """Every one of ``n`` samples counted exactly once in each of ``passes`` passes.

    A contribution counts as `uses` says, whatever was tried before; a pass ends with a step.
    TraceError names the first offence.
    """
    seen = np.zeros(n, dtype=np.bool_)
    done = 0
    for record, brought in uses(list(records)):
        for contribution in brought:
            samples = samples_of(record, contribution)
            who = f"step {record['step']}: worker {contribution['worker']}"
            if len(samples) != contribution["weight"]:
                raise TraceError(
                    f"{who} has {len(samples)} samples and weight {contribution['weight']}"
                )
            for sample in samples.tolist():
                if not 0 <= sample < n:
                    raise TraceError(f"{who} used sample {sample} of {n}")
                if seen[sample]:
                    raise TraceError(f"{who} used sample {sample} again in pass {done}")
                seen[sample] = True
        if n and seen.all():
            done += 1
            seen[:] = False
    if n and (done != passes or seen.any()):
        rest = f", sample {int(seen.argmin())} is missing in the next" if seen.any() else ""
        raise TraceError(f"{done} of {passes} passes are complete{rest}")


def check_replicas(records: Iterable[Record]) -> int:
    """After every recovery all survivors held the same parameters, to the bit.

    A worker may be lost with a step that nobody else has: all others take the step again, without
    it, so its digest of that step says nothing. Returns how many digests of survivors were
    compared. TraceError names the first that differs.
    """
    said: list[tuple[int, WorkerId | None, str]] = []  # the step, who (None: the leader), what
    compared = 0
    for record in records:
        event: str = record["event"]
        step: Any = record.get("step")
        digest: Any = record.get("digest")
        if event == "resume":
            compared += _compare(one for one in said if one[0] >= step)
            said = [one for one in said if one[0] < step]
        elif event == "recovery":
            said = [one for one in said if one[0] != step or one[1] not in record["lost"]]
        elif event in ("recovered", "step") and digest is not None:
            said.append((step, record["worker"] if event == "recovered" else None, digest))
    return compared + _compare(said)


def _compare(said: Iterable[tuple[int, WorkerId | None, str]]) -> int:
    """Return how many of the digests are of workers. TraceError if two of a step differ."""
    known: dict[int, tuple[str, str]] = {}
    compared = 0
    for step, worker, digest in said:
        who = "the leader" if worker is None else f"worker {worker}"
        first, other = known.setdefault(step, (digest, who))
        if digest != first:
            raise TraceError(
                f"the replicas differ after step {step}: {other} has {first}, {who} {digest}"
            )
        compared += worker is not None
    return compared


def bucket_mb_of(records: Iterable[Record]) -> float:
    """How the arrays of the run were cut into buckets, each of which was summed on its own."""
    for record in records:
        if record["event"] == "start" and "bucket_mb" in record:
            return float(record["bucket_mb"])
    return BUCKET_MB


class Rests(dict[tuple[WorkerId, int], Narrowing]):
    """What each worker has kept of sums that were narrowed, by the number of the flat."""

    def of(self, worker: WorkerId, number: int, flat: Any, form: str) -> Narrowing:
        """Zero, of a worker that is new."""
        if (found := self.get((worker, number))) is None:
            found = Narrowing(form, np.zeros_like(flat), np.zeros_like(flat))
            self[worker, number] = found
        return found


def summed(parts: dict[WorkerId, list[Any]], record: Record, rests: Rests) -> list[Any]:
    """The sums of what workers brought to a step, flat by flat, as its ``record`` has it; ``rests``
    go on with it."""
    found = []
    hosts: Any = record.get("hosts")
    ways: Any = record.get("ways", ())
    numbers: Any = record.get("buckets")
    for place, each in enumerate(zip(*parts.values(), strict=True)):
        number = numbers[place] if numbers else place
        brought = dict(zip(parts, each, strict=True))
        total, *others = each
        if not hosts:
            for flat in others:
                kernels_for(total).accumulate(total, flat)
            found.append(total)
            continue
        way = ways[place] if ways else RING  # the only one there was, once
        if record.get("narrow") and total.dtype == NARROWED and way == RING:
            found.append(_narrowed(brought, hosts, str(record["narrow"]), rests, number))
        else:
            found.append(sum_of_hosts(brought, hosts, way))
    return found


def _narrowed(
    brought: dict[WorkerId, Any], hosts: Any, form: str, rests: Rests, number: int
) -> Any:
    flat = next(iter(brought.values()))
    members = {one: rests.of(one, number, flat, form) for host in hosts for one in host}
    total = narrowed_sum(brought, hosts, members)
    for one in members.values():
        one.turn()
    return total


def resumed(records: Iterable[Record]) -> set[int]:
    """Steps with which a resume went on that count."""
    found: set[int] = set()
    for record in records:
        if record["event"] == "resume":
            step = int(record["step"])
            found = {before for before in found if before < step} | {step}
    return found


def contributions(record: Record) -> list[dict[str, Any]]:
    """What each worker brought to a step. TraceError if the record does not say so."""
    found: Any = record.get("contributions")
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and one.keys() >= _PARTS and type(one["worker"]) is int
        for one in found
    ):
        raise TraceError(
            f"step {record['step']} does not say what each worker contributed: it was not written "
            "by a trainer of this version, and cannot be checked or replayed"
        )
    return found


_PARTS = {"worker", "samples", "weight"}


def samples_of(record: Record, contribution: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Of one contribution. TraceError if the record does not say them."""
    if contribution["samples"] is None:
        raise TraceError(
            f"step {record['step']} does not say which samples worker {contribution['worker']} "
            "used: only batches dealt by trainer.batches() can be checked"
        )
    try:
        samples = np.asarray(contribution["samples"], dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        samples = np.empty((0, 0), dtype=np.int64)
    if samples.ndim != 1:
        raise TraceError(
            f"step {record['step']}: the samples of worker {contribution['worker']} are no list of "
            "whole numbers"
        )
    return samples
