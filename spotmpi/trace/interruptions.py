"""Why a training stood still: each interruption with its cause, and what it has cost.

A *gap* is a round that took more than twice as long as its steps usually do. Each gets a cause, by
what the trace tells of it, or is unexplained: nothing is guessed. These are asked in turn:

1. Workers were lost in it, or it was the first round after a change: the cause is what the launcher
   says of them.
2. It is the first round of a run, or of another strategy.
3. A worker copied its state for a checkpoint, or waited for one to be written, for at least half of
   the time that is too much.
4. *Straggler*: a worker came late, by its own account, by at least half of that time; or could have
   run for at least half of it, and had no core; or computed for it within the round. A round of
   `once` before it makes the cause that. Who was slow is told by these times and by nothing else.
5. A newcomer learnt in it, or a checkpoint was written meanwhile.
6. *Round*: all workers tell their times, and none was late, or without a core, or at work: the
   time went by in the round itself, between workers that all waited (a network, a wake-up that
   came late, a virtual machine that did not run). Or with one that was lost since, and took its
   times along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from spotmpi.trace.records import Record
from spotmpi.trace.recoveries import Recovery, parts, recoveries
from spotmpi.trace.timeline import Own, Round, Run, timeline

__all__ = ["UNEXPLAINED", "Interruption", "Story", "story", "unexplained"]

UNEXPLAINED = "unexplained"
_HALF = 0.5
"""Of the time that is too much: what a cause must account for."""
_LOST = "lost"
"""Of a worker, where nobody knows why."""


@dataclass(frozen=True)
class Interruption:
    """One, and what is known of it."""

    at: float
    """Seconds since the training began: when it was over."""
    step: int
    """The one that it delayed."""
    cause: str
    workers: tuple[int, ...]
    """Who was lost, came, left, or was slow; none if that is nobody."""
    cost: float
    """Seconds that it took from the training, beyond what the step usually takes."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of a recovery: milliseconds, by what they went to."""
    why: str = ""
    gap: bool = True
    """It took more than twice as long as usual."""


@dataclass(frozen=True)
class Story:
    """A training, as seen by somebody who paid for its time."""

    runs: Sequence[Run]
    interruptions: Sequence[Interruption]
    total: float
    """Seconds from its beginning to its end, or as far as the trace goes."""
    lost: float
    """Of these: what interruptions cost, and what was trained in vain."""

    @property
    def goodput(self) -> float:
        """The share of the time in which steps advanced."""
        return 1.0 - self.lost / self.total if self.total > 0 else 1.0

    @property
    def rounds(self) -> list[Round]:
        """Of all runs."""
        return [one for run in self.runs for one in run.rounds]

    @property
    def usual(self) -> float | None:
        """Seconds of a usual step."""
        found = [one.seconds / (one.last - one.first + 1) for one in self.rounds]
        return median(found) if found else None


def story(records: Sequence[Record]) -> Story:
    """Of one training, from its trace."""
    runs = timeline(records)
    found: list[Interruption] = []
    lost = 0.0
    for number, run in enumerate(runs):
        found += _between(run, runs[number - 1] if number else None)
        found += _Gaps(run).found()
        lost += sum(one.seconds for one in run.rounds if one.void)
        lost += run.down or 0.0
        lost += sum(one.excess for one in run.rounds if not one.void)
    ended = runs[-1].ended if runs else 0.0
    return Story(runs, sorted(found, key=lambda one: one.at), ended, min(lost, ended))


def unexplained(records: Sequence[Record]) -> list[Interruption]:
    """The gaps of a training that nothing in its trace explains."""
    return [one for one in story(records).interruptions if one.cause == UNEXPLAINED]


def _between(run: Run, before: Run | None) -> Iterator[Interruption]:
    """What it cost that a run ended, and another had to go on."""
    if before is None:
        return
    vain = [one for one in before.rounds if one.void]
    step = next((int(r["step"]) for r in run.of("resume")), 0)
    ends = before.of("end")
    how = f"the run before {ends[-1]['outcome']}" if ends else "the run before came to no end"
    why = f"{how}; {sum(one.last - one.first + 1 for one in vain)} steps were trained in vain"
    if run.down is None:
        why += "; how long nothing ran is not known"
    cost = (run.down or 0.0) + sum(one.seconds for one in vain)
    yield Interruption(run.began, step, "resume", (), cost, why=why)


