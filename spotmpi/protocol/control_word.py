"""The control word: a few flags that are summed with each round, after all of its data.

All workers read the same sums, so all decide the same at the same round without a message of its
own. The word is a small array of float64 in the memory of the host, and no plane narrows it: every
field is a count or a whole number that float64 adds exactly for up to `MOST_WORKERS` workers (but
for the loss, which is a measurement). Pure.

Every step makes one and reads one, when the caches hold nothing but gradients: hence plain numbers
and tuples, which take a tenth of the time that arrays of this size do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spotmpi.errors import LeftAlone, ReplicaMismatch
from spotmpi.protocol.membership import WorkerId

WORDS = 18
MOST_WORKERS = 1 << 20
_PIECE = 32
_PIECES = 2

STEP, MEAN, ONCE, END = range(4)
KINDS = ("step()", "mean()", "once()", "the end of the training")
_SAVE, _PUBLISHED, _STOP, _LEAVES, _NEWCOMER, _LATE, _ENDER = range(4, 11)
_STRATEGY, _LOSS, _LOSS_WEIGHT, _NUMBERS, _DIGESTED, _DIGEST = range(11, 17)


class ControlWord(NamedTuple):
    """What one worker contributes to a round besides data."""

    kind: int | None
    """None of who takes part in the round without knowing what it is: it learns."""
    worker: WorkerId
    save: bool = False
    """A checkpoint is wanted at this round's boundary."""
    published: bool = False
    """The checkpoint wanted last is on the disk."""
    stop: bool = False
    """Too few workers are left: stop at this round's boundary."""
    leaves: bool = False
    """This worker is to leave before the next round."""
    newcomer: bool = False
    """Somebody waits at its side to be admitted before the next round."""
    late: bool = False
    """It joined late, and takes steps of its own counting: it may have to end before its script."""
    strategy: int | None = None
    """All shall go on with the strategy of this number. Only the leader says so."""
    loss: float = 0.0
    loss_weight: float = 0.0
    numbers: int = 0
    """How many a mean is asked of; of whoever has the value of a `once`, its bytes."""
    digest: int | None = None
    """Of the parameters before this round."""

    def encode(self) -> list[float]:
        """The numbers to be summed."""
        word = [0.0] * WORDS
        if self.kind is None:
            return word
        word[self.kind] = 1
        word[_SAVE], word[_PUBLISHED], word[_STOP] = self.save, self.published, self.stop
        word[_LEAVES], word[_NEWCOMER], word[_LATE] = self.leaves, self.newcomer, self.late
        word[_ENDER] = self.worker if self.kind == END else 0
        if self.strategy is not None:
            word[_STRATEGY] = 1 + self.strategy
        if self.loss_weight:
            word[_LOSS], word[_LOSS_WEIGHT] = self.loss * self.loss_weight, self.loss_weight
        word[_NUMBERS] = self.numbers
        if self.digest is not None:
            word[_DIGESTED] = 1
            word[_DIGEST:] = pieces(self.digest)
        return word


class ControlSum(NamedTuple):
    """The sum of all workers' words: equal on all of them."""

    values: list[float]
    workers: int
    """Those that knew what round it was."""

    @property
    def kind(self) -> int:
        """What round it was: for who learns."""
        return END if self.over else max(range(len(KINDS)), key=self.values.__getitem__)

    @property
    def over(self) -> bool:
        """The training ends: all have come to its end but those that came late and count alone."""
        return 0 < self.values[END] == self.workers - self.values[_LATE]

    @property
    def leaving(self) -> int:
        """How many workers are to leave."""
        return int(self.values[_LEAVES])

    @property
    def newcomer(self) -> bool:
        """Somebody waits to be admitted."""
        return self.values[_NEWCOMER] > 0

    @property
    def save(self) -> bool:
        """Somebody wants a checkpoint."""
        return self.values[_SAVE] > 0

    @property
    def published(self) -> bool:
        """The checkpoint wanted last is on the disk."""
        return self.values[_PUBLISHED] > 0

    @property
    def stop(self) -> bool:
        """Too few workers are left."""
        return self.values[_STOP] > 0

    @property
    def strategy(self) -> int | None:
        """The number of the strategy that the leader wants all to go on with, if any."""
        return int(self.values[_STRATEGY]) - 1 if self.values[_STRATEGY] else None

    @property
    def numbers(self) -> int:
        """How many the round's mean is asked of."""
        return int(self.values[_NUMBERS]) // max(1, self.workers)

    @property
    def size(self) -> int:
        """Bytes of the value that one worker has for all; 0 if nobody has one."""
        return int(self.values[_NUMBERS])

    @property
    def loss(self) -> float | None:
        """The workers' mean loss, weighted as their gradients are; None if nobody gave one."""
        weight = self.values[_LOSS_WEIGHT]
        return self.values[_LOSS] / weight if weight else None

    def check_kind(self, kind: int, number: int) -> None:
        """All workers are in the same kind of round, or the script is wrong: say how."""
        if self.values[kind] == self.workers or self.over:
            return
        counts = [int(self.values[kind]) for kind in range(len(KINDS))]
        if counts[END] == 1:
            raise LeftAlone(
                f"worker {int(self.values[_ENDER])} left the training loop in round {number} while "
                f"the other {self.workers - 1} go on: every worker must take every step; leave "
                "the loop on something that is equal on all of them, such as trainer.mean(loss)"
            )
        calls = ", ".join(f"{count} in {KINDS[k]}" for k, count in enumerate(counts) if count)
        raise LeftAlone(
            f"the {self.workers} workers have come to different calls in round {number}: {calls}. "
            "Every worker must make the same calls in the same order; do not put them "
            "behind a condition that differs between workers (such as trainer.leader)"
        )

    def check_numbers(self, own: int, number: int) -> None:
        """All workers have asked for a mean of equally many numbers."""
        if self.values[_NUMBERS] != own * self.workers:
            raise ReplicaMismatch(
                f"in round {number} the {self.workers} workers called trainer.mean() with "
                f"{int(self.values[_NUMBERS])} numbers in all, and this one with {own}: give "
                "mean() a number, or an array of one shape on all workers"
            )

    def check_digest(self, own: int | None, round_number: int) -> None:
        """All replicas were bit-identical before this round, as far as they were compared."""
        if own is None or self.values[_DIGESTED] != self.workers:
            return
        if self.values[_DIGEST:] == [piece * self.workers for piece in pieces(own)]:
            return
        raise ReplicaMismatch(
            f"the replicas differ before round {round_number}: something changed trainer.params on "
            "some workers only. Change parameters through trainer.step() alone"
        )


def pieces(digest: int) -> list[float]:
    """A 64-bit digest as numbers so small that float64 adds those of all workers exactly."""
    return [float((digest >> (_PIECE * i)) & ((1 << _PIECE) - 1)) for i in range(_PIECES)]


def total(values: Any, workers: int) -> ControlSum:
    """The sum as read from a reduced array."""
    return ControlSum(values.tolist(), workers)
