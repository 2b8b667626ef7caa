"""What was promised, each promise held against a trace: what anybody can check afterwards.

A check says what holds in one line, raises TraceError with the first offence, or says why this
trace cannot tell. Nothing is believed that a worker says of itself where it follows from the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spotmpi.errors import TraceError
from spotmpi.protocol.recovery import most_messages
from spotmpi.trace import replay
from spotmpi.trace.records import Record
from spotmpi.trace.recoveries import counted, named, recoveries, runs

__all__ = ["CHECKS", "Finding", "findings"]


@dataclass(frozen=True)
class Finding:
    """What one check has come to."""

    what: str
    holds: bool | None
    """None: this trace cannot tell."""
    said: str


class _Untold(Exception):
    """The trace lacks what a check needs."""


@dataclass(frozen=True)
class _Told:
    """A training's records, and of these the steps that count."""

    records: Sequence[Record]
    steps: Sequence[Record]

    def of(self, event: str) -> list[Record]:
        return [record for record in self.records if record["event"] == event]

    @property
    def end(self) -> Record | None:
        """Of the last run; what others than its writer had yet to say may stand behind it."""
        ends = [record for record in runs(self.records)[-1] if record["event"] == "end"]
        return ends[-1] if ends else None


def findings(records: Sequence[Record]) -> Iterator[Finding]:
    """What each of the `CHECKS` comes to, for the trace of one training."""
    told = _Told(records, [])
    for what, check in CHECKS.items():
        try:
            if what == "steps":
                told = _Told(records, replay.steps(records))
            yield Finding(what, True, check(told))
        except TraceError as error:
            yield Finding(what, False, str(error))
            if what == "steps":
                return  # all others count on them
        except _Untold as reason:
            yield Finding(what, None, str(reason))


def _steps(told: _Told) -> str:
    """From the first to the last, each once; and as many as its end says."""
    steps, end = told.steps, told.end
    if not steps:
        raise _Untold("the trace has none")
    first, last = int(steps[0]["step"]), int(steps[-1]["step"])
    if end is not None and end["step"] != last + 1:
        raise TraceError(f"{end['step']} steps ended, the last one in the trace is {last}")
    return f"{first} to {last}, each once: none is lost"


def _end(told: _Told) -> str:
    """How it ended, and with whom."""
    if (end := told.end) is None:
        raise _Untold("there is none yet: the training goes on, or was cut off")
    learners = {worker for record in told.of("change") for worker in record["joined"]}
    last = set(told.steps[-1]["workers"]) if told.steps else set(end["workers"])
    if late := sorted(set(end["workers"]) - last - learners):
        raise TraceError(f"{named(late)} ended it, who took no part in the last step")
    return f"{end['outcome']} after {counted(end['step'], 'step')}, with {named(end['workers'])}"


def _workers(told: _Told) -> str:
    """Who takes part in a step was there at the start or joined, and nobody comes back."""
    there: set[int] = set()
    gone: dict[int, str] = {}
    counts: Counter[str] = Counter()
    for run in runs(told.records):
        began = next((r for r in run if r["event"] == "start"), None)
        there = set(there if began is None else began["workers"])
        gone = {}
        if began is not None:
            counts["began"] = len(there)
            counts["lost"] = counts["left"] = counts["joined"] = 0
        for record in run:
            event = record["event"]
            if event == "change":
                there |= set(record["joined"])
                counts["joined"] += len(record["joined"])
                counts["left"] += len(set(record["left"]) - gone.keys())
                gone |= dict.fromkeys(record["left"], "left")
            if event == "recovery":
                counts["lost"] += len(set(record["lost"]) - gone.keys())
                gone |= dict.fromkeys(record["lost"], "was lost")
            if event not in ("step", "end"):
                continue
            where = f"step {record['step']}" if event == "step" else "the end"
            for worker in record["workers"]:
                if worker in gone:
                    raise TraceError(f"worker {worker} {gone[worker]}, and takes part in {where}")
                if there and worker not in there:
                    raise TraceError(
                        f"worker {worker} takes part in {where}, and was never admitted"
                    )
            if event == "step" and began is not None:
                missing = set(began["workers"]) - gone.keys() - set(record["workers"])
                if missing:
                    raise TraceError(
                        f"{named(sorted(missing))} took no part in {where}, and no line says why"
                    )
    rest = ", ".join(f"{counts[one]} {one}" for one in ("lost", "left", "joined"))
    return f"of {counts['began']} that began {rest}; nobody who was gone took part again"