class _Gaps:
    """Those of one run, and all else that interrupted it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._causes: dict[int, tuple[str, str]] = {
            int(r["worker"]): (str(r["cause"]), str(r["why"])) for r in run.of("cause")
        }
        self._taken: set[int] = set()
        """Rounds, by their place, that are explained."""
        self._usual = {worker: _usual(run, worker) for worker in _tell(run)}
        self._learners = self._find_learners()

    def found(self) -> Iterator[Interruption]:
        """All of them."""
        yield from map(self._of_recovery, recoveries(self._run.records))
        yield from map(self._of_change, _once(self._run.of("change"), "generation"))
        for place, one in enumerate(self._run.rounds):
            if one.gap and place not in self._taken and not one.void:
                cause, workers, why = self._cause(place, one)
                yield Interruption(one.at, one.first, cause, workers, one.excess, why=why)

    # What is an event.

    def _of_recovery(self, one: Recovery) -> Interruption:
        last = one.last
        total, at = last["total_ms"], last.get("at")
        known = at is not None and "worker" in last
        ended = self._run.moment(float(at or 0.0), int(last["worker"])) if known else None
        died = None if ended is None or total is None else ended - 1e-3 * float(total)
        places = self._places(one.step, died, one.lost)
        cost = sum(self._run.rounds[place].excess for place in places)
        kinds = dict.fromkeys(self._causes.get(w, (_LOST, ""))[0] for w in one.lost)
        whys = dict.fromkeys(self._causes.get(w, (_LOST, ""))[1] for w in one.lost)
        if ended is None:
            ended = self._run.rounds[places[-1]].at if places else self._run.ended
        return Interruption(
            ended,
            one.step,
            " and ".join(kinds),
            tuple(one.lost),
            cost,
            parts(last),
            "; ".join(filter(None, [*whys, one.told["verdict"]])),
            any(self._run.rounds[place].gap for place in places),
        )

    def _of_change(self, record: Record) -> Interruption:
        places = self._places(int(record["step"]), None)
        cost = sum(self._run.rounds[place].excess for place in places)
        joined, left = record["joined"], record["left"]
        kinds = ["join"] * bool(joined)
        kinds += dict.fromkeys(self._causes.get(worker, ("leave", ""))[0] for worker in left)
        whys = dict.fromkeys(self._causes.get(worker, ("", ""))[1] for worker in left)
        pause = record.get("pause_ms")
        told = [] if pause is None else [f"pause {pause:.1f} ms"]
        at = self._run.rounds[places[-1]].at if places else self._run.ended
        return Interruption(
            at,
            int(record["step"]),
            " and ".join(kinds) or "change",
            (*joined, *left),
            cost,
            why="; ".join([*filter(None, whys), *told]),
            gap=any(self._run.rounds[place].gap for place in places),
        )

    def _places(self, step: int, died: float | None, lost: Sequence[int] = ()) -> list[int]:
        """The rounds that an event delayed which was told with this step: its own; and after a
        repair also the one before, if the death was in it, or who was lost tells nothing of it."""
        found = []
        for place, one in enumerate(self._run.rounds):
            own = one.first <= step <= one.last
            earlier = one.last == step - 1 and (
                (died is not None and died < one.at) or self._untold(one, lost)
            )
            if (own or earlier) and place not in self._taken:
                found.append(place)
        self._taken.update(place for place in found if self._run.rounds[place].gap)
        return found

    def _untold(self, one: Round, lost: Sequence[int]) -> bool:
        """Whether somebody who was lost took part in a round, and never came through it."""
        own = self._run.own.get(one.last, {})
        return bool(own and (set(lost) & set(one.workers)) - own.keys())

    # What must be found out.

    def _cause(self, place: int, one: Round) -> tuple[str, tuple[int, ...], str]:
        if place == 0:
            kind = "resume" if self._run.of("resume") else "start"
            return kind, (), "the first round: programs are compiled, connections made"
        switched = [r for r in self._run.of("strategy") if one.first <= r["step"] <= one.last]
        if switched:
            first = switched[0]
            return "strategy", (), str(first.get("strategy_name") or first.get("strategy", ""))
        return (
            self._held_by_checkpoint(one)
            or self._straggler(one)
            or self._learning(one)
            or self._written_meanwhile(one)
            or self._in_round(one)
            or (UNEXPLAINED, (), "")
        )

    def _held_by_checkpoint(self, one: Round) -> tuple[str, tuple[int, ...], str] | None:
        for kept in self._run.of("checkpoint"):
            held = 0.0
            if one.first <= kept["step"] <= one.last:
                held += float(kept.get("copy_ms") or 0.0)
            worker = int(kept["worker"])
            if kept.get("at") is not None and self._spans(one, float(kept["at"]), worker):
                held += float(kept.get("wait_ms") or 0.0)
            if held >= _HALF * 1e3 * one.excess:
                why = f"of step {kept['step']}: others waited {held:.1f} ms for its writer"
                return "checkpoint", (worker,), why
        return None

    def _straggler(self, one: Round) -> tuple[str, tuple[int, ...], str] | None:
        own = self._run.own.get(one.last, {})
        most = _HALF * 1e3 * one.excess
        usual = self._usual
        late = {w: said.script - usual[w].script for w, said in own.items()}
        if slow := _most(late, most):
            first = slow[0]
            why = f"its script took {own[first].script:.1f} ms, usually {usual[first].script:.1f}"
            starved = _more(own[first].starved, usual[first].starved)
            if starved >= _HALF * late[first]:
                why += f"; for {starved:.1f} ms it had no core"
            between = own[first].between
            return ("once" if "once" in between else "straggler"), slow, why
        starving = {w: _more(said.starved, usual[w].starved) for w, said in own.items()}
        if slow := _most(starving, most) or _together(starving, most):
            times = ", ".join(f"{starving[w]:.1f}" for w in slow)
            return "straggler", slow, f"could have run, and had no core for {times} ms"
        working = {w: _more(said.ran, usual[w].ran) for w, said in own.items()}
        if slow := _most(working, most):
            return "straggler", slow, f"computed for {working[slow[0]]:.1f} ms within the round"
        return None

    def _learning(self, one: Round) -> tuple[str, tuple[int, ...], str] | None:
        """Whoever was admitted, and takes no steps yet, is sent the state with the rounds."""
        found = [
            worker
            for worker, (admitted, trains) in self._learners.items()
            if admitted <= one.last and (trains is None or one.first <= trains)
        ]
        return ("join", tuple(found), "learnt in this round") if found else None

    def _find_learners(self) -> dict[int, tuple[int, int | None]]:
        """Of each newcomer: the step before which it was admitted, and the first that it took."""
        admitted = {w: int(r["step"]) for r in self._run.of("change") for w in r["joined"]}
        trains: dict[int, int] = {}
        for one in self._run.rounds if admitted else ():
            for worker in admitted.keys() & set(one.workers):
                trains.setdefault(worker, one.first)
        return {worker: (step, trains.get(worker)) for worker, step in admitted.items()}

    def _written_meanwhile(self, one: Round) -> tuple[str, tuple[int, ...], str] | None:
        for kept in self._run.of("checkpoint"):
            if kept.get("began") is None:
                continue
            began = self._run.moment(float(kept["began"]), int(kept["worker"]))
            if began < one.at and one.at - one.seconds < began + float(kept["seconds"]):
                why = f"of step {kept['step']} was written meanwhile, for {kept['seconds']:.3f} s"
                return "checkpoint", (int(kept["worker"]),), why
        return None

    def _in_round(self, one: Round) -> tuple[str, tuple[int, ...], str] | None:
        own = self._run.own.get(one.last, {})
        silent = set(one.workers) - own.keys()
        lost = {w for r in self._run.of("recovery") if r["step"] >= one.first for w in r["lost"]}
        if not own or silent - lost:
            return None
        within = min(said.within for said in own.values())
        told = "none was late, or lacked a core"
        if not silent:
            return "round", (), f"all were in it for {within:.1f} ms; {told}"
        names = ", ".join(map(str, sorted(silent)))
        told += f"; {names}, lost since, took the times of this round along"
        return "round", (), f"those who tell were in it for {within:.1f} ms; {told}"

    def _spans(self, one: Round, at: float, worker: int) -> bool:
        return one.at - one.seconds <= self._run.moment(at, worker) <= one.at


def _once(records: Iterable[Record], key: str) -> list[Record]:
    return list({record[key]: record for record in records}.values())


def _tell(run: Run) -> set[int]:
    return {worker for told in run.own.values() for worker in told}


def _usual(run: Run, worker: int) -> Own:
    """What a worker usually takes for a round."""
    told = [one[worker] for one in run.own.values() if worker in one]
    ran = [one.ran for one in told if one.ran is not None]
    starved = [one.starved for one in told if one.starved is not None]
    return Own(
        median(one.script for one in told),
        median(one.within for one in told),
        median(ran) if ran else None,
        median(starved) if starved else None,
        (),
        0.0,
    )


def _more(now: float | None, usual: float | None) -> float:
    return 0.0 if now is None or usual is None else now - usual


def _most(times: Mapping[int, float], least: float) -> tuple[int, ...]:
    """Who has at least that, and nearly as much as whoever has most; the first has most."""
    top = max(times.values(), default=0.0)
    if top < least or top <= 0.0:
        return ()
    found = [worker for worker, time in times.items() if time >= max(least, _HALF * top)]
    return tuple(sorted(found, key=lambda worker: -times[worker]))


def _together(times: Mapping[int, float], least: float) -> tuple[int, ...]:
    """The few who have that together: sums go from one worker to the next."""
    found, known = [], 0.0
    for worker in sorted(times, key=lambda worker: -times[worker]):
        if times[worker] < least / 4:
            break
        found.append(worker)
        known += times[worker]
        if known >= least:
            return tuple(found)
    return ()
