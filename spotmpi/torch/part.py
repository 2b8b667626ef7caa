"""Calls among some of the workers, as torch's groups of some are: no other worker makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from spotmpi.errors import UsageError
from spotmpi.protocol.plain_values import pack_in_place, unpack_in_place
from spotmpi.rounds.subset_calls import Parts
from spotmpi.torch.collectives import Calls, Collectives, lost
from spotmpi.torch.tensors import (
    Fold,
    MeanOf,
    Numbers,
    as_if_alike,
    bytes_of,
    from_bytes,
    joined,
    like,
    spread,
)

__all__ = ["Part", "Split"]

Split: TypeAlias = list[tuple[int, ...]]
"""Groups that have no worker in common, and were made one after the other."""

_Combine: TypeAlias = Callable[[Mapping[int, Any]], Any]
"""Makes an answer of what workers have brought, by rank among all. It has no memory of what this
one brings."""


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

        def fold(said: Mapping[int, Any]) -> Any:
            mine = self._whole.rank
            return {rank: _copy(one) if rank == mine else one for rank, one in said.items()}

        found = self._ask(value, asked, fold)
        return {self.ranks.index(rank): one for rank, one in found.items()}

    def _exchange_bytes(self, mine: Numbers, asked: str) -> Mapping[int, Numbers]:
        """Return as many bytes of each worker, by rank."""
        if self._whole.rehearses:
            return super()._exchange_bytes(mine, asked)
        return self.exchange(mine, asked)

    def _ask(self, value: Any, asked: str, fold: _Combine) -> Any:
        """Return what ``fold`` makes of the values of all who have a part in this call. ``asked``:
        says what for, alike on all. Raises UsageError, on all."""
        mine = pack_in_place((asked, value))
        said = self._whole.ask_some(self.ranks, mine, partial(self._combined, fold, (asked, value)))
        problem, answer = unpack_in_place(said)
        if problem is not None:
            raise UsageError(problem)
        return answer

    def _combined(self, fold: _Combine, mine: Any, said: Mapping[int, Parts]) -> Parts:
        """Return a packed pair: what is wrong with what workers have brought, and the answer."""
        there = {rank: unpack_in_place(one) for rank, one in said.items()}
        there[self._whole.rank] = mine
        found = {rank: there[rank] for rank in self.ranks if rank in there}
        asked = {rank: what for rank, (what, _) in found.items()}
        (first, what), *others = asked.items()
        for rank, other in others:
            if other != what:
                problem = (
                    f"in the group of ranks {[*self.ranks]} rank {first} has called for {what}, "
                    f"and rank {rank} for {other}: all must make the same calls"
                )
                return pack_in_place((problem, None))
        try:
            return pack_in_place((None, fold({rank: value for rank, (_, value) in found.items()})))
        except UsageError as error:
            return pack_in_place((str(error), None))

    def _given(
        self, source: int, value: Callable[[], Any], stands_in: bool, asked: str
    ) -> tuple[Any, int]:
        """Return what one worker gives, and its rank."""
        if self._whole.rehearses:
            return value(), source
        giver = self.ranks[source]

        def fold(said: Mapping[int, Any]) -> Any:
            first = giver if giver in said else next(iter(said)) if stands_in else None
            if first is None:
                return None
            return _copy(said[first]) if first == self._whole.rank else said[first], first

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

    def _fold(self, mine: torch.Tensor, fold: Fold, asked: str) -> int:
        """Write into ``mine`` what ``fold`` makes of all workers' tensors: one of them makes it."""
        if self._whole.rehearses:
            return super()._fold(mine, fold, asked)

        def made(said: Mapping[int, Any]) -> Any:
            out = torch.empty(mine.shape, dtype=mine.dtype, device="cpu")
            fold(out, [like(mine, there) for there in said.values()])
            return bytes_of(out), len(said)

        there, many = self._ask(bytes_of(mine), f"{asked} of {_numbers(mine)}", made)
        mine.detach().copy_(like(mine, there))
        return int(many)

    def _add_up(self, mean: MeanOf) -> None:
        """Write this mean where it says."""
        if self._whole.rehearses:
            as_if_alike(mean)
            return
        if mean.step:  # all workers take it
            self._whole.take_step()
        mine = joined(mean.tensors, mean.kind)

        def fold(said: Mapping[int, Any]) -> Any:
            total, *others = [like(mine, there) for there in said.values()]
            # Not into the first one: that is memory of what a worker brings.
            total = total + others.pop(0) if others else total.clone()
            for one in others:
                total += one
            return bytes_of(total), len(said)

        there, many = self._ask(bytes_of(mine), f"a sum of {_numbers(mine)}", fold)
        total = from_bytes(there, mean.kind, mine.shape)
        if mean.times is not None and mean.times != many:
            total = (total * mean.times).div_(many)  # the answer stays what it is
        spread(total, mean.out, mean.start)


def _numbers(tensor: torch.Tensor) -> str:
    return f"{tensor.numel()} numbers of {tensor.dtype}"


def _copy(value: Any) -> Any:
    return unpack_in_place([memoryview(bytearray().join(pack_in_place(value)))])
