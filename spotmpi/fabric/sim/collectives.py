"""Collectives of a simulation, as far as they have come, and the data communicators of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spotmpi.arrays.backend import backend_of, fill
from spotmpi.fabric import Buffer, Part, Share
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.trials import Trial

RUBBISH = 77
"""What a collective that failed leaves in its result. Nobody may rely on it."""


Place = tuple[str, int]
"""An array of a named arena: the arena's name, and the array's index."""


class Misuse(AssertionError):
    """A worker has touched memory that it must not touch, or has left something under way."""


@dataclass(eq=False)
class Collective:
    """One collective of all members, as far as it has come."""

    brought: dict[WorkerId, Buffer] = field(default_factory=dict)
    """Copies of contributions, as a worker that fails early may go on and change its own."""
    calls: dict[WorkerId, Call] = field(default_factory=dict)
    """Calls of all workers that have entered with a part."""
    entered: list[WorkerId] = field(default_factory=list)
    result: list[Buffer] | None = None

    def enter(self, worker: WorkerId, call: Call) -> None:
        """Let ``worker`` take part with what it brings."""
        self.entered.append(worker)
        if isinstance(call.what, Part):
            call.check_given(worker)
            self.brought[worker] = _times(call.what.weight, call.given)
            self.calls[worker] = call
        elif call.what.source == worker:
            self.result = list(map(_copy, call.what.buffers))


@dataclass(eq=False)
class Call:
    """One worker's side of a collective."""

    collective: Collective
    what: Part | Share
    way: str = ""
    """Way of a sum between hosts; empty if it is none."""
    given: Buffer = None
    """Copy of the contribution, which shows whether the worker changes it."""
    entered: bool = False
    done: bool = False
    lost: bool = False
    """True if its result holds rubbish, and more may come."""

    def __post_init__(self) -> None:
        if isinstance(self.what, Part):
            self.given = _copy(self.what.contribution)

    def check_given(self, worker: WorkerId) -> None:
        """Raise `Misuse` if ``worker`` has changed its contribution."""
        if isinstance(self.what, Share):
            return
        if _copy(self.what.contribution).tobytes() != self.given.tobytes():
            raise Misuse(f"worker {worker} has changed what it had given to a round")

    def receives(self, worker: WorkerId) -> bool:
        """Return True if ``worker`` gets a result, and is not the source of a share."""
        return not (isinstance(self.what, Share) and self.what.source == worker)

    def complete(self, values: Sequence[Any]) -> None:
        """Write ``values`` to where results arrive."""
        for target, value in zip(self._targets, values, strict=True):
            backend_of(target).from_host(target, value)

    def spoil(self) -> None:
        """Write rubbish to where results arrive."""
        fill(self._targets, RUBBISH)

    def spoil_rests(self) -> None:
        """Write rubbish where the next rests go, unless all workers have done their part."""
        narrowing = self.what.narrowing if isinstance(self.what, Part) else None
        if narrowing is not None and self.collective.result is None:
            fill([narrowing.following[part] for part in narrowing.parts], RUBBISH)

    @property
    def _targets(self) -> Sequence[Buffer]:
        return self.what.buffers if isinstance(self.what, Share) else [self.what.result]


@dataclass
class Data:
    """One data communicator."""

    members: tuple[WorkerId, ...]
    everybody: frozenset[WorkerId] = field(init=False)
    """The members, without an order."""
    collectives: list[Collective] = field(default_factory=list)
    revoked: bool = False
    begun: dict[tuple[WorkerId, Place | None], int] = field(default_factory=dict)
    """Number of times that each worker has begun to sum each array of a named arena."""
    trials: dict[Place, Trial] = field(default_factory=dict)
    """Trials of ways, for each of these arrays."""

    def __post_init__(self) -> None:
        self.everybody = frozenset(self.members)


def _copy(buffer: Buffer) -> Any:
    """Return a copy in the memory of the host."""
    return backend_of(buffer).to_host(buffer)


def _times(weight: float, given: Any) -> Any:
    product = weight * given
    if not weight:
        product.fill(0)  # a contribution that does not count may hold anything, even NaN
    return product
