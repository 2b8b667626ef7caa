"""Which samples each worker trains on: every sample of a pass exactly once, elastic. Pure.

All workers hold an equal sampler and compute the same deals without a message. A deal belongs to
a step, not to a membership: once anybody has been dealt step ``s``, everybody keeps that deal,
and a slice whose worker was lost before it counted goes back to a pool that is dealt first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from spotmpi.errors import UsageError
from spotmpi.membership import Membership, WorkerId

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Deal:
    """One step's samples by worker; a worker dealt nothing takes part with weight 0."""

    number: int
    """Steps of this sampler before it."""
    pass_number: int
    workers: tuple[WorkerId, ...]
    samples: Indices
    """Of all workers, one after the other, shared as evenly as can be: the first have one more."""

    def of(self, worker: WorkerId) -> Indices:
        """The samples of ``worker``; none if it is not in the deal."""
        rank = self._ranks.get(worker)
        if rank is None:
            return _NOTHING
        share, extra = divmod(len(self.samples), len(self.workers))
        begin = rank * share + min(rank, extra)
        return self.samples[begin : begin + share + (rank < extra)]

    def weigh(self, workers: Sequence[WorkerId]) -> tuple[int, int]:
        """How many samples these workers were dealt, and how many of them were dealt any."""
        if self._all(workers):
            return len(self.samples), min(len(self.samples), len(self.workers))
        counts = [len(self.of(worker)) for worker in workers]
        return sum(counts), sum(map(bool, counts))

    def without(self, workers: Iterable[WorkerId]) -> list[Indices]:
        """What was dealt to all others than these."""
        if self._all(workers):
            return []
        counted = frozenset(workers)
        return [self.of(worker) for worker in self.workers if worker not in counted]

    def _all(self, workers: object) -> bool:
        # In almost every step. Comparing them one by one is a matter of microseconds for thousands,
        # and where they are the same object, of nothing.
        return workers is self.workers or workers == self.workers

    @cached_property
    def _ranks(self) -> dict[WorkerId, int]:
        # A step asks for every worker's samples: a search in the tuple would make it quadratic.
        return {worker: rank for rank, worker in enumerate(self.workers)}


_NUMBERS = ("pass", "cursor", "steps")
_NOTHING: Indices = np.empty(0, dtype=np.int64)
_NOTHING.setflags(write=False)


