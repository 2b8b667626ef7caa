"""The control word: a few flags and numbers that each round sums, after all of its data. Pure.

All workers read the same sums. So all of them decide the same in the same round, and no decision
needs a message of its own. The word is a small array of float64 in the memory of the host, and no
plane narrows it. Every field but the loss is a whole number, and float64 adds these exactly for up
to `MOST_WORKERS` workers. The loss is a measurement.

Every step makes a word and reads a sum, when the caches hold nothing but gradients. So words are
plain numbers and tuples: they take a tenth of the time that arrays of this size take.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spotmpi.errors import LeftAlone, ReplicaMismatch
from spotmpi.protocol.membership import WorkerId

WORDS = 30
MOST_WORKERS = 1 << 20
_MOST_SQUARED = 1 << 16
"""Bytes of the largest value whose square is sent: of such squares all sums are exact."""
_NOT_SQUARED = -(1 << 53)
"""Sent in place of the square of a larger one: it makes each sum negative."""
_PIECE = 32
_PIECES = 2

STEP, MEAN, ONCE, GATHER, SUM32, SUM64, DEVICE_SUM32, DEVICE_SUM64 = range(8)
WORDS_OF_ONE, WORDS_OF_ALL, END = range(8, 11)
KINDS = (
    *("step()", "mean()", "once()", "gather()", "sum() of float32", "sum() of float64"),
    *("sum() of float32 on a device", "sum() of float64 on a device", "a broadcast"),
    "a gather of tensors",
    "the end of the training",
)
SUMS = {
    ("float32", False): SUM32,
    ("float64", False): SUM64,
    ("float32", True): DEVICE_SUM32,
    ("float64", True): DEVICE_SUM64,
}
"""Kinds of rounds that sum any arrays, by their type, and True if they are on a device. A newcomer
that learns knows only the kind, and must bring the same memory as the others."""
_SAVE, _PUBLISHED, _STOP, _LEAVES, _NEWCOMER, _LATE, _ENDER = range(11, 18)
_STRATEGY, _LOSS, _LOSS_WEIGHT, _NUMBERS, _SQUARE, _DIGESTED, _DIGEST = range(18, 25)
_CALL, _RECENT, _RECENT_CALL, _BROUGHT = range(_DIGEST + _PIECES, WORDS)


class ControlWord(NamedTuple):
    """What one worker contributes to a round besides data."""

    kind: int | None
    """Number of the round's kind in `KINDS`; None for a newcomer that learns: it knows none."""
    worker: WorkerId
    save: bool = False
    """True if a checkpoint is wanted at this round's boundary."""
    published: bool = False
    """True if the checkpoint that was wanted last is on the disk."""
    stop: bool = False
    """True if too few workers remain: the training stops at this round's boundary."""
    leaves: bool = False
    """True if this worker leaves before the next round."""
    newcomer: bool = False
    """True if this worker sponsors a newcomer that waits to be admitted before the next round."""
    late: bool = False
    """True if this worker joined late and counts its own steps: it may have to end before its
    script."""
    recent: bool = False
    """True if this worker joined lately: if its script has come to another call than the others' it
    leaves, and they go on."""
    strategy: int | None = None
    """Number of the strategy that all shall go on with. Only the leader gives one."""
    loss: float = 0.0
    loss_weight: float = 0.0
    numbers: int = 0
    """Numbers that a `mean` or a `sum` is asked of. In a `once`: bytes of the value, from the
    worker that has it. In a `gather`: bytes of this worker's value. At the end: 1 from a worker
    whose script is there, and 0 from one that stops."""
    call: int = 0
    """Stands for what is asked for: a number of 32 bits, the same on workers that ask for the
    same."""
    brought: bool = False
    """True if this worker has brought what it asks for, in the round in which all ask."""
    digest: int | None = None
    """Digest of the parameters before this round."""

    def encode(self) -> list[float]:
        """Return the numbers that the round sums."""
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
        word[_NUMBERS] = many = self.numbers
        if self.kind == GATHER:
            word[_SQUARE] = many**2 if many <= _MOST_SQUARED else _NOT_SQUARED
        word[_CALL] = code = code_of(self.kind, self.call)
        if self.recent:
            word[_RECENT], word[_RECENT_CALL] = 1, code
        word[_BROUGHT] = self.brought
        if self.digest is not None:
            word[_DIGESTED] = 1
            word[_DIGEST:_CALL] = pieces(self.digest)
        return word


