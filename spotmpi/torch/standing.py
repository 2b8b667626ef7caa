"""What all workers of a torch script know of each other, and newcomers are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spotmpi.protocol.membership import WorkerId
from spotmpi.rounds.memory import parts_of_sum
from spotmpi.torch.first_answers import SUMS, FirstAnswers

__all__ = ["Standing", "UsualSum"]

Bucket = tuple[str, int]
"""The type in which a tensor is summed, and its size."""


class UsualSum:
    """The gradients that are summed in a step, if they are the same in all steps: then others may
    be given the first of them while the script computes the next ones. Alike on all workers."""

    def __init__(self) -> None:
        self.buckets = list[Bucket]()
        """What was summed in the last step; empty: something else than tensors of one type."""
        self._repeats = False
        """True if it was the same in the step before."""
        self._failed = False
        """True if something else has come than was expected."""

    @property
    def expected(self) -> bool:
        """True if the next step is expected to sum the same as the last ones, and a part of it can
        be whole before the last tensor is there."""
        if self._failed or not self._repeats or len(self.buckets) == 1:
            return False
        (kind, _), *_ = self.buckets
        return len(parts_of_sum(kind, sum(size for _, size in self.buckets))) > 1

    def note(self, buckets: Sequence[Bucket | None]) -> None:
        """Note what was summed in a step; None: it cannot be given early."""
        found = [one for one in buckets if one is not None]
        if len(found) < len(buckets) or len({kind for kind, _ in found}) > 1:
            found = []
        self._repeats = bool(found) and found == self.buckets
        self.buckets = found

    def fail(self) -> None:
        """Expect nothing any more: something else has come than was expected."""
        self._failed = True

    def told(self) -> list[Any]:
        """Return what a newcomer is told."""
        return [self.buckets, self._repeats, self._failed]

    def follow(self, told: Sequence[Any]) -> None:
        """Go on from what was told."""
        self.buckets = [(str(kind), int(size)) for kind, size in told[0]]
        self._repeats, self._failed = bool(told[1]), bool(told[2])


class Standing:
    """Ranks of workers, and how far their scripts are. Alike on all. Newcomers get it as plain
    values that survive (`arrays.registry.Values`); no checkpoint keeps it."""

    def __init__(self) -> None:
        """Begin without workers: `begin` or `restore` comes next."""
        self.size = 0
        """Workers at the start."""
        self.ranks: dict[WorkerId, int] = {}
        """Each worker's rank, of those lost, too: its number at the start, or that of one which was
        lost, or a number of its own."""
        self.shares: dict[int, int] = {}
        """Newcomers' shares of the data, by rank: `DistributedSampler` deals to as many workers as
        there were at the start, and all others have the share of their rank."""
        self.alive: tuple[int, ...] = ()
        """Ranks of the workers that live: those with a part in the last call. They are the same on
        all, which the membership is not: a worker may hear of a loss one call later than others."""
        self.trained: list[bool] = []
        """The passes that were begun, through loaders whose samples are dealt to workers: True for
        those in which gradients were summed."""
        self.answers = FirstAnswers()
        self.usual = UsualSum()
        self.within = False
        """True if newcomers are let in within a pass, the last one that was begun."""
        self.sums_needed = 0
        """Sums of gradients that a newcomer must have made by itself before it joins."""

    def begin(self, size: int) -> None:
        """Begin with this number of workers."""
        self.size, self.alive = size, tuple(range(size))
        self.ranks = {rank: rank for rank in self.alive}

    def heard(self, workers: Iterable[WorkerId]) -> None:
        """Note who had a part in a call."""
        self.alive = tuple(sorted(self.ranks[worker] for worker in workers))

    def place_for(self, newcomer: WorkerId) -> tuple[int, int]:
        """Return a rank for a newcomer, and its share of the data.

        They are those of a lost worker. But a rank must come after one that lives: what a script
        does on its first worker alone, such as to save the model, is not for one that has yet to
        learn. Else the rank is the worker's own number.
        """
        shares = sorted({*range(self.size)}.difference(self.taken))
        ranks = [one for one in shares if one > self.alive[0]]
        # Those that come together have numbers in a row.
        if ranks:
            rank = ranks[newcomer % len(ranks)]
            return rank, rank
        return newcomer, shares[newcomer % len(shares)] if shares else newcomer % self.size

    @property
    def taken(self) -> tuple[int, ...]:
        """Shares of the data that workers which live have."""
        return tuple(sorted(self.shares_of(self.alive))) if self.shares else self.alive

    def shares_of(self, ranks: Iterable[int]) -> set[int]:
        """Return the shares of the data that these workers have."""
        return {self.shares.get(rank, rank) for rank in ranks}

    def kept(self) -> Mapping[str, Any]:
        """Return nothing: a checkpoint keeps nothing of it."""
        return {}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Do nothing."""

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> dict[str, Any]:
        """Return what a newcomer is told."""
        return {
            "size": self.size,
            "ranks": [*self.ranks.items()],
            "shares": [*self.shares.items()],
            "alive": self.alive,
            "trained": "".join(str(int(one)) for one in self.trained),
            "within": self.within,
            "answers": self.answers.told(),
            "sums": min(self.answers.sums, SUMS),
            "usual": self.usual.told(),
        }

    def restore(self, told: Mapping[str, Any]) -> None:
        """Go on from what was told."""
        self.size, self.alive = int(told["size"]), tuple(map(int, told["alive"]))
        self.ranks = {int(worker): int(rank) for worker, rank in told["ranks"]}
        self.shares = {int(rank): int(share) for rank, share in told["shares"]}
        self.trained[:] = [one == "1" for one in told["trained"]]
        self.within = bool(told["within"])
        self.answers.follow(told["answers"])
        self.sums_needed = int(told["sums"])
        self.usual.follow(told["usual"])
