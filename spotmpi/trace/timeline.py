"""When the rounds of a training were over, how long each took, and how long it usually takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from spotmpi.trace.clocks import Clock, aligned, hosts_of
from spotmpi.trace.records import Record
from spotmpi.trace.recoveries import runs

__all__ = ["GAP", "Own", "Round", "Run", "timeline"]

GAP = 2.0
"""Times the usual time of its steps, from which on a round is a gap."""

_FEW = 8
"""Steps from whose times nothing usual follows."""


@dataclass(frozen=True)
class Own:
    """What one worker says of its part of a round; milliseconds."""

    script: float
    """Until it came to the round."""
    within: float
    """From then until it was complete."""
    ran: float | None
    """Of both: on a core ..."""
    starved: float | None
    """... and ready to run, without one."""
    between: tuple[str, ...]
    """Other rounds before it, since the last one with a step."""
    committed: float
    """On the clock of the worker's host."""

    @property
    def passage(self) -> tuple[float, float]:
        """When it came to the round, and when it had completed it."""
        return self.committed - 1e-3 * self.within, self.committed


@dataclass(frozen=True)
class Round:
    """The steps that were committed together."""

    first: int
    last: int
    seconds: float
    """Since the commit before."""
    at: float
    """When it was committed: seconds since the first run began."""
    usual: float
    """Seconds that so many steps usually take: by the median of all steps since the last start, or
    change of the strategy."""
    workers: tuple[int, ...]
    generation: int | None
    void: bool
    """A later resume began before it: it was trained in vain."""

    @property
    def gap(self) -> bool:
        """It took much longer than usual."""
        return self.seconds > GAP * self.usual

    @property
    def excess(self) -> float:
        """Seconds more than usual, of a gap."""
        return self.seconds - self.usual if self.gap else 0.0


@dataclass(frozen=True)
class Run:
    """One run of the training: from a start to its end, or to the next start."""

    records: Sequence[Record]
    began: float
    """Seconds from the first run's beginning to this one's."""
    origin: float
    """What its records' clock showed when the first run began."""
    down: float | None
    """Seconds since the run before had ended; None: not known, or the first."""
    rounds: Sequence[Round]

    def of(self, event: str) -> list[Record]:
        """All records of a kind."""
        return self._by_event.get(event, [])

    @cached_property
    def _by_event(self) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for record in self.records:
            found.setdefault(record["event"], []).append(record)
        return found

    def moment(self, at: float, worker: int | None = None) -> float:
        """Seconds since the first run began, of what the clock of a worker's host said, or of the
        first host's."""
        known = None if worker is None else self.clocks.get(self.hosts.get(worker, ""))
        return at - self.origin - (0.0 if known is None else known.ahead)

    @cached_property
    def hosts(self) -> dict[int, str]:
        """Of each worker, as far as they are told."""
        return hosts_of(self.records)

    @cached_property
    def clocks(self) -> dict[str, Clock]:
        """Of each host."""
        if not self.hosts:
            return {}
        first = next(iter(self.hosts.values()))
        rounds = (
            {worker: own.passage for worker, own in told.items() if not own.between}
            for told in self.own.values()
        )
        return aligned(rounds, self.hosts, first)

    @property
    def ended(self) -> float:
        """When it was heard of last."""
        rounds = [one.at for one in self.rounds]
        if len(set(self.hosts.values())) > 1:  # it is not told whose clock a line's is
            return max(rounds, default=self.began)
        last = [self.moment(float(r["at"])) for r in self.records if r.get("at") is not None]
        return max([*last, *rounds], default=self.began)

    @cached_property
    def own(self) -> dict[int, dict[int, Own]]:
        """What workers say of their parts: by the last step of a round, and by the worker."""
        found: dict[int, dict[int, Own]] = {}
        for record in self.of("timing"):
            for step, own in _own(record):
                found.setdefault(step, {})[int(record["worker"])] = own
        return found


def timeline(records: Sequence[Record]) -> list[Run]:
    """The runs of one training, in order."""
    parts = runs(records)
    resumes = [next((int(r["step"]) for r in run if r["event"] == "resume"), 0) for run in parts]
    found: list[Run] = []
    for number, part in enumerate(parts):
        before = found[-1] if found else None
        down = None if before is None else _down(before, part)
        began = 0.0 if before is None else before.ended + (down or 0.0)
        start = _first_at(part)
        void = min(resumes[number + 1 :], default=None)
        origin = start - began
        found.append(Run(part, began, origin, down, _rounds(part, began, origin, void)))
    return found


def _first_at(run: Sequence[Record]) -> float:
    return next((float(r["at"]) for r in run if r.get("at") is not None), 0.0)


def _down(before: Run, run: Sequence[Record]) -> float | None:
    """Seconds between two runs, by the clock on the wall: that of `at` may be another host's."""
    earlier: Any = before.records[0].get("time")
    later: Any = run[0].get("time")
    if not (isinstance(earlier, int | float) and isinstance(later, int | float)):
        return None
    return max(0.0, later - earlier - (before.ended - before.began))


def _rounds(run: Sequence[Record], began: float, origin: float, void: int | None) -> list[Round]:
    found: list[Round] = []
    at, alone = began, len(set(hosts_of(run).values())) <= 1
    for stretch in _stretches(run):
        times = [float(record["seconds"]) for record in stretch]
        usual = median(times)
        for steps in _together(stretch):
            first, last = steps[0], steps[-1]
            seconds = sum(float(record["seconds"]) for record in steps)
            committed: Any = last.get("committed")
            # Where there are several hosts, it is not told whose clock that is.
            known = alone and committed is not None
            at = float(committed) - origin if known else at + seconds
            found.append(
                Round(
                    int(first["step"]),
                    int(last["step"]),
                    seconds,
                    at,
                    usual * len(steps),
                    tuple(last["workers"]),
                    last.get("generation"),
                    void is not None and first["step"] >= void,
                )
            )
    return found


def _stretches(run: Sequence[Record]) -> list[list[Record]]:
    """Its steps, from one change of the strategy to the next; too few of them go with others."""
    found: list[list[Record]] = [[]]
    for record in run:
        if record["event"] == "strategy" and len(found[-1]) >= _FEW:
            found.append([])
        if record["event"] == "step":
            found[-1].append(record)
    if len(found) > 1 and len(found[-1]) < _FEW:
        few = found.pop()
        found[-1] += few
    return [one for one in found if one]


def _together(steps: Sequence[Record]) -> Iterator[list[Record]]:
    """The steps of each round."""
    held: list[Record] = []
    for record in steps:
        if held and (record.get("round") is None or record.get("round") != held[0].get("round")):
            yield held
            held = []
        held.append(record)
    if held:
        yield held


def _own(record: Record) -> Iterator[tuple[int, Own]]:
    steps, scripts, within = record["steps"], record["script_ms"], record["round_ms"]
    ran = record.get("cpu_ms") or [None] * len(steps)
    starved = record.get("starved_ms") or [None] * len(steps)
    between = record.get("between") or {}
    after = 0.0
    for place in reversed(range(min(map(len, (steps, scripts, within, ran, starved))))):
        names = tuple(between.get(str(place), ()))
        committed = float(record["committed"]) - after
        known = scripts[place], within[place], ran[place], starved[place], names, committed
        yield int(steps[place]), Own(*known)
        after += 1e-3 * (scripts[place] + within[place])
