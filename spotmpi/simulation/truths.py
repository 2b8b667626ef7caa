"""What each strategy must come to, worked out on its own, from what workers brought to a round.

`named` strategies are given by their options; nothing of `spotmpi.operators`, `spotmpi.strategies`
or `spotmpi.replay` is used, so a mistake in these is found. Taken as right are the optimizer's
update and the narrowing of sums, which have definitions of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spotmpi.optimizers import Momentum
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices
from spotmpi.simulation.model import RATE, Array, Sums, Way, cut, gradient

__all__ = [
    "Ahead",
    "Brought",
    "Truth",
    "is_asynchronous",
    "is_together",
    "options_of",
    "steps_of_a_round",
    "truth_of",
]


class Brought(NamedTuple):
    """What one worker brought to one step: a gradient, if it has a weight; none if it died before
    the step, with all that its round takes from it under way."""

    worker: WorkerId
    batch: Indices
    weight: int
    gradient: Array


class Ahead(NamedTuple):
    """Of a round whose contributions were made before its last step, as its record has it."""

    sent: int
    """So many steps were taken then."""
    shares: Sequence[int]
    """What they stand for."""


class Truth:
    """Synchronous SGD: parameters that follow the steps of a training, without any of its code but
    the optimizer."""

    local_models = False
    """True if workers move parameters of their own, and remember what they have done with them."""

    def __init__(self, params: Array, arrays: int, **options: float) -> None:
        """Of so many arrays, which are one to the model."""
        self.model = params.copy()
        self.own: dict[WorkerId, Array] = {}
        """Of workers that train parameters of their own: what these are."""
        self._arrays = arrays
        self._options = options
        self._optimizer = Momentum(lr=RATE)
        self._velocity = np.zeros_like(params)
        self._sums = Sums(arrays)
        self._sent = 0
        self._carried = np.ones(len(params), np.bool_)
        """Elements that the round is about."""

    @property
    def replicated(self) -> list[Array]:
        """What must be equal on all workers, in the order in which replicas have it in buckets, of
        which each holds one array, and the last array comes first."""
        return [one for each in self._agreed() for one in cut(each, self._arrays)[::-1]]

    def follow(
        self,
        steps: Sequence[Sequence[Brought]],
        rates: Sequence[float],
        last: int,
        way: Way | None,
        ahead: Ahead | None = None,
        buckets: Sequence[int] = (),
        ends: Mapping[WorkerId, Array] | None = None,
    ) -> str | None:
        """One round, whose last step has this number; what is wrong with what was brought.
        ``buckets``: that it was of, if they were not all. ``ends``: what workers have come to, if
        that does not follow from the steps."""
        shares = {one.worker: 0 for one in steps[-1]}
        for step in steps:
            for one in step:
                shares[one.worker] += one.weight
        self._sent = len(steps)
        if ahead is not None:
            self._sent, shares = ahead.sent, dict(zip(shares, ahead.shares, strict=True))
        self._carried = np.zeros(len(self.model), np.bool_)
        for bucket in buckets or range(self._arrays):
            pieces = np.array_split(self._carried, self._arrays)
            pieces[self._arrays - 1 - bucket][:] = True
        wrong = None
        if ends is None:
            wrong = self._prepare(steps, rates, shares)
        else:
            self._know(shares, ends)
        weight = sum(shares.values())
        if weight and wrong is None:
            brought = self._bring(steps, shares)
            active = sum(map(bool, shares.values()))
            self._move(self._sums.of(brought, way, buckets), weight, active, rates[-1], last)
        return wrong

    def velocities(self, workers: Sequence[WorkerId]) -> dict[WorkerId, Array]:
        """What the optimizers of these remember."""
        return {one: self._velocity.copy() for one in workers}

    def take(self, velocities: Mapping[WorkerId, Array]) -> None:
        """They remember these, which were others' before."""
        for one in velocities.values():
            self._velocity = one.copy()

    def _agreed(self) -> list[Array]:
        return [self.model, self._velocity]

    def _prepare(
        self,
        steps: Sequence[Sequence[Brought]],
        rates: Sequence[float],
        shares: Mapping[WorkerId, int],
    ) -> str | None:
        """What workers do each for itself before the round."""
        return None

    def _know(self, shares: Mapping[WorkerId, int], ends: Mapping[WorkerId, Array]) -> None:
        """Workers have come to that each for itself."""
        raise NotImplementedError("workers have equal parameters")

    def _bring(
        self, steps: Sequence[Sequence[Brought]], shares: Mapping[WorkerId, int]
    ) -> dict[WorkerId, Array]:
        """What goes to the round."""
        (step,) = steps
        return {one.worker: one.gradient * np.float32(one.weight) for one in step}

    def _move(self, total: Array, weight: int, active: int, rate: float, last: int) -> None:
        """What comes of its sum."""
        slots = {"velocity": [self._velocity]}
        self._optimizer.update([self.model], [total], slots, rate, 1.0 / weight)


