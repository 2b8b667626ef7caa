"""The samples that each worker trains on: every sample of a pass exactly once, elastic. Pure.

All workers hold an equal sampler and compute the same leases without a message. A lease is for the
steps of one round. It belongs to the round, not to a membership: once anybody has been dealt round
``r``, everybody keeps that lease. If a worker is lost before its slice counted, that slice goes
back to a pool that is dealt first.

If contributions are made some steps before the round ends, nobody knows of a worker that dies
whether it took these steps. Their samples are *pending* until the worker contributes again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from spotmpi.errors import UsageError
from spotmpi.protocol.membership import WorkerId

Indices = npt.NDArray[np.int64]

FIRST_SAMPLE: Indices = np.zeros(1, dtype=np.int64)
"""A batch for a rehearsal."""

_NOTHING: Indices = np.empty(0, dtype=np.int64)
_NOTHING.setflags(write=False)


@dataclass(frozen=True)
class Lease:
    """The samples of one round, for each slot and each of its steps.

    A slot is a place for a contribution, and one worker fills it. Usually each worker has one slot.
    A worker that is dealt no samples takes part with weight 0.
    """

    number: int
    """Leases of this sampler before this one."""
    pass_number: int
    slots: tuple[WorkerId, ...]
    """The worker of each slot."""
    samples: Indices
    """Samples of all slots, one after the other. They are shared by `paces`, if there are any, else
    evenly: the first slots may have one more."""
    steps: int = 1
    """Steps of each slot; the average where slots differ."""
    paces: tuple[int, ...] = ()
    """Steps of each slot, if workers take as many as they can in the time of the round."""
    taken: tuple[int, ...] = ()
    """Steps of each slot that were taken, if scripts stopped early: only their samples count."""
    delay: int = 0
    """Steps of each slot that come after its contribution is made."""

    def slot(self, number: int) -> Indices:
        """Return the samples of one slot that count."""
        dealt = self._dealt(number)
        return dealt[: self._used(number, dealt)] if self.taken else dealt

    def slots_of(self, workers: Iterable[WorkerId]) -> list[int]:
        """Return the slots that these workers fill, in the order of the slots."""
        if self._all(workers):
            return list(range(len(self.slots)))
        return sorted(slot for worker in workers for slot in self._slots_of.get(worker, ()))

    def of(self, worker: WorkerId) -> Indices:
        """Return the samples of ``worker``; none if it is not in the lease."""
        return _joined([self.slot(slot) for slot in self._slots_of.get(worker, ())])

    def steps_of(self, slot: int) -> int:
        """Return the steps of one slot."""
        return self.paces[slot] if self.paces else self.steps

    def steps_for(self, worker: WorkerId) -> int:
        """Return the steps of one worker. A worker that is not in the lease is dealt nothing, and
        gets the average."""
        return max(map(self.steps_of, self._slots_of.get(worker, ())), default=self.steps)

    def piece(self, slot: int, step: int) -> Indices:
        """Return the samples of one slot in one of its steps."""
        return _share(self._dealt(slot), step, self.steps_of(slot))

    def part(self, slot: int, step: int, steps: int) -> Indices:
        """Return one of ``steps`` about equal parts of the samples of a slot that count. If there
        are no `paces` and the slot took this number of steps, these are its pieces."""
        if self.paces or steps != (self.taken[slot] if self.taken else self.steps):
            return _share(self.slot(slot), step, steps)
        return self.piece(slot, step)

    def batch(self, worker: WorkerId, step: int) -> Indices:
        """Return the samples of ``worker`` in one of the steps; there may be none."""
        return _joined([self.piece(slot, step) for slot in self._slots_of.get(worker, ())])

    def weigh(self, workers: Sequence[WorkerId]) -> tuple[int, int]:
        """Return how many samples of these workers count, and how many of their slots have any."""
        if not (self.taken or self.paces) and self._all(workers):
            return len(self.samples), min(len(self.samples), len(self.slots))
        counts = [len(self.slot(slot)) for slot in self.slots_of(workers)]
        return sum(counts), sum(map(bool, counts))

    def without(self, workers: Iterable[WorkerId]) -> list[Indices]:
        """Return the samples that were dealt and do not count, if these workers contribute."""
        if not self.taken and self._all(workers):
            return []
        counted, left = frozenset(workers), []
        for slot, who in enumerate(self.slots):
            dealt = self._dealt(slot)
            if who not in counted:
                left.append(dealt)
            elif self.taken:
                left.append(dealt[self._used(slot, dealt) :])
        return left

    def late(self, slot: int) -> tuple[int, int]:
        """Return where the samples of one slot that count and come after its contribution begin
        and end, among all samples."""
        begin, end = _bounds(len(self.samples), slot, len(self.slots))
        after, _ = _bounds(end - begin, self.steps - self.delay, self.steps)
        return begin + after, begin + max(after, len(self.slot(slot)))

    def _dealt(self, slot: int) -> Indices:
        if self.paces:
            return self.samples[self._begins[slot] : self._begins[slot + 1]]
        return _share(self.samples, slot, len(self.slots))

    @cached_property
    def _begins(self) -> Sequence[int]:
        """Where the samples of each slot begin, and where the last ones end."""
        before, all_steps = [0, *itertools.accumulate(self.paces)], sum(self.paces)
        return [len(self.samples) * steps // all_steps for steps in before]

    def _used(self, slot: int, dealt: Indices) -> int:
        """Return how many of a slot's samples belong to the steps that were taken."""
        share, extra = divmod(len(dealt), self.steps_of(slot))
        return self.taken[slot] * share + min(self.taken[slot], extra)

    def _all(self, workers: object) -> bool:
        # True in almost every step. To compare thousands of workers one by one takes microseconds;
        # to compare an object with itself takes nothing.
        return workers is self.slots or workers == self.slots

    @cached_property
    def _slots_of(self) -> Mapping[WorkerId, Sequence[int]]:
        return _table(self.slots)


