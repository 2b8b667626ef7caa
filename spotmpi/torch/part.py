"""Calls among some of the workers, as torch's groups of some are.

All other workers make the same call in groups of their own at the same time: it is one call of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spotmpi.errors import UsageError
from spotmpi.torch.collectives import Calls, Collectives, lost

__all__ = ["Part", "Split"]

Split = list[tuple[int, ...]]
"""Groups that have no worker in common, and call at the same time."""


class Part(Calls):
    """Sums and exchanges among some workers. Collective among all."""

    def __init__(self, whole: Collectives, split: Split, ranks: tuple[int, ...]) -> None:
        """``whole``: all workers; ``ranks``: those of these, one of the groups in ``split``."""
        self._whole = whole
        self._split = split
        self._ranks = ranks
        self.rank = ranks.index(whole.rank)

    @property
    def size(self) -> int:
        """Number of these workers at the start."""
        return len(self.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their ranks among all workers."""
        return self._ranks

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks of those that live, and of this one."""
        return tuple(rank for rank, one in enumerate(self.ranks) if one in self._whole.alive)

    @property
    def others_whole(self) -> bool:
        """True if all workers of another group that calls at the same time live."""
        there = {*self._whole.alive}
        return any(there.issuperset(one) for one in self._split if one != self.ranks)

    def exchange(self, value: Any, asked: str) -> dict[int, Any]:
        """Return the values of all who have a part in this call, by rank."""
        found = self._whole.exchange((self.ranks, value), asked, alike=False)
        mine = {}
        for rank, one in enumerate(self.ranks):
            if one in found:
                ranks, said = found[one]
                if tuple(ranks) != self.ranks:
                    raise UsageError(
                        f"rank {self._whole.rank} has called in the group {list(self.ranks)}, and "
                        f"rank {one} in the group {list(ranks)}: all workers must make the same "
                        "calls, each in one of the groups that were made one after the other"
                    )
                mine[rank] = said
        return mine

    def _given(
        self, source: int, value: Callable[[], Any], stands_in: bool, asked: str
    ) -> tuple[Any, int]:
        """Return what one worker gives, and its rank."""
        # In one call, whoever is lost: the other groups may have lost nobody.
        gives = self.rank == source or stands_in or self._whole.rehearses
        mine = value() if gives else None
        found = self.exchange(mine, f"{asked} from {self.ranks[source]}")
        if source not in found:
            if not stands_in:
                raise lost(self.ranks[source])
            source = min(found)
        return found[source], source

    def post(self, to: int, key: bytes, content: Any) -> None:
        """Send bytes to the worker of this rank."""
        self._whole.post(self.ranks[to], key, content)

    def key(self, what: str) -> bytes:
        """Return the key of messages of this kind."""
        return self._whole.key(what)

    def receive(self, sender: int | None, key: bytes, waits: bool) -> tuple[int, Any] | None:
        """Return the rank and the bytes of the next message."""
        others = {*self.ranks} - {self._whole.rank}
        senders = others if sender is None else [self.ranks[sender]]
        found = self._whole.receive_from(senders, key, waits)
        return None if found is None else (self.ranks.index(found[0]), found[1])

    def _add_up(
        self, tensors: Sequence[torch.Tensor], kind: torch.dtype, times: int, step: bool
    ) -> None:
        """Write the mean of all workers' tensors into these, ``times`` this number. Each group has
        a row of its own in a sum of all workers."""
        if self._whole.rehearses:
            for one in tensors:
                one.detach().mul_(times)
            return
        flat = torch.cat([one.detach().reshape(-1).to(kind) for one in tensors])
        rows = flat.new_zeros((len(self._split), flat.numel()))
        mine = rows[self._split.index(self.ranks)]
        mine.copy_(flat)
        there = self._whole.total([rows], kind, step, f"groups {self._split}")
        many = len({*self.ranks}.intersection(there))
        if times != many:
            mine.mul_(times).div_(many)
        for one, new in zip(tensors, mine.split([one.numel() for one in tensors]), strict=True):
            one.detach().copy_(new.view(one.shape))
