"""When replicas are compared, by digests of what is replicated: as nobody else would notice."""

from __future__ import annotations

from spotmpi.arrays.registry import Registry
from spotmpi.training.journal import Journal


class DigestCheck:
    """One worker's part. Local, all of it; all workers decide alike."""

    def __init__(self, registry: Registry, journal: Journal) -> None:
        self._registry = registry
        self._journal = journal
        self.said: int | None = None
        """The digest, if it has been made since what is replicated changed: goes out with the next
        control word."""
        self._due = False
        self._after: int | None = None
        """The round after which one is due."""

    def follow(self, number: int) -> None:
        """Round ``number`` is the first after which replicas may differ: compare them then."""
        self._after = number

    def committed(self, number: int, traced: bool, levels: bool, level: bool) -> None:
        """A round is done. ``traced``: a digest goes to the trace. ``levels``: all are equal after
        rounds of this kind, and ``level``: it was not in the middle of another round's steps."""
        if number == self._after and not level:
            self._after = number + 1
        self._due = traced or (number == self._after and levels)

    def make(self) -> None:
        """Make the digest, if one is due. Not in the round's commit: survivors with a recovery to
        finish go first."""
        if self._due:
            self.said = self._registry.digest()
            self._journal.digested(self.said)