def _generations(told: _Told) -> str:
    """They rise with each change of the membership, of which a line tells, and never fall."""
    changes, seen = 0, set[int]()
    for run in runs(told.records):
        generation: int | None = None
        known: set[int] = set()
        members: set[int] = set()
        admitted: set[int] = set()
        for record in run:
            event = record["event"]
            if event in ("recovery", "change"):
                known.add(record["generation"])
                admitted |= set(record.get("joined", ()))
            if event != "step" or "generation" not in record:
                continue
            now, workers = int(record["generation"]), set(record["workers"])
            where = f"step {record['step']}"
            if generation is not None and now < generation:
                raise TraceError(f"generation {now} comes after {generation}, at {where}")
            if generation is None or now > generation:
                if generation is not None and now not in known:
                    raise TraceError(
                        f"generation {now} begins with {where}, and no line tells what changed"
                    )
                changes += generation is not None
            # A newcomer that has learnt is one of them from then on.
            elif workers != members and not (members < workers and workers - members <= admitted):
                raise TraceError(
                    f"the workers change at {where}, and generation {now} stays the same"
                )
            generation, members = now, workers
            seen.add(now)
    if not seen:
        raise _Untold("the steps do not tell theirs")
    if not changes:
        return "the workers never changed"
    told_of = "the one change" if changes == 1 else f"each of {changes} changes"
    return f"{min(seen)} to {max(seen)}, never falling; a line tells of {told_of}"


def _losses(told: _Told) -> str:
    """A step follows each loss, without those who were lost."""
    found = recoveries(told.records)
    if not found:
        return _NOBODY
    for one in found:
        after = next((s for s in told.steps if s["step"] >= one.step), None)
        if not one.lost:
            raise TraceError(f"a recovery of generation {one.generation} has lost nobody")
        if after is None:
            raise TraceError(f"no step follows the loss of {named(one.lost)} at step {one.step}")
        if one.told["verdict"] not in ("retry", "repair"):
            raise TraceError(f"the recovery at step {one.step} decided {one.told['verdict']!r}")
    lost = sum(len(one.lost) for one in found)
    each = "" if len(found) == 1 else " each time"
    recovered = counted(len(found), "recovery", "recoveries")
    return f"{lost} in {recovered}, and the others took the next step{each}"


def _recomputed(told: _Told) -> str:
    """No survivor lost a step, or computed a gradient again."""
    if not (reports := _reports(told)):
        return _NOBODY
    for one in reports:
        who = f"worker {one['worker']}, generation {one['generation']}"
        if one["lost_steps"]:
            raise TraceError(f"{who}: {counted(one['lost_steps'], 'step')} lost")
        if one["recomputed_gradients"]:
            again = counted(one["recomputed_gradients"], "gradient")
            raise TraceError(f"{who}: {again} computed again")
    return f"0 computed again, in {counted(len(reports), 'report')} of survivors"


_NOBODY = "nobody was lost"


def _reports(told: _Told) -> list[Record]:
    """Of survivors; none if nobody was lost."""
    reports = told.of("recovered")
    if not reports and recoveries(told.records):
        raise _Untold("no survivor of a loss has left a report")
    return reports


def _replicas(told: _Told) -> str:
    """Equal to the bit."""
    compared = replay.check_replicas(told.records)
    digests = sum(record.get("digest") is not None for record in told.steps)
    if not digests:
        raise _Untold(
            "no step has a digest of the model: where the script moves it by itself, as with "
            "DistributedDataParallel, spotmpi does not compare it"
        )
    undigested = [r for r in told.of("recovered") if r.get("digest") is None]
    if undigested:
        raise TraceError(
            f"worker {undigested[0]['worker']} did not digest its parameters after the recovery "
            f"at step {undigested[0]['step']}"
        )
    rounds: set[Any] = {record.get("round", record["step"]) for record in told.steps}
    if digests < len(rounds):
        raise TraceError(f"{len(rounds)} rounds moved the model, and only {digests} have a digest")
    after = f"{counted(compared, 'digest')} of survivors after recoveries; in " if compared else ""
    return (
        f"equal to the bit in {after}{counted(digests, 'round')}"
        f"{' ' if compared else ', in which '}the workers compared theirs, and would have ended "
        "the job"
    )


def _contributions(told: _Told) -> str:
    """Each worker of a step has one place in it, with the weight of its samples."""
    total = 0
    for record in told.steps:
        if "contributions" not in record:
            raise _Untold(f"step {record['step']} does not say who brought what")
        brought = replay.contributions(record)
        those = [one["worker"] for one in brought]
        where = f"step {record['step']}"
        if sorted(set(those)) != sorted(record["workers"]):
            raise TraceError(f"{where}: {those} brought something, {record['workers']} took part")
        for one in brought:
            samples, weight = one["samples"], one["weight"]
            if samples is not None and len(samples) != weight:
                who = f"worker {one['worker']}"
                raise TraceError(f"{where}: {who} has {len(samples)} samples and weight {weight}")
        total += len(brought)
    if not total:
        raise _Untold("there are none")
    return f"{total}, each of a worker that took part in the step, with the weight of its samples"