class _Lookahead(Truth):
    """Slow weights follow."""

    def __init__(self, params: Array, arrays: int, **options: float) -> None:
        super().__init__(params, arrays, **options)
        self._slow = params.copy()

    def _agreed(self) -> list[Array]:
        return [*super()._agreed(), self._slow]

    def _move(self, total: Array, weight: int, active: int, rate: float, last: int) -> None:
        super()._move(total, weight, active, rate, last)
        if (last + 1) % self._options["every"] == 0:
            mix = self._options["mix"]
            self._slow[:] = _of(1.0 - mix) * self._slow + _of(mix) * self.model
            self.model[:] = self._slow


class _LocalModels(Truth):
    """Workers train models of their own; here they meet, and go on with the mean."""

    local_models = True

    def __init__(self, params: Array, arrays: int, **options: float) -> None:
        super().__init__(params, arrays, **options)
        self._velocities: dict[WorkerId, Array] = {}
        self._sends: dict[WorkerId, Array] = {}

    def velocities(self, workers: Sequence[WorkerId]) -> dict[WorkerId, Array]:
        """Each has its own."""
        return {one: self._velocities[one].copy() for one in workers if one in self._velocities}

    def take(self, velocities: Mapping[WorkerId, Array]) -> None:
        """Each has its own."""
        self._velocities = {worker: one.copy() for worker, one in velocities.items()}

    def _agreed(self) -> list[Array]:
        return [self.model]

    def _prepare(
        self,
        steps: Sequence[Sequence[Brought]],
        rates: Sequence[float],
        shares: Mapping[WorkerId, int],
    ) -> str | None:
        # Who is new begins with the model of all, and no velocity; who is gone has gone with both.
        zeros = np.zeros_like(self.model)
        self.own = {one: self.own.get(one, self.model).copy() for one in shares}
        self._velocities = {one: self._velocities.get(one, zeros).copy() for one in shares}
        for number, (step, rate) in enumerate(zip(steps, rates, strict=True), 1):
            for one in step:
                if not (one.weight and len(one.gradient)):
                    continue
                own = self.own[one.worker]
                if one.gradient.tobytes() != gradient(own, one.batch).tobytes():
                    return f"worker {one.worker} trains from parameters that are not its own"
                slots = {"velocity": [self._velocities[one.worker]]}
                self._optimizer.update([own], [one.gradient], slots, rate, 1.0)
            if number == self._sent:
                self._sends = {worker: own.copy() for worker, own in self.own.items()}
        return None

    def _know(self, shares: Mapping[WorkerId, int], ends: Mapping[WorkerId, Array]) -> None:
        self.own = {one: ends.get(one, self.model).copy() for one in shares}
        self._sends = {worker: own.copy() for worker, own in self.own.items()}

    def _bring(
        self, steps: Sequence[Sequence[Brought]], shares: Mapping[WorkerId, int]
    ) -> dict[WorkerId, Array]:
        zeros = np.zeros_like(self.model)
        return {
            one: self._contribution(self._sends[one], share) if share else zeros
            for one, share in shares.items()
        }

    def _contribution(self, own: Array, share: int) -> Array:
        return own * np.float32(share)

    def _move(self, total: Array, weight: int, active: int, rate: float, last: int) -> None:
        self.model[:] = _of(1.0 / weight) * total
        self._meet()

    def _meet(self) -> None:
        for own in self.own.values():
            own[:] = self.model


