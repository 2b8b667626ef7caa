"""From what the processes of one job wrote down to its recoveries. No processes, no clock."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from spotmpi.errors import SpotmpiError

__all__ = ["Cell", "Event", "JobFailed", "Sample", "recoveries", "schedule", "to_text"]

Record = Mapping[str, Any]

_LARGE = 5_000_000
_GAP, _GAP_LARGE = 12, 6
"""Steps between two events, enough for a median of undisturbed ones."""

_PHASES = ("revoke", "reconcile", "accept", "restart", "shrink")


class JobFailed(SpotmpiError):
    """A job that was to be measured did not end as it should, or does not tell what it did."""


@dataclass(frozen=True, order=True)
class Cell:
    """What is asked: so many workers and float32 parameters, so many lost at once."""

    workers: int
    params: int
    lost: int

    @property
    def events(self) -> int:
        """Recoveries in one job: as long as more than three quarters of the workers are left."""
        return math.ceil(self.workers / (4 * self.lost))

    @property
    def gap(self) -> int:
        """Steps between two events."""
        return _GAP_LARGE if self.params >= _LARGE else _GAP

    @property
    def steps(self) -> int:
        """Steps of one job."""
        return self.gap * (self.events + 1)


@dataclass(frozen=True)
class Event:
    """Workers that die at one moment: ``fraction`` of the way through a step's all-reduce."""

    step: int
    victims: tuple[int, ...]
    fraction: float


@dataclass(frozen=True)
class Sample:
    """One recovery, in ms. ``workers``: how many there were before it.

    ``total``: from the first victim's death to the last survivor's completion. ``stall``: total
    minus ``step``, the median of the undisturbed steps that the survivors then took. ``dying``:
    from the first victim's signal to its death, before ``total`` begins. ``phases``: where the last
    survivor's total went.
    """

    workers: int
    lost: int
    total: float
    step: float
    stall: float
    dying: float
    phases: dict[str, float]
    fraction: float

    def to_json(self) -> dict[str, Any]:
        """Its fields, times rounded to a microsecond."""
        plain = asdict(self)
        plain["phases"] = {name: round(ms, 3) for name, ms in self.phases.items()}
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in plain.items()}


def schedule(cell: Cell, seed: object) -> list[Event]:
    """Who dies when in a job of ``cell``: drawn anew for each seed, spread over the all-reduce."""
    draw = random.Random(f"{cell} {seed}")
    alive = list(range(cell.workers))
    events = []
    for number in range(1, cell.events + 1):
        victims = draw.sample(alive, cell.lost)
        alive = [worker for worker in alive if worker not in victims]
        events.append(Event(number * cell.gap, tuple(sorted(victims)), draw.random()))
    return events


def to_text(events: Iterable[Event]) -> str:
    """The schedule as `floor` reads it."""
    return ";".join(f"{','.join(map(str, e.victims))}@{e.step}:{e.fraction:.4f}" for e in events)


def recoveries(
    cell: Cell, events: Sequence[Event], deaths: Mapping[int, float], records: Sequence[Record]
) -> list[Sample]:
    """The samples of one job. JobFailed if it does not tell what each survivor did.

    What a survivor tells belongs to a loss by the step in which it was, and not by the clock: on
    busy cores a victim may be long in dying. Others know of it as soon as its connections are
    closed, and may have recovered before the kernel says that it is dead.
    """
    seconds = _step_seconds(records)
    samples = []
    alive = set(range(cell.workers))
    for number, event in enumerate(events):
        before = len(alive)
        alive.difference_update(event.victims)
        if missing := [worker for worker in event.victims if worker not in deaths]:
            raise JobFailed(f"nobody saw workers {missing} die in step {event.step}")
        later = events[number + 1 :]
        # The others may meet it in the step before: the victim may have been through that one.
        until = later[0].step if later else cell.steps
        its_own = range(event.step - 1, later[0].step - 1 if later else cell.steps)
        # A worker that met two losses one after the other says so twice: the last word counts.
        last = {
            int(r["worker"]): r
            for r in records
            if r["event"] == "recovered" and r["step"] in its_own
        }
        if set(last) != alive:
            raise JobFailed(
                f"of the survivors {sorted(alive)} of step {event.step} "
                f"only {sorted(last)} say that they recovered"
            )
        slowest = max(last.values(), key=lambda record: float(record["at"]))
        noticed = slowest["at"] - sum(_after_detection(slowest).values()) / 1e3
        death = min(noticed, *(deaths[worker] for worker in event.victims))
        total = 1e3 * (slowest["at"] - death)
        usual = [seconds[s] for s in range(event.step + 2, until) if s in seconds]
        if not usual:
            raise JobFailed(f"no step is known between {event.step + 2} and {until}")
        step = 1e3 * median(usual)
        signals = [
            r["at"] for r in records if r["event"] == "signal" and r["worker"] in event.victims
        ]
        samples.append(
            Sample(
                workers=before,
                lost=len(event.victims),
                total=total,
                step=step,
                stall=total - step,
                dying=1e3 * (death - min(signals)),
                phases=_phases(slowest, total),
                fraction=event.fraction,
            )
        )
    return samples


def _step_seconds(records: Sequence[Record]) -> dict[int, float]:
    """Seconds of each step: one worker's, who saw them all."""
    own = [r["seconds"] for r in records if r["event"] == "steps"]
    if own:
        return {int(step): float(s) for step, s in own[0].items()}
    return {int(r["step"]): float(r["seconds"]) for r in records if r["event"] == "step"}


def _phases(record: Record, total: float) -> dict[str, float]:
    """Where ``total`` went, in this order, with no remainder.

    What the process itself cannot know (when the others died) is detection.
    """
    known = _after_detection(record)
    return {"detect": total - sum(known.values()), **known}


def _after_detection(record: Record) -> dict[str, float]:
    """What a survivor knows itself: where its time went once it had noticed the loss, in ms."""
    known = {name: float(record[f"{name}_ms"]) for name in _PHASES if f"{name}_ms" in record}
    if "reduce_ms" in record:
        finish = float(record["reduce_ms"])
    else:
        finish = record["total_ms"] - record["detect_ms"] - sum(known.values())
    return {**known, "finish": finish}