class ControlSum(NamedTuple):
    """The sum of all workers' control words. It is equal on all of them."""

    values: list[float]
    workers: int
    """Workers that knew the kind of the round."""

    @property
    def kind(self) -> int:
        """The kind of the round, for a newcomer that learns."""
        if self.over:
            return END
        counts = self.values[: len(KINDS)]
        return counts.index(max(counts))

    @property
    def over(self) -> bool:
        """True if the training ends: all are at its end, except late workers that count alone."""
        return 0 < self.values[END] == self.workers - self.values[_LATE]

    @property
    def astray(self) -> int | None:
        """The `code_of` the call that workers have come to, if some that joined lately have come to
        another one; None: they have not, or the training ends."""
        if not self.values[_RECENT] or self.over:
            return None
        recent, theirs = int(self.values[_RECENT]), int(self.values[_RECENT_CALL])
        if not (others := self.workers - recent):
            return None
        said = int(self.values[_CALL]) - theirs
        return None if said * recent == theirs * others else said // others

    @property
    def leaving(self) -> int:
        """Number of workers that leave."""
        return int(self.values[_LEAVES])

    @property
    def newcomer(self) -> bool:
        """True if a newcomer waits to be admitted."""
        return self.values[_NEWCOMER] > 0

    @property
    def save(self) -> bool:
        """True if a worker wants a checkpoint."""
        return self.values[_SAVE] > 0

    @property
    def published(self) -> bool:
        """True if the checkpoint that was wanted last is on the disk."""
        return self.values[_PUBLISHED] > 0

    @property
    def stop(self) -> bool:
        """True if too few workers remain."""
        return self.values[_STOP] > 0

    @property
    def finished(self) -> bool:
        """True if the training ends because the script of a worker is at its end."""
        return self.over and self.values[_NUMBERS] > 0

    @property
    def strategy(self) -> int | None:
        """Number of the strategy that the leader wants all to go on with; None if it wants none."""
        return int(self.values[_STRATEGY]) - 1 if self.values[_STRATEGY] else None

    @property
    def numbers(self) -> int:
        """Numbers of each worker in this round's mean or sum."""
        return int(self.values[_NUMBERS]) // max(1, self.workers)

    @property
    def size(self) -> int:
        """Bytes of the value that one worker has for all, or of the values of all workers; 0 if
        there is none."""
        return int(self.values[_NUMBERS])

    @property
    def brought(self) -> bool:
        """True if all have brought what they ask for: no other round is needed for it."""
        return 0 < self.values[_BROUGHT] == self.workers

    @property
    def alike(self) -> bool:
        """True if the values of a `gather` are of one size on all workers, of `_MOST_SQUARED` bytes
        at most. Sizes that differ have a larger sum of squares than equal ones of the same sum."""
        return int(self.values[_SQUARE]) * self.workers == self.size**2

    @property
    def loss(self) -> float | None:
        """The workers' mean loss, weighted as their gradients are; None if no worker gave one."""
        weight = self.values[_LOSS_WEIGHT]
        return self.values[_LOSS] / weight if weight else None

    def check_kind(self, kind: int, number: int) -> None:
        """Raise LeftAlone, with the difference, unless all workers are in one kind of round, or the
        training ends."""
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
        """Raise ReplicaMismatch unless all workers asked for a mean of equally many numbers."""
        if self.values[_NUMBERS] != own * self.workers:
            raise ReplicaMismatch(
                f"in round {number} the {self.workers} workers called trainer.mean() with "
                f"{int(self.values[_NUMBERS])} numbers in all, and this one with {own}: give "
                "mean() a number, or an array of one shape on all workers"
            )

    def check_call(self, own: int, what: str, number: int) -> None:
        """Raise ReplicaMismatch unless all workers ask for the same. ``own``: the `code_of` what
        this one asks for, which is called ``what``."""
        if self.values[_CALL] != own * self.workers:
            raise ReplicaMismatch(
                f"in round {number} the {self.workers} workers asked for different things, this "
                f"one for {what}: make the same calls in the same order on all workers, with "
                "arrays of the same names, shapes and types"
            )

    def check_digest(self, own: int | None, round_number: int) -> None:
        """Raise ReplicaMismatch if replicas that were compared differed before this round."""
        if own is None or self.values[_DIGESTED] != self.workers:
            return
        if self.values[_DIGEST:_CALL] == [piece * self.workers for piece in pieces(own)]:
            return
        raise ReplicaMismatch(
            f"the replicas differ before round {round_number}: something changed trainer.params on "
            "some workers only. Change parameters through trainer.step() alone"
        )


def code_of(kind: int, call: int) -> int:
    """Return a number of 32 bits that stands for a call in a kind of round."""
    # Such that two others hardly add up to twice this one.
    return (kind + 1) * 0x9E3779B1 & 0xFFFFFFFF ^ call


def pieces(digest: int) -> list[float]:
    """Return a 64-bit digest as small numbers, which float64 adds exactly for all workers."""
    return [float((digest >> (_PIECE * i)) & ((1 << _PIECE) - 1)) for i in range(_PIECES)]


def total(values: Any, workers: int) -> ControlSum:
    """Return the sum that a reduced array holds."""
    return ControlSum(values.tolist(), workers)
