"""Comparison of replicas by digests. Nothing else shows that replicas differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotmpi.fabric import Background
from spotmpi.training.journal import Journal
from spotmpi.training.model import Model

LEAST_BESIDE = 1 << 20
"""Words from which on a thread of its own pays for a digest: it takes half a millisecond."""


class DigestCheck:
    """One worker's part in it. Local, all of it; all workers decide alike."""

    def __init__(
        self,
        model: Model[Any],
        journal: Journal,
        background: Callable[[Callable[[], int], str], Background[int]],
    ) -> None:
        self._model = model
        self._journal = journal
        self._background = background
        self._said: int | None = None
        self._making: Background[int] | None = None
        """Makes the digest while the script computes."""
        self._due = False
        self._after: int | None = None
        """Round after which a comparison is due."""

    def follow(self, number: int) -> None:
        """Compare after round ``number``, the first one after which replicas may differ."""
        self._after = number

    def committed(self, number: int, traced: bool, levels: bool, level: bool) -> None:
        """Decide if a digest is due. ``traced``: the trace wants one. ``levels``: all replicas are
        equal after a round of this kind. ``level``: no other round's steps are under way."""
        self._said = None
        if number == self._after and not level:
            self._after = number + 1
        due = traced or (number == self._after and levels)
        self._due = due and self._model.own is None

    def make(self) -> None:
        """Make the digest, or begin to make it, if one is due. Call it after the round's commit:
        survivors with a recovery to finish go first."""
        if self._model.own is not None:
            self._journal.digested(None)
        if not self._due:
            return
        registry = self._model.registry
        if self._model.is_apart and registry.words().size >= LEAST_BESIDE:
            self._making = self._background(registry.digest, "spotmpi digest")
        else:
            self._keep(registry.digest())

    def result(self) -> int | None:
        """Return the digest for the next control word, if one was made since the replicated state
        changed. Blocks until it is made: call it before that state changes again."""
        if self._making is not None:
            made, self._making = self._making.wait(), None
            self._keep(made)
        return self._said

    def _keep(self, digest: int) -> None:
        self._said = digest
        self._journal.digested(digest)