class _Outer(_LocalModels):
    """What they come to is a gradient for an outer optimizer."""

    def __init__(self, params: Array, arrays: int, **options: float) -> None:
        super().__init__(params, arrays, **options)
        self._outer = np.zeros_like(params)

    def _agreed(self) -> list[Array]:
        return [self.model, self._outer]

    def _contribution(self, own: Array, share: int) -> Array:
        found: Array = np.float32(share) * self.model + np.float32(-share) * own
        return found

    def _move(self, total: Array, weight: int, active: int, rate: float, last: int) -> None:
        outer, momentum = self._options["outer"], self._options["momentum"]
        mix, here = self._options.get("mix", 0.0), self._carried
        mean = _of(1.0 / weight) * total[here]
        self._outer[here] = _of(momentum) * self._outer[here] + mean
        self.model[here] -= _of(outer * momentum) * self._outer[here]
        self.model[here] -= _of(outer) * mean
        for own in self.own.values():
            own[here] = _of(mix) * own[here] + _of(1.0 - mix) * self.model[here]


class _Elastic(_LocalModels):
    """They keep them, and a model of all is pulled to their mean, as they are pulled to it."""

    def __init__(self, params: Array, arrays: int, **options: float) -> None:
        super().__init__(params, arrays, **options)
        self._change = np.zeros_like(params)

    def _agreed(self) -> list[Array]:
        return [self.model, self._change]

    def _move(self, total: Array, weight: int, active: int, rate: float, last: int) -> None:
        pull, momentum = self._options["pull"], self._options.get("momentum", 0.0)
        self._change[:] = _of(momentum) * self._change + _of(pull / weight) * total
        self._change += _of(-pull) * self.model
        for own in self.own.values():
            own[:] = _of(1.0 - pull / active) * own + _of(pull / active) * self.model
        self.model += self._change


class _Pushed(_LocalModels):
    """They go on with all that they have done, each for itself."""

    def _contribution(self, own: Array, share: int) -> Array:
        return own - self.model

    def _move(self, total: Array, weight: int, active: int, rate: float, last: int) -> None:
        self.model += total
        self._meet()


class _Stepped(_Pushed):
    """They go on with the mean of what they have done."""

    def _move(self, total: Array, weight: int, active: int, rate: float, last: int) -> None:
        self.model[:] = _of(1.0) * self.model + _of(1.0 / active) * total
        self._meet()


def _of(number: float) -> Any:
    return np.float32(number)


_TRUTHS: dict[str, type[Truth]] = {
    "ssgd": Truth,
    "lookahead": _Lookahead,
    "localsgd": _LocalModels,
    "sma": _Elastic,
    "easgd": _Elastic,
    "diloco": _Outer,
    "adpsgd": _LocalModels,
    "gossip": _LocalModels,
    "parameterserver": _Pushed,
    "hogwild": _Stepped,
}


def truth_of(strategy: str, params: Array, arrays: int) -> Truth:
    """That of a strategy, by its name and all its options, which begins with these parameters."""
    name, options = _read(strategy)
    return _TRUTHS[name](params, arrays, **options)


def steps_of_a_round(strategy: str) -> int:
    """At most."""
    name, options = _read(strategy)
    steps = options[_LENGTHS[name]] if name in _LENGTHS else 1
    return int(steps / options.get("fragments", 1))


def steps_until_heard(strategy: str) -> int:
    """At most, from a wish to the end of a round that hears of it: what is wished after a round's
    word was said is heard in the next one."""
    return steps_of_a_round(strategy) + int(options_of(strategy).get("delay", 0))


_LENGTHS = {
    "localsgd": "h",
    "easgd": "every",
    "diloco": "h",
    "adpsgd": "control",
    "gossip": "control",
    "parameterserver": "control",
    "hogwild": "control",
}

_PACED = ("adpsgd", "gossip", "parameterserver", "hogwild")


def is_together(strategy: str) -> bool:
    """Each step has a round, and the learning rate follows the number of workers."""
    return not _TRUTHS[_read(strategy)[0]].local_models


def is_asynchronous(strategy: str) -> bool:
    """Workers take different numbers of steps on the way to a round."""
    name, options = _read(strategy)
    return name in _PACED or "quorum" in options


def options_of(strategy: str) -> Mapping[str, float]:
    """What its name says."""
    return _read(strategy)[1]


def _read(strategy: str) -> tuple[str, dict[str, float]]:
    name, _, said = strategy.partition(":")
    pairs = (one.split("=") for one in said.split(",") if one)
    return name, {option: float(value) for option, value in pairs if option != "narrow"}
