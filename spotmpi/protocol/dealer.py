"""Which lease of which sampler a worker was dealt. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.sampler import Lease, Sampler

__all__ = ["Dealer", "PacesOf", "evenly"]

PacesOf = Callable[[Sequence[WorkerId]], Sequence[int]]
"""Function that returns the steps of these workers in the next round."""


def evenly(_workers: Sequence[WorkerId]) -> Sequence[int]:
    """Return nothing: all take as many."""
    return ()


class Dealer:
    """What one worker has been dealt, and for whom. It keeps equal samplers equal in recoveries.

    A round is dealt for the membership in which the first worker draws it. After a recovery the
    verdict tells all whether anybody alive has drawn the next round, and for whom.
    """

    def __init__(self) -> None:
        self.committed = 0
        """Leases drawn and committed."""
        self._basis: Membership | None = None
        self._drawn: Sampler | None = None

    @property
    def drawn(self) -> Sampler | None:
        """The sampler of the lease that is drawn and not committed; None if there is none."""
        return self._drawn

    @property
    def dealt(self) -> tuple[int, int]:
        """Leases drawn so far, and the generation for which the last was dealt."""
        generation = self._basis.generation if self._basis else 0
        return self.committed + (self._drawn is not None), generation

    def after(self) -> int:
        """Return the leases committed once the drawn one is."""
        return self.committed + (self._drawn is not None)

    def restore(self, committed: int) -> None:
        """Go on where the dealer with this `after` stands. Nothing is drawn."""
        self.committed = committed
        self._drawn = self._basis = None

    def draw(
        self,
        sampler: Sampler,
        membership: Membership,
        steps: int = 1,
        paces: PacesOf = evenly,
        delay: int = 0,
    ) -> Lease | None:
        """Return the next lease of ``sampler``, for ``membership`` unless it was dealt for another.
        The rest is as in `Sampler.deal`; ``paces`` is a function of the workers."""
        workers = (self._basis or membership).ids
        lease = sampler.deal(workers, steps, paces(workers), delay)
        if lease is not None:
            self._basis = self._basis or membership
            self._drawn = sampler
        return lease

    def count(self, contributors: Collection[WorkerId]) -> None:
        """Commit the drawn lease with the slices of ``contributors``."""
        if self._drawn is None:
            raise RuntimeError("no step is drawn that could count")
        self._drawn.count(contributors)
        self.committed += 1
        self._drawn = self._basis = None

    def end(self, taken: Sequence[int]) -> Lease | None:
        """Cut the drawn lease to the steps ``taken`` of each slot; None if none is drawn."""
        return None if self._drawn is None else self._drawn.end(taken)

    def drop(self, sampler: Sampler) -> None:
        """Drop what the script has drawn from ``sampler``: it will not use it.

        The next lease is dealt for the same membership, because other workers may have gone on to
        it. A recovery, or the lease's commit, says for whom it is then.
        """
        if self._drawn is sampler:
            self._drawn = None

    def resume(self, dealt: int, dealt_for: Membership | None) -> None:
        """Go on after a recovery: a live worker drew lease ``dealt - 1``, for ``dealt_for``."""
        if dealt <= self.committed:
            self._basis = None  # the next lease is nobody's yet: deal it for the new membership
        elif self._drawn is None and dealt_for is not None:
            self._basis = dealt_for
