"""The user's structure over flat buckets: what scripts see of parameters and gradients."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.arrays.backend import Buffer
from spotmpi.arrays.layout import Layout, Tree

__all__ = ["Views"]


class Views:
    """Arrays that share memory with ``flats``. Arrays of half precision have memory of their own:
    `round` copies into it what is in the buckets.

    ``read_only``: a stray write is an error, if the backend can see to that.
    """

    def __init__(self, layout: Layout, flats: Sequence[Buffer], read_only: bool = False) -> None:
        self.by_key = layout.named(flats, read_only)
        """All arrays, by key."""
        self._backend = backend = layout.backend
        self._rounded = []
        for bucket, flat in zip(layout.buckets, flats, strict=True):
            for entry in bucket.halves:
                own = backend.zeros(entry.dtype, entry.stop - entry.start)
                self.by_key[entry.key] = backend.view(own, 0, entry.shape, read_only)
                self._rounded.append((own, backend.view(flat, entry.start, own.shape)))
        self.tree: Tree = layout.structure.build(self.by_key)
        """The same arrays in the user's structure."""
        self.round()

    def round(self) -> None:
        """Bring the arrays of half precision up to date."""
        for own, held in self._rounded:
            self._backend.assign(own, held)
