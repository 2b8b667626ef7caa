"""How a training goes with the strategy that it follows, as a policy wants to know it.

Now and then a round of steps carries a table in which each worker says how long it has computed for
its steps (`protocol.paces`). All read it, so whoever leads next knows what the one before knew, but
for times, which each takes by its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from spotmpi.policies import Metrics, Policy, Tried
from spotmpi.protocol.gradient_noise import Lengths, Noise, estimated
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.paces import Pace
from spotmpi.training.training_state import TrainingState

__all__ = ["StrategySurvey", "decided"]

_KEEPS = 0.9
"""Of a gradient's noise, what earlier surveys have said counts so much."""


class StrategySurvey:
    """One worker's view. Local, all of it."""

    def __init__(
        self,
        training: TrainingState[Any],
        membership: Callable[[], Membership],
        clock: Callable[[], float],
    ) -> None:
        self._training = training
        self._membership = membership
        self._clock = clock
        self._tried: dict[str, tuple[float, int, float, float]] = {}
        """Of each strategy, by its name: progress, workers, and when that was."""
        self._noise: Noise | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another strategy is followed from now on. It is looked at from the end of its first round
        on: that takes the time that workers need to start, or to get memory."""
        self._since = self._begin = 0.0
        self._first: int | None = None
        self._samples = 0

    def committed(self, samples: int) -> None:
        """A round of steps is committed, for which ``samples`` were used."""
        if self._first is None:
            self._since = self._begin = self._clock()
            self._first = self._training.progress.steps
            self._training.meter.begin_anew()
        else:
            self._samples += samples

    def metrics(
        self, told: Sequence[Pace], known: Sequence[Lengths], full: Sequence[WorkerId]
    ) -> Metrics | None:
        """After a round in which workers have ``told`` how they do, and what was ``known`` of
        their gradients; None if that says nothing."""
        now, training, first = self._clock(), self._training, self._first
        if (noise := estimated(known, training.replica.size)) is not None:
            self._noise = noise.after(self._noise, _KEEPS)
        seconds, samples = now - self._begin, self._samples
        self._begin, self._samples = now, 0
        speeds = [one.samples / one.seconds for one in told if one.samples and one.seconds > 0]
        steps = [one.seconds / one.taken for one in told if one.taken and one.seconds > 0]
        if first is None or not (samples and seconds > 0):
            return None
        strategy, workers = training.replica.strategy, len(full)
        progress = samples / seconds
        self._tried[strategy.called] = progress, workers, now, seconds
        members = {one.id: one.host for one in self._membership()}
        return Metrics(
            strategy=strategy,
            steps=training.progress.steps,
            since=training.progress.steps - first,
            seconds=now - self._since,
            workers=workers,
            hosts=len({members[one] for one in full if one in members}),
            throughput=progress / workers,
            share=min(1.0, progress / workers / median(speeds)) if speeds else 1.0,
            slowest=max(steps) / median(steps) if steps else 1.0,
            loss=training.progress.loss,
            noise=None if self._noise is None else self._noise.scale,
            tried={
                name: Tried(known, many, now - at, period)
                for name, (known, many, at, period) in self._tried.items()
            },
        )


def decided(policy: Policy, metrics: Metrics) -> str:
    """Why, for people."""
    there = f"{metrics.workers} workers on {metrics.hosts} host" + "s" * (metrics.hosts != 1)
    return (
        f"{policy}, with {there}: each worker does {metrics.share:.2f} of what it would do alone, "
        f"the slowest computes {metrics.slowest:.2f} times as long as the median one"
    )
