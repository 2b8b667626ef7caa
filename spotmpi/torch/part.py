"""Calls among some of the workers, as torch's groups of some are: no other worker makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from spotmpi.errors import UsageError
from spotmpi.protocol.plain_values import pack, unpack
from spotmpi.torch.collectives import Calls, Collectives, check_size, like, lost
from spotmpi.torch.tensors import bytes_of, from_bytes

__all__ = ["Part", "Split"]

Split: TypeAlias = list[tuple[int, ...]]
"""Groups that have no worker in common, and were made one after the other."""

_Fold: TypeAlias = Callable[[Mapping[int, Any]], Any]
"""Makes an answer of what workers have brought, by rank among all."""


class Part(Calls):
    """Sums and exchanges among some workers. Collective among these."""

    def __init__(
        self, whole: Collectives, ranks: tuple[int, ...], split: Sequence[tuple[int, ...]] = ()
    ) -> None:
        """``whole``: all workers; ``ranks``: those of these; ``split``: groups of workers that have
        the same parts of a model as these, each group together."""
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
        """Ranks of those that live, as far as it is known here, and of this one."""
        there = self._whole.there
        return tuple(rank for rank, one in enumerate(self.ranks) if one in there)

    @property
    def others_whole(self) -> bool:
        """True if all workers of another group of the split live."""
        there = self._whole.there
        return any(there.issuperset(one) for one in self._split if one != self.ranks)

    def exchange(self, value: Any, asked: str) -> dict[int, Any]:
        """Return the values of all who have a part in this call, by rank."""
        if self._whole.rehearses:
            return dict.fromkeys(range(self.size), value)
        found = self._ask(value, asked, dict)
        return {self.ranks.index(rank): one for rank, one in found.items()}

    def _ask(self, value: Any, asked: str, fold: _Fold) -> Any:
        """Return what ``fold`` makes of the values of all who have a part in this call. ``asked``:
        says what for, alike on all. Raises UsageError, on all."""
        mine = pack((asked, value))
        check_size(len(mine))
        said = self._whole.ask_some(self.ranks, mine, partial(self._combined, fold))
        problem, answer = unpack(said)
        if problem is not None:
            raise UsageError(problem)
        return answer

    def _combined(self, fold: _Fold, said: Mapping[int, bytes]) -> bytes:
        """Return a packed pair: what is wrong with what workers have brought, and the answer."""
        found = {rank: unpack(said[rank]) for rank in self.ranks if rank in said}
        asked = {rank: what for rank, (what, _) in found.items()}
        (first, what), *others = asked.items()
        for rank, other in others:
            if other != what:
                problem = (
                    f"in the group of ranks {[*self.ranks]} rank {first} has called for {what}, "
                    f"and rank {rank} for {other}: all must make the same calls"
                )
                return pack((problem, None))
        try:
            answer = pack((None, fold({rank: value for rank, (_, value) in found.items()})))
            check_size(len(answer))
            return answer
        except UsageError as error:
            return pack((str(error), None))

    def _given(
        self, source: int, value: Callable[[], Any], stands_in: bool, asked: str
    ) -> tuple[Any, int]:
        """Return what one worker gives, and its rank."""
        if self._whole.rehearses:
            return value(), source
        giver = self.ranks[source]

        def fold(said: Mapping[int, Any]) -> Any:
            first = giver if giver in said else next(iter(said)) if stands_in else None
            return None if first is None else (said[first], first)

        mine = value() if self.rank == source or stands_in else None
        found = self._ask(mine, f"{asked} from rank {giver}", fold)
        if found is None:
            raise lost(giver)
        there, first = found
        return there, self.ranks.index(first)

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
        self, tensors: Sequence[torch.Tensor], kind: torch.dtype, times: int | None, step: bool
    ) -> None:
        """Write the mean of all workers' tensors into these, ``times`` this number."""
        if self._whole.rehearses:
            for one in tensors:
                one.detach().mul_(times or 1)
            return
        if step:  # all workers take it
            self._whole.take_step()
        mine = torch.cat([one.detach().reshape(-1).to(kind) for one in tensors])

        def fold(said: Mapping[int, Any]) -> Any:
            first, *others = [like(mine, there) for there in said.values()]
            total = first.clone()
            for one in others:
                total += one
            return bytes_of(total), len(said)

        there, many = self._ask(bytes_of(mine), f"a sum of {mine.numel()} numbers of {kind}", fold)
        total = from_bytes(there, kind, mine.shape)
        if times is not None and times != many:
            total.mul_(times).div_(many)
        for one, new in zip(tensors, total.split([one.numel() for one in tensors]), strict=True):
            one.detach().copy_(new.view(one.shape))
