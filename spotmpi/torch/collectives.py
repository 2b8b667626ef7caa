"""What torch scripts ask of all workers, in rounds of spotmpi. Ranks are those of the start."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import torch

from spotmpi.errors import PeersLost, UsageError
from spotmpi.fabric import KEY
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.plain_values import pack
from spotmpi.rounds.subset_calls import Parts
from spotmpi.torch.passes import Passes
from spotmpi.torch.tensors import (
    SUM_OF_LIVING,
    TIMES,
    Fold,
    MeanOf,
    Numbers,
    as_if_alike,
    bucket_of,
    bytes_of,
    fold_of,
    from_bytes,
    like,
    read_bytes,
    spread,
    summed_as,
    write_bytes,
)
from spotmpi.torch.torch_rounds import Rounds, values_of
from spotmpi.torch_hooks.libraries import divides_whole_numbers, let_first_stand_in

__all__ = ["NO_PASS", "Calls", "Collectives", "lost"]

NO_PASS = (
    "it can only join where a pass through a DataLoader with DistributedSampler or ElasticSampler, "
    "or one of Accelerate, begins, and the others' script had come to none"
)
"""Why a newcomer is turned away."""

_RANK_0_IS_GONE = (
    "spotmpi: rank 0 is gone: what the script does on rank 0 alone, such as to save the model, is "
    "done by nobody from now on; docs/pytorch.md, DistributedDataParallel, says what to write"
)
_ANOTHER_SAVES = (
    "spotmpi: rank {} is gone: from now on rank {} saves what {} would save on rank 0; what the "
    "script itself does on rank 0 alone is done by nobody (docs/pytorch.md, Accelerate)"
)

_AT_ONCE = 8_000_000
"""Bytes that are given at once. All workers need three times as much memory for it."""


class Calls:
    """Sums and exchanges of tensors among some workers. Collective, unless marked local.

    Workers that are lost during a call have a part in its result on all others or on none.
    """

    rank: int
    """This worker's rank among them."""

    @property
    def size(self) -> int:
        """Number of these workers at the start."""
        raise NotImplementedError

    @property
    def ranks(self) -> Sequence[int]:
        """Their ranks among all workers, by rank among them. Local."""
        raise NotImplementedError

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks of those that live (see `Standing.alive`), and of this one."""
        raise NotImplementedError

    def exchange(self, value: Any, asked: str) -> dict[int, Any]:
        """Return the values of all who have a part in this call, by rank. ``asked``: what for, in
        short."""
        raise NotImplementedError

    def from_one(
        self,
        source: int,
        value: Callable[[], Any],
        stands_in: bool = False,
        asked: str = "a value",
    ) -> tuple[Any, int]:
        """Return on all what ``value`` returns on the worker of this rank, and that rank. Raises
        PeersLost if it is lost. ``stands_in``: if rank 0 is lost, the first worker that lives takes
        its place. ``asked``: what for, in short."""
        if not 0 <= source < len(self.ranks):
            raise UsageError(f"there is no rank {source} among {len(self.ranks)} workers")
        return self._given(source, value, stands_in and source == 0, asked)

    def _given(
        self, source: int, value: Callable[[], Any], stands_in: bool, asked: str
    ) -> tuple[Any, int]:
        """Return what `from_one` does. ``stands_in``: rank 0 gives it, and others may."""
        raise NotImplementedError

    def _add_up(self, mean: MeanOf) -> None:
        """Write this mean where it says."""
        raise NotImplementedError

    def post(self, to: int, key: bytes, content: Any) -> None:
        """Send bytes to the worker of this rank, for who asks for this key. Local, and does not
        wait. Raises PeersLost if it is known to be lost."""
        raise NotImplementedError

    def receive(self, sender: int | None, key: bytes, waits: bool) -> tuple[int, Any] | None:
        """Return the rank and the bytes of the next message of this key from this rank, or from any
        of the others if it is None. None if none has come and this call does not wait. A newcomer
        that rehearses gets None in place of the bytes. Raises PeersLost if the sender is lost, or
        one that it could be meanwhile."""
        raise NotImplementedError

    def key(self, what: str) -> bytes:
        """Return the key of messages of this kind, alike on all. Local."""
        raise NotImplementedError

    def meet(self) -> None:
        """Return when all have called it."""
        self.exchange(None, "a barrier")

    def reduce(self, tensors: Sequence[torch.Tensor], operation: str, step: bool = False) -> None:
        """Write into each tensor the sum of all workers' tensors, or what the operation says.
        ``step``: these are gradients, and their sum stands for a step.

        A sum of floats counts as if all workers of the start were there: it is multiplied by their
        number and divided by the number of those that brought something. So a script that divides
        by the group's size, as DDP does, has the mean. Sums of whole numbers are what they are
        (but for Lightning's, which count likewise), and their average is cut off behind the point.
        Sparse tensors are summed as dense ones. A `SUM_OF_LIVING` does not count as if all were
        there.
        """
        if any(one.is_sparse for one in tensors):
            dense = [one.to_dense() if one.is_sparse else one for one in tensors]
            self.reduce(dense, operation, step)
            with torch.no_grad():  # a detached one would not get the new indices
                for one, there in zip(tensors, dense, strict=True):
                    if one.is_sparse:
                        one.copy_(there.to_sparse(one.sparse_dim()))
            return
        fold = fold_of(operation)
        floats = [one for one in tensors if one.is_floating_point() and one.numel()]
        if operation in TIMES:
            times = TIMES[operation](self.size)
            for how in dict.fromkeys(map(summed_as, floats)):
                alike = [one for one in floats if summed_as(one) == how]
                self._add_up(MeanOf(alike, how[0], times, step, alike))
                step = False  # it is counted
        for one in tensors:
            if operation in TIMES and one.is_floating_point():
                continue
            # (In `join` some ask for a sum of those that live, and others for a sum.)
            asked = "SUM" if operation == SUM_OF_LIVING else operation
            many = self._fold(one, fold, asked)
            if operation == "SUM" and divides_whole_numbers():
                total = one.detach()
                total.copy_((total.double() * self.size / many).round())

    def _fold(self, mine: torch.Tensor, fold: Fold, asked: str) -> int:
        """Write into ``mine`` what ``fold`` makes of all workers' tensors. Return the number of
        those that brought one."""
        found = [*self._values(mine, asked).values()]
        fold(mine, found)
        return len(found)

    def reduce_part(
        self, mine: torch.Tensor, out: torch.Tensor, operation: str, step: bool = False
    ) -> None:
        """Write into ``out`` this worker's part of what `reduce` would write into ``mine``: each
        has as much. ``mine`` stays as it is."""
        if mine.numel() != self.size * out.numel():
            raise UsageError(f"{mine.numel()} numbers are not {self.size} times {out.numel()}")
        start = self.rank * out.numel()
        if operation in TIMES and mine.is_floating_point() and mine.numel():
            kind, _ = summed_as(mine)
            self._add_up(MeanOf([mine], kind, TIMES[operation](self.size), step, [out], start))
            return
        whole = mine.detach().clone()
        self.reduce([whole], operation, step)
        spread(whole.reshape(-1), [out], start)

    def give_early(
        self, number: int, tensors: Sequence[torch.Tensor], step: Callable[[], bool]
    ) -> None:
        """Give the others these tensors of a backward pass while it goes on, if a pass usually sums
        such ones. ``number``: of these among all that it sums. ``step``: called for the first ones,
        returns True if the sum stands for a step. Waits for the others at most once in a pass."""

    def end_early(self, tensors: Sequence[torch.Tensor], operations: Collection[str]) -> bool:
        """End the sum of what was given early. Return True if these are all that the pass sums, all
        were given, and by one operation: then the sum is in them. Collective, if any were given."""
        return False

    def note_sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that a backward pass has summed these. Local."""

    def broadcast(
        self, tensors: Sequence[torch.Tensor], source: int, stands_in: bool = False
    ) -> None:
        """Write the tensors of the worker of this rank on all. Raises PeersLost if it is lost.
        ``stands_in``: see `from_one`."""
        asked = f"{sum(one.nbytes for one in tensors)} bytes"
        found, _ = self.from_one(source, lambda: [*map(bytes_of, tensors)], stands_in, asked)
        for one, there in zip(tensors, found, strict=True):
            one.detach().copy_(like(one, there))

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Return each worker's tensor, by rank. A worker that lives stands in for one that is lost:
        the next one, alike on all."""
        return self.filled(self._values(mine, "tensors"))

    def gather_lists(self, mine: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Return each worker's tensors, by rank, likewise. They may be of other sizes on each."""
        found = self.exchange(
            [(bytes_of(one), list(one.shape)) for one in mine], "lists of tensors"
        )
        return self.filled(
            {
                rank: [from_bytes(there, mine[0].dtype, shape) for there, shape in some]
                for rank, some in found.items()
            }
        )

    def _values(self, mine: torch.Tensor, what: str) -> dict[int, torch.Tensor]:
        """Return each worker's tensor, by rank, in memory that stays until the next call."""
        asked = f"{what} of {mine.numel()} numbers of {mine.dtype}"
        found = self._exchange_bytes(bytes_of(mine), asked)
        return {rank: like(mine, there) for rank, there in found.items()}

    def _exchange_bytes(self, mine: Numbers, asked: str) -> Mapping[int, Numbers]:
        """Return what `exchange` does, for as many bytes of each worker, in other memory."""
        return self.exchange(mine.copy(), asked)  # a newcomer that rehearses gets its own

    def filled(self, found: Mapping[int, Any]) -> list[Any]:
        """Return these values by rank: of one that is lost, that of the next rank which is not."""
        ranks = sorted(found)
        return [
            found[next((one for one in ranks if one >= rank), ranks[0])]
            for rank in range(self.size)
        ]


class Collectives(Calls):
    """Those among all workers."""

    def __init__(self, group: Rounds, size: int) -> None:
        """``group``: it has begun. ``size``: workers at the start, which a newcomer is told."""
        self.group = group
        self.standing = standing = group.standing
        self.rehearses = group.joins
        """True if this worker is a newcomer: its calls are answered without the others."""
        if self.rehearses:
            self.rank, self.share = standing.place_for(group.worker)
        else:
            standing.begin(size)
            self.rank = self.share = standing.ranks[group.worker]
        if group.script.found is not None:
            standing.trained[:] = group.script.found.trained
        self._made = 0
        self.look_anew()

    def note(self, call: str) -> None:
        """Note that the script makes this call, alike on all workers. Local."""
        self._made = crc32(call.encode(), self._made)

    def made(self) -> int:
        """Return a number for the calls that were noted since this was asked last. Local."""
        made, self._made = self._made, 0
        return made

    @property
    def passes(self) -> Passes:
        """Those through data that are under way."""
        return self.group.script.passes

    def look_anew(self, course: int = 0) -> None:
        """Note passes from here on: this worker is where the others are. ``course``: see
        `Passes`."""
        self.group.script.passes = Passes(self.standing.trained, course=course)

    @property
    def size(self) -> int:
        """Number of workers at the start."""
        return self.standing.size

    @property
    def ranks(self) -> Sequence[int]:
        """All ranks up to the highest one that a worker has or had, newcomers among them."""
        return range(1 + max(self.size - 1, self.rank, *self.standing.ranks.values()))

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks of the workers that live (see `Standing.alive`), and of this one."""
        there = self.standing.alive
        return tuple(sorted({*there, self.rank})) if self.rehearses else there

    def end(self, error: BaseException | None) -> None:
        """Leave together with all others, unless this worker has left them already. ``error``: what
        has ended the script; then the others are not waited for."""
        if self.group._inside:
            if error is None and self.stranded:
                error = self.group.turned_away("its script ended before it came to the others")
            self.group.__exit__(type(error) if error else None, error, None)

    @property
    def stranded(self) -> bool:
        """True if the others wait for this newcomer, which is not where they are."""
        return self.rehearses and not self.group.joins

    def exchange(self, value: Any, asked: str) -> dict[int, Any]:
        """Return the values of all who have a part in this call, by rank. ``asked``: what for, in
        short, alike on all."""
        answers = self.standing.answers
        self.note(asked)
        if not self.rehearses:
            said = self.group.exchange(value, asked)
            answers.keep(asked, said)
        elif answers.used_up and not self.standing.trained:
            raise self.group.turned_away(NO_PASS)
        elif (known := answers.recall(asked)) is None:
            return dict.fromkeys(range(self.size), value)
        else:
            said = known
        found, ranks = values_of(said), self.standing.ranks
        if not self.rehearses:
            self._heard(found)
        return {ranks[worker]: one for worker, one in found.items()}

    def _exchange_bytes(self, mine: Numbers, asked: str) -> Mapping[int, Numbers]:
        """Return as many bytes of each worker, by rank."""
        if self.rehearses:
            return super()._exchange_bytes(mine, asked)
        self.note(asked)
        found = self.group.bytes_of_all(mine, asked)
        answers, ranks = self.standing.answers, self.standing.ranks
        kept = None
        if answers.has_room(len(found) * len(mine)):
            kept = pack({worker: pack(one) for worker, one in found.items()})
        answers.keep(asked, kept)
        self._heard(found)
        return {ranks[worker]: one for worker, one in found.items()}

    def broadcast(
        self, tensors: Sequence[torch.Tensor], source: int, stands_in: bool = False
    ) -> None:
        """Write the tensors of one worker on all."""
        size = sum(one.nbytes for one in tensors)
        if self.rehearses or not size or not 0 <= source < len(self.ranks):
            super().broadcast(tensors, source, stands_in)
            return
        others = self.alive if stands_in and source == 0 else ()
        givers = [one for one in dict.fromkeys((source, *others)) if one in self.alive]
        wanted, answers = self.rank != source, self.standing.answers
        mine = [one.detach().contiguous() for one in tensors] if self.rank in givers else []
        about = ", ".join(f"{one.numel()} numbers of {one.dtype}" for one in tensors)
        # Not into the tensors: they may be the next ones that are given.
        found = np.empty(size if wanted else 0, np.uint8)

        def put(begin: int, numbers: Numbers) -> None:
            found[begin : begin + len(numbers)] = numbers

        try:
            self.give(givers, size, partial(read_bytes, mine), about, put if wanted else None)
        except PeersLost:
            answers.keep(f"{size} bytes from {source}", pack({}))
            raise lost(source) from None
        if wanted:
            write_bytes(tensors, 0, found)
        answers.keep(f"{size} bytes from {source}", self._said(source, tensors))

    def _said(self, source: int, tensors: Sequence[torch.Tensor]) -> bytes | None:
        """Return for newcomers what the worker of this rank has given; None: it is too much."""
        if not self.standing.answers.has_room(sum(one.nbytes for one in tensors)):
            return None
        ranks = self.standing.ranks
        worker = next(worker for worker, rank in ranks.items() if rank == source)
        return pack({worker: pack([*map(bytes_of, tensors)])})

    def give(
        self,
        givers: Sequence[int],
        size: int,
        read: Callable[[int, Numbers], None],
        about: str,
        write: Callable[[int, Numbers], None] | None,
    ) -> None:
        """Have all workers write ``size`` bytes that the first of these ranks has. If it is lost,
        the next one that lives gives all of its own, from the first byte on. Raises PeersLost if
        none is left. ``read``: fills an array with those from a place on. ``about``: says what they
        are, alike on all. ``write``: gets those from a place on; None on a worker that needs
        none."""
        begin, giver = 0, None
        while begin < size:
            if giver not in self.standing.alive:
                begin, giver = 0, next((one for one in givers if one in self.standing.alive), None)
            if giver is None:
                raise PeersLost(f"all workers that had {about} are lost")
            many = min(_AT_ONCE, size - begin)
            own = partial(read, begin) if self.rank == giver else None
            what = f"{about} from rank {giver}, from byte {begin} on"
            said, workers = self.group.bytes_of_one(many, what, own)
            self._heard(one for one in workers if one in self.standing.ranks)
            if giver in self.standing.alive:
                if write is not None:
                    write(begin, said)
                begin += many

    def _heard(self, workers: Iterable[WorkerId]) -> None:
        """Note who had a part in a call. If the first one is gone since the last call, the first
        worker that lives stands in, and tells the user."""
        before, *_ = self.standing.alive
        self.standing.heard(workers)
        first, *_ = self.standing.alive
        if before < first == self.rank:
            libraries = " and ".join(let_first_stand_in())
            if libraries:
                said = _ANOTHER_SAVES.format(before, first, libraries)
                print(said, file=sys.stderr, flush=True)
            elif before == 0:
                print(_RANK_0_IS_GONE, file=sys.stderr, flush=True)

    def sum_up(self) -> None:
        """Note that gradients were summed."""
        self.passes.sum_up(self.alive, self.standing.taken)
        self.standing.answers.sums += 1

    def _given(
        self, source: int, value: Callable[[], Any], stands_in: bool, asked: str
    ) -> tuple[Any, int]:
        """Return what one worker gives, and its rank."""
        if self.rehearses:
            found = self.exchange(None, f"{asked} from {source}")
            return (value() if found.get(source) is None else found[source]), source
        found = {}
        while source not in found:
            if source not in self.alive:
                if not stands_in:
                    raise lost(source)
                source = self.alive[0]
            mine = value() if self.rank == source else None
            found = self.exchange(mine, f"{asked} from {source}")
        return found[source], source

    def _add_up(self, mean: MeanOf) -> None:
        """Write this mean where it says."""
        if self.rehearses:
            as_if_alike(mean)
        else:
            self._heard(self.group.add_up(mean))

    def give_early(
        self, number: int, tensors: Sequence[torch.Tensor], step: Callable[[], bool]
    ) -> None:
        """Do so, unless this worker rehearses."""
        usual = self.standing.usual
        if (
            self.rehearses
            or not usual.expected
            or [*map(bucket_of, tensors)] != [*usual.buckets[number : number + 1]]
        ):
            return
        (mine,) = tensors
        kind, _ = summed_as(mine)
        if not number:
            self.group.begin_early([size for _, size in usual.buckets], kind, step())
        if self.group.early == number:
            self.group.give_early(mine, kind)

    def end_early(self, tensors: Sequence[torch.Tensor], operations: Collection[str]) -> bool:
        """End what was begun."""
        if (given := self.group.early) is None:
            return False
        whole = given == len(tensors) == len(self.standing.usual.buckets)
        whole = whole and len({*operations}) == 1
        times = TIMES[next(iter(operations))](self.size) if whole else None
        workers = self.group.end_early(tensors if whole else None, times)
        if workers is None:
            self.standing.usual.fail()
            return False
        self._heard(workers)
        return True

    def note_sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note it, unless this worker rehearses."""
        if not self.rehearses:
            self.standing.usual.note([*map(bucket_of, tensors)])

    def post(self, to: int, key: bytes, content: Any) -> None:
        """Send bytes to the worker of this rank, unless this worker rehearses."""
        if not self.rehearses:
            (worker,) = self._workers([to])
            self.group.post(worker, key, content)

    def receive(self, sender: int | None, key: bytes, waits: bool) -> tuple[int, Any] | None:
        """Return the rank and the bytes of the next message."""
        others = {*self.standing.ranks.values()} - {self.rank}
        return self.receive_from(others if sender is None else [sender], key, waits)

    def receive_from(
        self, senders: Collection[int], key: bytes, waits: bool
    ) -> tuple[int, Any] | None:
        """Return the rank and the bytes of the next message from one of these ranks."""
        if self.rehearses:
            return next(iter(senders), self.rank), None
        alone = [*senders] == [self.rank]
        workers = self._workers(senders)
        try:
            message = self.group.receive(workers, key, waits and not alone)
        except PeersLost:
            gone = next(one for one in workers if one not in self.group.workers)
            raise lost(self.standing.ranks[gone]) from None
        if message is None:
            if alone and waits:
                raise UsageError(f"rank {self.rank} receives what it has not sent to itself")
            return None
        there = np.frombuffer(message.content, np.uint8)
        return self.standing.ranks[message.sender], there

    def key(self, what: str) -> bytes:
        """Return the key of messages of this kind. What is left of an earlier group has another."""
        return blake2b(f"{self.group.number} {what}".encode(), digest_size=KEY).digest()

    def _workers(self, ranks: Collection[int]) -> list[WorkerId]:
        """Return the workers of these ranks that live. Raises PeersLost if none does, and
        UsageError if there is no such rank."""
        members, ranked = self.group.workers, self.standing.ranks
        found = [one for one in members if ranked.get(one) in ranks]
        if not found and {*ranks}.difference(ranked.values()):
            raise UsageError(f"there is no rank {min(ranks)} among {self.size} workers")
        if not found:
            raise lost(*ranks)
        return found

    @property
    def there(self) -> set[int]:
        """Ranks of the workers that live, as far as it is known here."""
        ranks = self.standing.ranks
        return {ranks[one] for one in self.group.workers if one in ranks} | {self.rank}

    def ask_some(
        self, ranks: Sequence[int], mine: Parts, combine: Callable[[Mapping[int, Parts]], Parts]
    ) -> Parts:
        """Return what ``combine`` makes of what the others of these ranks bring, by rank, and of
        what this worker brings: see `SubsetCalls.call`. ``mine``: that. Collective among them."""
        ranked = self.standing.ranks
        workers = sorted(
            (one for one, rank in ranked.items() if rank in ranks),
            key=lambda one: (ranks.index(ranked[one]), one),
        )
        return self.group.ask_some(
            self.key(f"calls of {[*ranks]}"),
            workers,
            mine,
            lambda said: combine({ranked[one]: said[one] for one in said}),
        )

    def take_step(self) -> None:
        """Count a step that all take with sums in groups of some."""
        nothing = [torch.zeros(1)]
        self._add_up(MeanOf(nothing, torch.float32, 1, step=True, out=nothing))


def lost(*ranks: int) -> PeersLost:
    """Return what is raised where lost workers were to say something."""
    said = f"rank {', '.join(map(str, ranks))}" if ranks else "another worker"
    return PeersLost(
        f"{said}, which was to give or to get something, is lost: ask spotmpi.torch.workers() who "
        "lives"
    )