def _samples(told: _Told) -> str:
    """Each was used once in each pass."""
    loops = _Loops(told)
    for record, brought in replay.uses(told.records):
        for one in brought:
            if one["samples"] is None:
                raise _Untold("the script deals its own: only those of batches() are told")
            loops.use(record, one["worker"], replay.samples_of(record, one))
    return loops.said()


def _messages(told: _Told) -> str:
    """No survivor sent more than the protocol promises."""
    most = 0.0
    if not (reports := _reports(told)):
        return _NOBODY
    lost = {(one.generation, one.step): len(one.lost) for one in recoveries(told.records)}
    by_generation = {generation: many for (generation, _), many in lost.items()}
    for one in reports:
        if not isinstance(one.get("messages_sent"), dict):
            raise _Untold("the reports of survivors do not tell how many they sent")
        many = by_generation.get(one["generation"], 0)
        sent = max(one["messages_sent"].values(), default=0)
        if many and sent > most_messages(many, unasked=True):
            raise TraceError(
                f"worker {one['worker']} sent {sent} messages in the recovery from {many} losses"
            )
        most = max(most, sent)
    return f"{most:.0f} of a survivor in one recovery, at most"


@dataclass
class _Loop:
    """The samples of one loop over batches, pass by pass."""

    n: int
    passes: int
    late: bool
    """The trace does not begin with the training: its first pass is not all there."""
    number: int | None = None
    """Of the pass that is open."""
    done: int = 0
    """Passes in which each was used."""

    def __post_init__(self) -> None:
        self.used = np.zeros(self.n, dtype=np.bool_)
        self._cut = self.late

    def use(self, where: str, number: int, samples: Any) -> None:
        """Raises TraceError for the second use in one pass, and for the end of one that is not
        whole."""
        if self.number is not None and number < self.number:
            raise TraceError(f"{where} is of pass {number}, after pass {self.number}")
        if number != self.number:
            self.close()
            self.number = number
        if len(wrong := samples[(samples < 0) | (samples >= self.n)]):
            raise TraceError(f"{where} used sample {wrong[0]} of {self.n}")
        again = samples[self.used[samples]]
        if len(again) or len(np.unique(samples)) < len(samples):
            which = again[0] if len(again) else np.sort(samples)[0]
            raise TraceError(f"{where} used sample {which} again in pass {number}")
        self.used[samples] = True

    def close(self) -> None:
        """The open pass, if there is one, must be whole."""
        if self.number is None:
            return
        whole = bool(self.used.all())
        if not whole and not self._cut:
            missing = int(self.used.argmin())
            raise TraceError(f"sample {missing} of {self.n} was never used in pass {self.number}")
        self.done += whole
        self._cut = False
        self.used[:] = False
        self.number = None

    def said(self) -> str:
        """What is known of it."""
        rest = int(self.used.sum())
        if rest == self.n > 0:
            self.close()
            rest = 0
        if not self.done:
            return f"{rest} of {self.n} were used once in a pass that is not complete"
        passes = "one pass" if self.done == 1 else f"each of {self.done} passes"
        said = f"each of {self.n} was used once in {passes}"
        return said + (f", and {rest} of them in one that is not complete" if rest else "")


class _Loops:
    """All loops over batches, as the steps go through them."""

    def __init__(self, told: _Told) -> None:
        begins = int(told.steps[0]["step"]) if told.steps else 0
        self._loops = {
            r["loop"]: _Loop(r["n"], r["passes"], late=begins > 0)
            for r in told.of("batches")
            if 0 <= r["n"] < _MOST_SAMPLES
        }
        self._end = told.end
        self._used: set[int] = set()

    def use(self, record: Record, worker: int, samples: Any) -> None:
        """Raises TraceError for what no pass may have."""
        loop: Any = record.get("loop")
        number: Any = record.get("pass")
        if loop not in self._loops or number is None:
            raise _Untold("the trace does not say how many samples a pass has")
        if len(samples):
            self._used.add(loop)
            self._loops[loop].use(f"step {record['step']}: worker {worker}", number, samples)

    def said(self) -> str:
        """Raises TraceError if a loop that was gone through to its end lacks something."""
        finished = self._end is not None and self._end["outcome"] == "finished"
        left = set(self._end.get("left_early", ())) if self._end else set()
        found = []
        for number in sorted(self._used):
            loop = self._loops[number]
            if finished and number not in left:
                loop.close()
                if loop.done < loop.passes and not loop.late:
                    raise TraceError(f"{loop.done} of {loop.passes} passes are in the trace")
            found.append(loop.said())
        if not found:
            raise _Untold("none were dealt")
        return "; ".join(found)


_MOST_SAMPLES = 1 << 32


CHECKS: dict[str, Callable[[_Told], str]] = {
    "steps": _steps,
    "end": _end,
    "workers": _workers,
    "generations": _generations,
    "losses": _losses,
    "gradients": _recomputed,
    "replicas": _replicas,
    "contributions": _contributions,
    "samples": _samples,
    "messages": _messages,
}
"""By what each is about."""
