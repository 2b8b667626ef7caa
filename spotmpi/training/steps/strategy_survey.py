"""Surveys: how a training goes with the strategy that it follows, for a policy.

Now and then (`Synchroniser.surveys`) a round of steps carries a table in which each worker says how
long it has computed for its steps (`protocol.paces`). All workers read it. So the next leader knows
what the last one knew, except for times: each worker takes these by its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from spotmpi.policies import Metrics, Tried
from spotmpi.protocol.gradient_noise import Lengths, Noise, estimated
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.paces import Pace
from spotmpi.training.state.training_state import TrainingState

__all__ = ["StrategySurvey"]

_KEEPS = 0.9
"""Weight of earlier surveys in the average of the gradient's noise."""


class StrategySurvey:
    """One worker's view of the surveys. Local, all of it."""

    def __init__(
        self,
        training: TrainingState[Any],
        membership: Callable[[], Membership],
        clock: Callable[[], float],
    ) -> None:
        self._training = training
        self._membership = membership
        self._clock = clock
        self._tried: dict[str, tuple[int, float, float]] = {}
        """Workers, time and seconds of the last survey of each strategy, by its name."""
        self._progress: dict[int, dict[str, float]] = {}
        """Samples a second of each strategy, in its last survey with this number of workers."""
        self._noise: Noise | None = None
        self.reset()

    def reset(self) -> None:
        """Begin again: the workers follow another strategy. The measurement begins after its first
        round, in which workers may still start or get memory."""
        self._since = self._begin = self._last = 0.0
        self._first: int | None = None
        self._surveyed = 0
        """Steps of the training at the last survey that said something."""
        self._samples, self._worker_seconds = 0, 0.0

    def committed(self, samples: int, workers: int) -> None:
        """Count a committed round of steps: its ``samples``, and how many ``workers`` took part."""
        now = self._clock()
        if self._first is None:
            self._since = self._begin = now
            self._first = self._surveyed = self._training.progress.steps
            self._training.meter.reset()
        else:
            self._samples += samples
            # Workers come and go between two surveys: each counts for as long as it was there.
            self._worker_seconds += workers * (now - self._last)
        self._last = now

    def stalls(self, seconds: float) -> None:
        """Leave these seconds out: workers were brought together again in them."""
        self._last += seconds

    def metrics(
        self, told: Sequence[Pace], known: Sequence[Lengths], full: Sequence[WorkerId]
    ) -> Metrics | None:
        """Return the metrics after a survey; None if it says nothing. ``told``: paces of workers.
        ``known``: lengths of their gradients. ``full``: the workers that took part.

        A round may have fewer steps than usual, as the last one of a pass has. Its survey says
        nothing, and the next one says how both went: a round takes as long, however few steps it
        has."""
        now, training, first = self._clock(), self._training, self._first
        if (noise := estimated(known, training.model.layout.size)) is not None:
            self._noise = noise.after(self._noise, _KEEPS)
        strategy, steps = training.sync.strategy, training.progress.steps
        if steps - self._surveyed < strategy.every:
            return None
        seconds, samples, worked = now - self._begin, self._samples, self._worker_seconds
        self._begin, self._samples, self._worker_seconds = now, 0, 0.0
        self._surveyed = steps
        speeds = [one.samples / one.seconds for one in told if one.samples and one.seconds > 0]
        took = [one.seconds / one.taken for one in told if one.taken and one.seconds > 0]
        if first is None or not (samples and worked > 0):
            return None
        workers, throughput = len(full), samples / worked
        self._tried[strategy.called] = workers, now, seconds
        self._progress.setdefault(workers, {})[strategy.called] = throughput * workers
        members = {one.id: one.host for one in self._membership()}
        return Metrics(
            strategy=strategy,
            steps=steps,
            since=steps - first,
            seconds=now - self._since,
            workers=workers,
            hosts=len({members[one] for one in full if one in members}),
            throughput=throughput,
            share=min(1.0, throughput / fmean(speeds)) if speeds else 1.0,
            slowest=max(took) / median(took) if took else 1.0,
            loss=training.progress.loss,
            noise=None if self._noise is None else self._noise.scale,
            tried={
                name: self._known(name, many, now - at, period)
                for name, (many, at, period) in self._tried.items()
            },
        )

    def _known(self, name: str, workers: int, ago: float, period: float) -> Tried:
        found = self._progress[workers]
        behind = 1.0 - found[name] / max(found.values())
        return Tried(found[name], workers, ago, period, behind)