@lru_cache(maxsize=4)
def _table(slots: tuple[WorkerId, ...]) -> Mapping[WorkerId, Sequence[int]]:
    """Return the slots of each worker. A search in the tuple would make a step quadratic, and so
    would a table for each of thousands of simulated workers: the leases of many steps share one."""
    found: dict[WorkerId, list[int]] = {}
    for slot, worker in enumerate(slots):
        found.setdefault(worker, []).append(slot)
    return found


def _share(samples: Indices, number: int, many: int) -> Indices:
    begin, end = _bounds(len(samples), number, many)
    return samples[begin:end]


def _bounds(samples: int, number: int, many: int) -> tuple[int, int]:
    """Return where one of ``many`` shares begins and ends. The first ones may have one more."""
    share, extra = divmod(samples, many)
    begin = number * share + min(number, extra)
    return begin, begin + share + (number < extra)


def _joined(parts: Sequence[Indices]) -> Indices:
    return parts[0] if len(parts) == 1 else np.concatenate([_NOTHING, *parts])


class Pending(NamedTuple):
    """Samples that count if their worker contributes again. A newcomer is told the places of most:
    their numbers would be too many."""

    worker: WorkerId
    pooled: Indices
    """Those that were put back before."""
    begin: int
    """Place of the others in the order of the pass ..."""
    end: int
    """... and the end of it."""


