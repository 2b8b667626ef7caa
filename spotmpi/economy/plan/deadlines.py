"""In time, whatever happens: spot nodes while they are there, on-demand nodes when they must be.

A job is so much work for ``nodes`` equal nodes, and each node that is started trains only after a
changeover. `replay` lives through a trace of availability with one of these policies:

- *on demand*: nothing else.
- *greedy*: spot while there is some, else nothing, until only on demand is still in time.
- *uniform progress* (Wu et al., Can't Be Late, NSDI 2024), here for any number of nodes: spot while
  there is some; the missing nodes on demand as soon as less is done than an even pace would have
  done, t C / R of the work C at the time t of the deadline R; an on-demand node is left for a spot
  node only when it is ahead of that pace by two changeovers: (t + 2d) C / R < done.

All of them use on demand only from the moment at which what is left and two changeovers reach the
time that is left: one for what has just been started, one for the node that replaces it. Spot nodes
that train by then go on until they are lost. So nobody is late if the deadline allows for the work
and one changeover at all.

`least` is what somebody who knows the trace would pay at least. Pure; seconds and dollars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from spotmpi.economy.market.availability import Availability
from spotmpi.economy.market.prices import Billing, cost
from spotmpi.economy.quantities import HOUR, time_text
from spotmpi.errors import UsageError

__all__ = ["POLICIES", "Choice", "Job", "Outcome", "Policy", "State", "least", "replay"]

_MOMENT = 1e-6
"""Seconds that are no time: sums of floats."""


@dataclass(frozen=True)
class Job:
    """What is to be done. UsageError where not even on-demand nodes are in time."""

    nodes: int
    work_s: float
    """Seconds on all nodes together."""
    deadline_s: float
    changeover_s: float
    """From the start of a node, from which it is paid, until it trains."""
    spot: float
    """Dollars per hour of a node."""
    on_demand: float
    billing: Billing = "second"

    def __post_init__(self) -> None:
        if self.work_s + self.changeover_s > self.deadline_s + _MOMENT:
            raise UsageError(
                f"the work takes {time_text(self.work_s)} and a changeover "
                f"{time_text(self.changeover_s)}: not even on-demand nodes are in time for a "
                f"deadline of {time_text(self.deadline_s)}"
            )

    @property
    def pace(self) -> float:
        """Of the work, in a second, to be done exactly in time."""
        return self.work_s / self.deadline_s


@dataclass
class Outcome:
    """How it went."""

    seconds: float = 0.0
    dollars: float = 0.0
    spot_s: float = 0.0
    on_demand_s: float = 0.0
    """Node seconds that were paid."""
    starts: int = 0
    """Nodes that were started."""


class State(NamedTuple):
    """What a policy sees."""

    job: Job
    now_s: float
    done_s: float
    """Of `Job.work_s`."""
    supply: int
    """Spot nodes that one can have, those that one has among them."""
    spot: int
    """Spot nodes that one has."""
    on_demand: int
    speed: float
    """Part of all nodes that train now."""

    @property
    def slack_s(self) -> float:
        """Until nothing but on demand is in time."""
        job = self.job
        return job.deadline_s - self.now_s - (job.work_s - self.done_s) - 2 * job.changeover_s

    @property
    def ahead_s(self) -> float:
        """Of the work, beyond an even pace."""
        return self.done_s - self.now_s * self.job.pace


class Choice(NamedTuple):
    """What a policy wants: so many nodes, and to be asked again after so long."""

    spot: int
    on_demand: int
    again_s: float


Policy = Callable[[State], Choice]


def _only_on_demand(state: State) -> Choice:
    return Choice(0, state.job.nodes, math.inf)


def _in_need(state: State) -> Choice | None:
    """On demand, if nothing else is in time; spot nodes that train go on."""
    if state.slack_s > _MOMENT:
        return None
    kept = min(state.spot, state.supply)
    return Choice(kept, state.job.nodes - kept, math.inf)


def _until_need(state: State) -> float:
    """The slack shrinks by what is not trained."""
    return state.slack_s / (1 - state.speed) if state.speed < 1 else math.inf


def _greedy(state: State) -> Choice:
    if (need := _in_need(state)) is not None:
        return need
    return Choice(min(state.supply, state.job.nodes), 0, _until_need(state))


def _uniform(state: State) -> Choice:
    if (need := _in_need(state)) is not None:
        return need
    job, ahead = state.job, state.ahead_s
    there = min(state.supply, job.nodes)
    again = _until_need(state)
    # Until the even pace catches up with what is done, or what is done is ahead of it by enough.
    enough = 2 * job.changeover_s * job.pace
    gains = state.speed - job.pace
    if gains < 0 and ahead > _MOMENT:
        again = min(again, ahead / -gains)
    if gains > 0 and state.on_demand and ahead < enough + _MOMENT:
        again = min(again, (enough + 2 * _MOMENT - ahead) / gains)
    if state.on_demand and ahead < enough + _MOMENT:  # stay: spot only beside them
        spot, on_demand = min(there, job.nodes - state.on_demand), state.on_demand
    else:
        spot, on_demand = there, min(state.on_demand, job.nodes - there)
    behind = ahead < -_MOMENT or (ahead <= _MOMENT and (spot + on_demand) / job.nodes < job.pace)
    if behind:
        on_demand = job.nodes - spot
    return Choice(spot, on_demand, again)


POLICIES: dict[str, Policy] = {
    "on demand": _only_on_demand,
    "greedy": _greedy,
    "uniform progress": _uniform,
}
"""By the names that people read."""


@dataclass
class _Nodes:
    """Nodes of one market: since when each is paid; it trains a changeover later."""

    dollars_per_hour: float
    since: list[float] = field(default_factory=list)


class _Replay:
    def __init__(self, policy: Policy, supply: Iterator[tuple[float, int]], job: Job) -> None:
        self._policy, self._supply, self._job = policy, supply, job
        self._now = self._done = 0.0
        self._spot, self._on_demand = _Nodes(job.spot), _Nodes(job.on_demand)
        self._outcome = Outcome()

    def run(self) -> Outcome:
        job = self._job
        until, supply = next(self._supply)
        while True:
            while until <= self._now + _MOMENT:
                until, supply = next(self._supply)
            self._set(self._spot, min(len(self._spot.since), supply))  # lost ones are gone
            choice = self._policy(self._state(supply))
            self._set(self._spot, choice.spot)
            self._set(self._on_demand, choice.on_demand)
            # Asked again: what was chosen may change the speed, and so when to ask.
            again = self._policy(self._state(supply)).again_s
            speed = self._speed()
            left = job.work_s - self._done
            end = self._now + left / speed if speed else math.inf
            at = min(end, until, self._now + max(again, _MOMENT), self._next_ready())
            self._done += (at - self._now) * speed
            self._now = at
            if at == end:
                break
        for nodes in (self._spot, self._on_demand):
            self._set(nodes, 0)
        self._outcome.seconds = self._now
        return self._outcome

    def _state(self, supply: int) -> State:
        there = len(self._spot.since), len(self._on_demand.since)
        return State(self._job, self._now, self._done, supply, *there, self._speed())

    def _ready(self) -> Iterator[float]:
        for nodes in (self._spot, self._on_demand):
            for since in nodes.since:
                yield since + self._job.changeover_s

    def _speed(self) -> float:
        return sum(at <= self._now + _MOMENT for at in self._ready()) / self._job.nodes

    def _next_ready(self) -> float:
        return min((at for at in self._ready() if at > self._now + _MOMENT), default=math.inf)

    def _set(self, nodes: _Nodes, count: int) -> None:
        """Have so many: the oldest ones go."""
        while len(nodes.since) > count:
            seconds = self._now - nodes.since.pop(0)
            self._outcome.dollars += cost(seconds, nodes.dollars_per_hour, self._job.billing)
            if nodes is self._on_demand:
                self._outcome.on_demand_s += seconds
            else:
                self._outcome.spot_s += seconds
        self._outcome.starts += count - len(nodes.since)
        nodes.since += [self._now] * (count - len(nodes.since))


def replay(policy: Policy, trace: Availability, offset_s: float, job: Job) -> Outcome:
    """Do the job from ``offset_s`` into the trace on, which begins anew behind its end."""
    return _Replay(policy, _supply(trace, offset_s), job).run()


def _supply(trace: Availability, offset_s: float) -> Iterator[tuple[float, int]]:
    """Until when there are so many spot nodes, again and again."""
    times, counts = trace.from_offset(offset_s)
    ends = [*times[1:].tolist(), trace.length_s]
    begin = 0.0
    while True:
        for end, count in zip(ends, counts.tolist(), strict=True):
            yield begin + end, count
        begin += trace.length_s


def least(trace: Availability, offset_s: float, job: Job) -> float:
    """Dollars that somebody who knows the trace pays at least.

    The longest stays of spot nodes first, as their changeovers weigh least; the rest on demand,
    with one changeover. A bound: on-demand nodes may need more of them, to fit between. Billed by
    the second.
    """
    stays: list[float] = []
    open_: list[float] = []
    begin = 0.0
    for end, count in _supply(trace, offset_s):
        there = min(count, job.nodes)
        while len(open_) > there:
            stays.append(begin - open_.pop())
        open_ += [begin] * (there - len(open_))
        if end >= job.deadline_s:
            break
        begin = end
    stays += [job.deadline_s - since for since in open_]
    left, paid, wait = job.work_s * job.nodes, 0.0, job.changeover_s
    best = (left + wait) * job.on_demand
    for stay in sorted(stays, reverse=True):
        useful = min(stay - wait, left)
        if useful <= 0:
            break
        left -= useful
        paid += (useful + wait) * job.spot
        best = min(best, paid + ((left + wait) * job.on_demand if left > _MOMENT else 0.0))
    return best / HOUR