class Sampler:
    """Deals ``passes`` passes over ``n`` samples, ``batch_size`` to each worker and step."""

    def __init__(self, n: int, batch_size: int, passes: int, seed: Sequence[int]) -> None:
        _check("n", n, 0)
        _check("batch_size", batch_size, 1)
        _check("passes", passes, 0)
        self.n = int(n)
        self.batch_size = int(batch_size)
        self.passes = int(passes)
        self.seed = tuple(seed)
        self.steps = 0
        """Deals that counted."""
        self._pass = 0
        self._cursor = 0
        self._pool = _NOTHING
        self._order = self._shuffled()
        self._deal: Deal | None = None

    def deal(self, workers: Sequence[WorkerId]) -> Deal | None:
        """The deal of the next step; None when all passes are done.

        The first call for a step fixes its deal for ``workers``; later ones return that deal
        until `count`.
        """
        if self._deal is None and not self.over:
            self._deal = Deal(self.steps, self._pass, tuple(workers), self._next(len(workers)))
        return self._deal

    @property
    def over(self) -> bool:
        """Whether all passes are done."""
        return self._pass >= self.passes or not self.n

    def count(self, contributors: Iterable[WorkerId]) -> None:
        """The fixed deal's step is committed; what others than ``contributors`` held goes back."""
        after = self.after(contributors)
        if after["pass"] != self._pass:
            self._pass = after["pass"]
            self._order = self._shuffled()
        self._cursor, self._pool, self.steps = after["cursor"], after["pool"], after["steps"]
        self._deal = None

    def after(self, contributors: Iterable[WorkerId]) -> dict[str, Any]:
        """The `state` that `count` of these contributors would lead to."""
        deal = self._deal
        if deal is None:
            raise RuntimeError("no step of this sampler is dealt that could count")
        pooled, used = len(self._pool), len(deal.samples)
        # The deal was cut from the front of pool + order, so what follows them is untouched.
        pool = np.concatenate([*deal.without(contributors), self._pool[used:]])
        number, cursor = self._pass, self._cursor + max(0, used - pooled)
        if cursor == self.n and not len(pool):
            number, cursor = number + 1, 0
        return {
            **self.state(),
            "pass": number,
            "cursor": cursor,
            "steps": self.steps + 1,
            "pool": pool,
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint or a newcomer needs of it."""
        return {
            "n": self.n,
            "pass": self._pass,
            "cursor": self._cursor,
            "steps": self.steps,
            "pool": self._pool,
        }

    def restore(self, state: Mapping[str, object]) -> None:
        """Go on where the sampler with this `state` stood."""
        if state["n"] != self.n:
            raise UsageError(
                f"the checkpoint was written while training on {state['n']} samples and this run "
                f"has {self.n}: resume with the same data, or train without --resume"
            )
        self._pass, self._cursor, self.steps = (int(str(state[k])) for k in _NUMBERS)
        pool = np.asarray(state["pool"], dtype=np.int64)
        self._pool = pool
        self._order = self._shuffled()
        self._deal = None

    def _next(self, workers: int) -> Indices:
        # At the end of a pass the rest is spread, so that nobody waits for one full batch.
        left = len(self._pool) + self.n - self._cursor
        want = min(left, self.batch_size * workers)
        ahead = self._order[self._cursor : self._cursor + max(0, want - len(self._pool))]
        return np.concatenate([self._pool[:want], ahead])

    def _shuffled(self) -> Indices:
        return shuffled(self.n, [*self.seed, self._pass])


class Dealer:
    """What one worker has been dealt, and for whom: keeps equal samplers equal in recoveries.

    A step is dealt for the membership in which the first worker draws it. After a recovery all
    learn from the verdict whether anybody alive has drawn the next step, and for whom.
    """

    def __init__(self) -> None:
        self.committed = 0
        """Steps drawn and committed."""
        self._basis: Membership | None = None
        self._drawn: Sampler | None = None

    @property
    def drawn(self) -> Sampler | None:
        """Where the step comes from that is drawn and not committed."""
        return self._drawn

    @property
    def dealt(self) -> tuple[int, int]:
        """Steps drawn so far, and the generation that the last was dealt for."""
        generation = self._basis.generation if self._basis else 0
        return self.committed + (self._drawn is not None), generation

    def after(self) -> int:
        """Steps committed once the one that is drawn is."""
        return self.committed + (self._drawn is not None)

    def restore(self, committed: int) -> None:
        """Go on where the dealer with this `after` stands; nothing is drawn."""
        self.committed = committed
        self._drawn = self._basis = None

    def draw(self, sampler: Sampler, membership: Membership) -> Deal | None:
        """The next step of ``sampler``, for ``membership`` unless it was dealt for another."""
        deal = sampler.deal((self._basis or membership).ids)
        if deal is not None:
            self._basis = self._basis or membership
            self._drawn = sampler
        return deal

    def count(self, contributors: Iterable[WorkerId]) -> None:
        """The step drawn is committed with the slices of ``contributors``."""
        if self._drawn is None:
            raise RuntimeError("no step is drawn that could count")
        self._drawn.count(contributors)
        self.committed += 1
        self._drawn = self._basis = None

    def resume(self, dealt: int, dealt_for: Membership | None) -> None:
        """After a recovery: somebody alive has drawn step ``dealt - 1``, for ``dealt_for``."""
        if dealt <= self.committed:
            self._basis = None  # the next step is nobody's yet: deal it for the new membership
        elif self._drawn is None and dealt_for is not None:
            self._basis = dealt_for


_STEP = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


def shuffled(n: int, seed: Sequence[int]) -> Indices:
    """The numbers below ``n`` in an order that follows from ``seed``, whole numbers of any size.

    All workers of a job, and all runs from one checkpoint, must come to the same order. NumPy does
    not promise that of its generators from version to version, so the order is defined here (and
    held by a test): ``i`` is sorted by the upper bits of the ``i``-th number of SplitMix64 (Steele,
    Lea and Flood, 2014), which starts from a state made of ``seed`` in the same way.
    """
    state = np.zeros(1, np.uint64)
    for value in seed:
        state = _mixed(state + np.uint64(int(value) % 2**64))
    numbers = np.arange(n, dtype=np.uint64)
    # What is sorted holds i in its lower bits: faster than an argsort, and no two are equal.
    lower = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    keys = _mixed(state + numbers * np.uint64(_STEP)) & ~lower | numbers
    keys.sort()
    return (keys & lower).astype(np.int64)


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """One step of SplitMix64 from each of these states, modulo 2**64: a bijection."""
    mixed = state + np.uint64(_STEP)
    for shift, factor in _FACTORS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(_LAST_SHIFT))


def generator(seed: int, worker: WorkerId, step: int) -> np.random.Generator:
    """The one random generator of this worker and step. What it draws is not for other workers to
    draw again: that may depend on the version of NumPy."""
    return np.random.default_rng([seed, worker, step])


def _check(name: str, value: object, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise UsageError(f"batches: {name} must be a whole number >= {least}, not {value!r}")
