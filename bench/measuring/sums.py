"""A sum over all workers, with nothing to do meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.errors import PeersLost
from spotmpi.fabric import Cancel, Handle, Part, Start, Steps, Wait

__all__ = ["summed"]


def summed(parts: Sequence[Part]) -> Steps[None]:
    """Start ``parts`` and wait for them. Collective. Raises PeersLost; then nothing touches their
    memory any more."""
    started: list[Handle] = []
    try:
        for part in parts:
            started.append((yield Start(part)))
        yield Wait(started)
    except PeersLost:
        yield Cancel(started)
        raise
