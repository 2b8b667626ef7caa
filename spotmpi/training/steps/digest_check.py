"""Comparison of replicas by digests. Nothing else shows that replicas differ."""

from __future__ import annotations

from spotmpi.arrays.registry import Registry
from spotmpi.training.journal import Journal


class DigestCheck:
    """One worker's part in it. Local, all of it; all workers decide alike."""

    def __init__(self, registry: Registry, journal: Journal) -> None:
        self._registry = registry
        self._journal = journal
        self.said: int | None = None
        """Digest for the next control word, if one was made since the replicated state changed."""
        self._due = False
        self._after: int | None = None
        """Round after which a comparison is due."""

    def follow(self, number: int) -> None:
        """Compare after round ``number``, the first one after which replicas may differ."""
        self._after = number

    def committed(self, number: int, traced: bool, levels: bool, level: bool) -> None:
        """Decide if a digest is due. ``traced``: the trace wants one. ``levels``: all replicas are
        equal after a round of this kind. ``level``: no other round's steps are under way."""
        if number == self._after and not level:
            self._after = number + 1
        self._due = traced or (number == self._after and levels)

    def make(self) -> None:
        """Make the digest, if one is due. Call it after the round's commit: survivors with a
        recovery to finish go first."""
        if self._due:
            self.said = self._registry.digest()
            self._journal.digested(self.said)
