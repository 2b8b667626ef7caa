"""What the steps in a trace lead to, round by round, with whatever strategy is followed."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from spotmpi.arrays.backend import digest_of
from spotmpi.protocol.membership import WorkerId
from spotmpi.simulation.model import Array, Way
from spotmpi.simulation.pairs import Pairs
from spotmpi.simulation.truths import Ahead, Brought, Truth, is_asynchronous, truth_of

__all__ = ["Following"]


class Following:
    """The model of all, worked out from the trace alone; each method says what is wrong, if
    anything is."""

    def __init__(
        self, strategy: str, arrays: int, pairs: Pairs, first: Callable[[], Array]
    ) -> None:
        """``strategy``: the first one, with all its options. ``arrays``: so many are trained.
        ``pairs``: what workers come to that take steps at their own pace. ``first``: the
        parameters that all begin with, asked for when a round has ended."""
        self.strategy = strategy
        """The one that is followed."""
        self.switched: list[tuple[str, str]] = []
        """From which strategy workers changed to which, change by change."""
        self._digests: dict[tuple[int, str], int] = {}
        """Of the replicated state after so many steps, for the strategy that goes on from there."""
        self._arrays = arrays
        self._pairs = pairs
        self._first = first
        self._truth: Truth | None = None
        self._round: list[tuple[list[Brought], float]] = []
        """Steps in the trace whose round is not complete there, with their learning rates."""
        self._ways: dict[tuple[int, int], tuple[int, str]] = {}
        """Of generations and arrays, since which step sums go which way."""
        self._members: Sequence[WorkerId] = ()
        """Who took part in the last one."""
        self._begun = self._after = 0
        """The step that it began with, and the one after it."""

    @property
    def asynchronous(self) -> bool:
        """Workers take different numbers of steps on the way to a round."""
        return is_asynchronous(self.strategy)

    @property
    def model(self) -> Array:
        """Of all, after the last round."""
        return self._known.model

    @property
    def taken(self) -> int:
        """Steps in the trace whose round is not complete there."""
        return len(self._round)

    def step(self, brought: list[Brought], rate: float) -> None:
        """A step is in the trace."""
        self._round.append((brought, rate))

    def chosen(self, record: Mapping[str, Any]) -> str | None:
        """A way was chosen for the sum of an array."""
        self._ways[record["generation"], record["array"]] = record["step"], record["way"]
        slower = record["ms"][record["way"]] > min(record["ms"].values())
        return f"a slower way was chosen: {record}" if slower else None

    def went(self, record: Mapping[str, Any]) -> str | None:
        """The sums of a step went some ways, and have to go as was said."""
        step, ways = record["step"], record.get("ways", ())
        for array, way in zip(record.get("buckets", range(len(ways))), ways, strict=bool(ways)):
            since, chosen = self._ways.get((record["generation"], array), (step, way))
            if step > since and way != chosen:
                return f"step {step}: the sum of {array} went {way}: {chosen}"
        return None

    def forget(self) -> None:
        """What is missing of a round will not come."""
        self._round.clear()

    def end(self, step: int, record: Mapping[str, Any]) -> str | None:
        """A round ends with this step."""
        steps, rates = zip(*self._round, strict=True)
        self._round.clear()
        way = None
        if hosts := record.get("hosts"):
            way = Way(hosts, record["ways"], record.get("narrow"))
        ahead = None
        if "sent" in record:
            ahead = Ahead(record["sent"], record["shares"])
        self._begun, self._after = step + 1 - len(steps), step + 1
        ends, wrong = self._ends(steps)
        truth = self._known
        wrong = wrong or truth.follow(
            steps, rates, step, way, ahead, record.get("buckets", ()), ends
        )
        if wrong:
            return f"step {step}: {wrong}"
        self._members = [one.worker for one in steps[-1]]
        self._digests[step + 1, self.strategy] = digest = digest_of(truth.replicated)
        if record["digest"] != f"{digest:016x}":
            return f"step {step} does not lead to the digest that the trace has"
        return None

    def change(
        self, step: int, strategy: str, dead: Container[WorkerId], known: bool
    ) -> str | None:
        """Another strategy is followed from this step on. What the ``dead`` remembered may be of a
        round that the others have computed again. ``known``: the trace has all steps so far."""
        self.switched.append((self.strategy, strategy))
        self._ways.clear()
        if not known:
            self.strategy = strategy
            return None
        if self._round:
            return f"the strategy changes before step {step}, in the middle of a round"
        velocities = self._velocities
        self._truth = self._changed(strategy)
        self.strategy = strategy
        self._digests[step, strategy] = digest_of(self._truth.replicated)
        if not self.asynchronous:
            return None
        zeros = np.zeros_like(self.model)
        for worker, brought in self._pairs.begun(step).items():
            remembered = velocities.get(worker, zeros).tobytes()
            if worker not in dead and brought.tobytes() != remembered:
                return f"worker {worker} begins step {step} with another velocity than it had"
        return None

    def digest(self, step: int, strategy: str) -> int | None:
        """Of what is replicated after so many steps, for a strategy that goes on from there; None
        if that is not known."""
        known = self._digests.get((step, strategy))
        if known is None and step == self._after:
            return digest_of(self._changed(strategy).replicated)
        return known

    def _changed(self, strategy: str) -> Truth:
        before, found = self._known, truth_of(strategy, self._known.model, self._arrays)
        if found.local_models or not before.local_models:
            found.take(self._velocities)
        return found

    @property
    def _velocities(self) -> Mapping[WorkerId, Array]:
        """What the optimizers of those remember who took part in the last round."""
        if self.asynchronous:
            known = self._begun, self.model
            return {one: self._pairs.velocity(one, *known) for one in self._members}
        return self._known.velocities(self._members)

    @property
    def _known(self) -> Truth:
        if self._truth is None:
            self._truth = truth_of(self.strategy, self._first(), self._arrays)
        return self._truth

    def _ends(
        self, steps: Sequence[Sequence[Brought]]
    ) -> tuple[Mapping[WorkerId, Array] | None, str | None]:
        """What workers came to that have taken these steps at their own pace; they used what the
        trace says."""
        if not self.asynchronous:
            return None, None
        first = self._begun
        used: dict[WorkerId, list[int]] = {one.worker: [] for one in steps[0]}
        for step in steps:
            for one in step:
                used[one.worker] += one.batch.tolist()
        for worker, samples in used.items():
            if samples and samples != self._pairs.batches.get((first, worker)):
                return None, f"worker {worker} used other samples since step {first}: {samples}"
        ends = self._pairs.ends
        return {one: ends[first, one] for one in used if (first, one) in ends}, None
