"""Workers, and the numbered, immutable memberships that they form. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakValueDictionary

WorkerId = int
"""Id from admission on, never reused. It is no rank: ranks change with every membership."""


@dataclass(frozen=True)
class Worker:
    """One process with one model replica, and the host it runs on. A host is revoked whole."""

    id: WorkerId
    host: str = "localhost"


_Change = tuple[int, frozenset[WorkerId], Worker | None]


@dataclass(frozen=True)
class Membership:
    """The workers of one generation, in ring order.

    ``generation`` goes up at every change and never repeats. A worker's rank is its position here
    and nothing more.

    Equal calls of a method return the same object, as long as anybody holds it: thousands of
    simulated workers share each membership.
    """

    generation: int
    workers: tuple[Worker, ...]
    ids: tuple[WorkerId, ...] = field(init=False, repr=False, compare=False)
    """Ids of the workers, in ring order."""
    _rank: dict[WorkerId, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(worker.id for worker in self.workers))
        object.__setattr__(self, "_rank", {worker: rank for rank, worker in enumerate(self.ids)})
        if len(self._rank) != len(self.workers):
            raise ValueError(f"a worker appears twice in generation {self.generation}: {self.ids}")

    @classmethod
    def first(cls, hosts: Collection[str]) -> Membership:
        """Return generation 0: one worker for each of ``hosts``, with ids from 0 on."""
        return cls(0, tuple(Worker(i, host) for i, host in enumerate(hosts)))

    def rank(self, worker: WorkerId) -> int:
        """Return the position of ``worker``; KeyError if it is no member."""
        return self._rank[worker]

    def without(
        self, gone: Collection[WorkerId], generation: int, newcomer: Worker | None = None
    ) -> Membership:
        """Return this ring without ``gone``, as ``generation``, which must be a later one.

        A ``newcomer`` comes last: only the last worker gets another next neighbour.
        """
        if generation <= self.generation:
            raise ValueError(f"generation {generation} does not come after {self.generation}")
        left = frozenset(gone)
        key = generation, left, newcomer
        found = self._made.get(key)
        if found is None:
            stay = tuple(w for w in self.workers if w.id not in left)
            found = Membership(generation, stay if newcomer is None else (*stay, newcomer))
            self._made[key] = found
        return found

    @cached_property
    def everybody(self) -> frozenset[WorkerId]:
        """Ids of all workers, in no order."""
        return frozenset(self.ids)

    def all_but(self, lost: frozenset[WorkerId]) -> frozenset[WorkerId]:
        """Return the ids of the workers that are not ``lost``."""
        found = self._rests.get(lost)
        if found is None:
            found = self._rests[lost] = self.everybody - lost
        return found

    @cached_property
    def _made(self) -> WeakValueDictionary[_Change, Membership]:
        return WeakValueDictionary()

    @cached_property
    def _rests(self) -> WeakValueDictionary[frozenset[WorkerId], frozenset[WorkerId]]:
        return WeakValueDictionary()

    def __contains__(self, worker: object) -> bool:
        return worker in self._rank

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)