_NUMBERS = ("pass", "cursor", "steps")


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
        """Leases that counted."""
        self._pass = 0
        self._cursor = 0
        self._pool = _NOTHING
        self._pending: Sequence[Pending] = ()
        self._order = self._shuffled()
        self._lease: Lease | None = None

    def deal(
        self,
        workers: Sequence[WorkerId],
        steps: int = 1,
        paces: Sequence[int] = (),
        delay: int = 0,
    ) -> Lease | None:
        """Return the lease of the next round, ``steps`` long; None when all passes are done.

        The first call for a round fixes its lease for ``workers``; later ones return that lease
        until `count`. At the end of a pass it may have fewer steps. ``paces``: the steps of each
        worker, if they differ. ``delay``: the last steps of the round, which come after the
        contributions to it. The last lease of a pass has none: its samples must count in the pass.
        """
        if self._lease is None and not self.over:
            batches = sum(paces) or len(workers) * steps
            samples = self._next(batches)
            least = -(-len(samples) // (self.batch_size * len(workers)))
            size = self.batch_size * batches
            own = tuple(max(1, -(-len(samples) * pace // size)) for pace in paces)
            known = self.steps, self._pass, tuple(workers), samples, min(steps, least), own
            last = len(samples) == self._left
            self._lease = Lease(*known, delay=0 if last else delay)
        return self._lease

    def end(self, taken: Sequence[int]) -> Lease | None:
        """Cut the fixed lease to the steps ``taken`` of each slot and return it: scripts take no
        more. The rest goes back when the lease counts."""
        if self._lease is not None:
            self._lease = replace(self._lease, taken=tuple(taken))
        return self._lease

    def left(self, workers: int) -> int:
        """Return the steps to come, if ``workers`` workers take them with full batches. The steps
        of a fixed lease that does not count yet are among them."""
        size = self.batch_size * workers
        passes = self.passes - self._pass
        return -(-self._left // size) + (passes - 1) * -(-self.n // size) if passes > 0 else 0

    @property
    def _left(self) -> int:
        """Samples of the pass that do not count yet, those of a fixed lease among them."""
        return len(self._pool) + self.n - self._cursor

    @property
    def over(self) -> bool:
        """True if all passes are done."""
        return self._pass >= self.passes or not self.n

    def count(self, contributors: Collection[WorkerId]) -> None:
        """Commit the fixed lease's round. Samples of others than ``contributors`` go back: those
        that they were dealt, and those that are pending. So do samples of steps not taken."""
        after = self.after(contributors)
        if after["pass"] != self._pass:
            self._pass = after["pass"]
            self._order = self._shuffled()
        self._cursor, self._pool, self.steps = after["cursor"], after["pool"], after["steps"]
        self._pending = after["pending"]
        self._lease = None

    def after(self, contributors: Collection[WorkerId]) -> dict[str, Any]:
        """Return the `state` that `count` of these contributors would lead to."""
        lease = self._lease
        if lease is None:
            raise RuntimeError("no step of this sampler is dealt that could count")
        pooled, used = len(self._pool), len(lease.samples)
        # The lease was cut from the front of pool + order: the rest is untouched.
        left, pool = lease.without(contributors), self._pool[used:]
        if self._pending:
            here = frozenset(contributors)
            left = [*(self._of(one) for one in self._pending if one.worker not in here), *left]
        if left:
            pool = np.concatenate([*left, pool])
        number, cursor = self._pass, self._cursor + max(0, used - pooled)
        if cursor == self.n and not len(pool):
            number, cursor = number + 1, 0
        known = {"n": self.n, "pass": number, "cursor": cursor, "steps": self.steps + 1}
        return {**known, "pool": pool, "pending": self._pending_after(lease, contributors)}

    def _pending_after(self, lease: Lease, contributors: Collection[WorkerId]) -> list[Pending]:
        if not lease.delay:
            return []
        found, pooled = [], min(len(self._pool), len(lease.samples))
        for slot in lease.slots_of(contributors):
            begin, end = lease.late(slot)
            if begin < end:
                places = (self._cursor + max(0, place - pooled) for place in (begin, end))
                found.append(
                    Pending(lease.slots[slot], self._pool[begin : min(end, pooled)], *places)
                )
        return found

    def _of(self, pending: Pending) -> Indices:
        return np.concatenate([pending.pooled, self._order[pending.begin : pending.end]])

    def lent(self) -> dict[str, Any] | None:
        """Return the fixed lease as plain values, which `borrow` needs beside the `state`. None if
        there is none, or if it has no `paces`: others deal an equal lease by themselves."""
        lease = self._lease
        if lease is None or not lease.paces:
            return None
        known = {"samples": len(lease.samples), "steps": lease.steps}
        return {**known, "slots": [*lease.slots], "paces": [*lease.paces]}

    def borrow(self, lent: Mapping[str, Any]) -> Lease:
        """Fix and return the lease that was `lent` by a sampler with this `state`."""
        samples = self._first(lent["samples"])
        slots, paces = (tuple(map(int, lent[key])) for key in ("slots", "paces"))
        self._lease = Lease(self.steps, self._pass, slots, samples, int(lent["steps"]), paces)
        return self._lease

    def state(self) -> dict[str, Any]:
        """Return what a newcomer needs of this sampler."""
        return {
            "n": self.n,
            "pass": self._pass,
            "cursor": self._cursor,
            "steps": self.steps,
            "pool": self._pool,
            "pending": self._pending,
        }

    def kept(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this sampler. What is pending goes back: nobody will
        know whether the workers that are gone then had taken these steps."""
        pool = np.concatenate([*map(self._of, self._pending), self._pool])
        return {**self.state(), "pool": pool, "pending": ()}

    def restore(self, state: Mapping[str, object]) -> None:
        """Go on where the sampler with this `state` stood."""
        if state["n"] != self.n:
            raise UsageError(
                f"the checkpoint was written while training on {state['n']} samples and this run "
                f"has {self.n}: resume with the same data, or train without --resume"
            )
        self._pass, self._cursor, self.steps = (int(str(state[k])) for k in _NUMBERS)
        self._pool, self._pending = pool_of(state), _pending_of(state)
        self._order = self._shuffled()
        self._lease = None

    def _next(self, batches: int) -> Indices:
        # At the end of a pass the rest is spread, so that nobody waits for one full batch.
        return self._first(min(self._left, self.batch_size * batches))

    def _first(self, want: int) -> Indices:
        ahead = self._order[self._cursor : self._cursor + max(0, want - len(self._pool))]
        return np.concatenate([self._pool[:want], ahead]) if len(self._pool) else ahead

    def _shuffled(self) -> Indices:
        key = self.n, *self.seed, self._pass
        order = _ORDERS.get(key)
        if order is None:
            order = _ORDERS[key] = shuffled(self.n, [*self.seed, self._pass])
            order.setflags(write=False)
        return order


def pool_of(state: Mapping[str, object]) -> Indices:
    """Return the samples put back in a sampler's `state`, also if that has come through JSON."""
    return np.asarray(state["pool"], dtype=np.int64)


def _pending_of(state: Mapping[str, Any]) -> list[Pending]:
    known = [Pending(*one) for one in state.get("pending", ())]
    return [one._replace(pooled=np.asarray(one.pooled, dtype=np.int64)) for one in known]


def told_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sampler's `state` as JSON values."""
    pending = [one._replace(pooled=one.pooled.tolist()) for one in _pending_of(state)]
    return {**state, "pool": pool_of(state).tolist(), "pending": pending}


_ORDERS: WeakValueDictionary[tuple[int, ...], Indices] = WeakValueDictionary()
"""Orders that are in use. Equal samplers of one process share theirs."""


_STEP = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


def shuffled(n: int, seed: Sequence[int]) -> Indices:
    """Return the numbers below ``n`` in an order that ``seed``, whole numbers of any size, fixes.

    All workers of a job, and all runs from one checkpoint, must come to the same order. NumPy does
    not promise that for its generators from version to version. So the order is defined here (and
    held by a test): ``i`` is sorted by the upper bits of the ``i``-th number of SplitMix64 (Steele,
    Lea and Flood, 2014). SplitMix64 starts from a state that it makes of ``seed`` in the same way.
    """
    state = np.zeros(1, np.uint64)
    for value in seed:
        state = _mixed(state + np.uint64(int(value) % 2**64))
    numbers = np.arange(n, dtype=np.uint64)
    # Each key holds i in its lower bits: that is faster than an argsort, and no two are equal.
    lower = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    keys = _mixed(state + numbers * np.uint64(_STEP)) & ~lower | numbers
    keys.sort()
    return (keys & lower).astype(np.int64)


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return one step of SplitMix64 from each of these states, modulo 2**64: a bijection."""
    mixed = state + np.uint64(_STEP)
    for shift, factor in _FACTORS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(_LAST_SHIFT))


def generator(seed: int, worker: WorkerId, step: int) -> np.random.Generator:
    """Return the one random generator of this worker and step. Other workers must not draw its
    numbers again: they may depend on the version of NumPy."""
    return np.random.default_rng([seed, worker, step])


def _check(name: str, value: object, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise UsageError(f"batches: {name} must be a whole number >= {least}, not {value!r}")
