"""Passes of a script through its data: which samples have been used, by whom. Pure.

A worker uses a sample by a sum of gradients after the loader has given it. All workers go through
their loaders in step, so each knows of all others how far they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from spotmpi.protocol.plain_values import pack
from spotmpi.torch.dealing import Deal, Place, Samples

__all__ = ["DealtPass", "Pass", "Passes", "Rhythm", "Way"]


_ENOUGH = 2
"""Sums of gradients that tell if a script reads ahead."""


class Way(NamedTuple):
    """A loader that says what it gives."""

    loader: object
    known_by: tuple[int, ...] = ()
    """What tells it from others, also in another run of the script."""
    lasts: bool = False
    """True if its passes last when it gives no more: the script may still train with the last
    batch, and do what belongs to the pass. Passes through other loaders are within it."""


class Rhythm:
    """After how many batches of a pass a script makes the same calls again, beside the sums of
    gradients. Alike on all workers."""

    def __init__(self, batches: int = 0, origin: int | None = None) -> None:
        """``batches``: those that the script has been given. ``origin``: how many a newcomer has
        rehearsed with when it joins in this pass; None: it is not known yet."""
        self.batches = batches
        self.origin = origin
        self._given: int | None = None
        """Samples that the script had been given when this was told last."""
        self._calls = array("L")
        """What stands for the calls that came with each batch, but for the first one: there torch,
        and scripts, do what they do once."""
        self._borders = array("L")
        """For each of them the length of the longest row that ends there and begins them all, and
        is not all of them (Knuth, Morris, Pratt)."""

    def beat(self, given: int, calls: int) -> bool:
        """Note the calls that came with the last batch, as a number. ``given``: samples that the
        script has been given by now. Return False if it has not been given any since it was told
        last, or this is the first time: then nothing is noted."""
        before, self._given = self._given, given
        if before in (None, given):
            return False
        self.batches += 1
        if self.batches > 1:
            self._append(calls)
        return True

    def _append(self, calls: int) -> None:
        border = self._borders[-1] if self._borders else 0
        while border and self._calls[border] != calls:
            border = self._borders[border - 1]
        self._borders.append(border + (bool(self._calls) and self._calls[border] == calls))
        self._calls.append(calls)

    def begin_anew(self, given: int) -> None:
        """Forget the calls: others are there that do not know them. ``given``: see `beat`."""
        self._calls, self._borders = array("L"), array("L")
        self._given = given

    @property
    def period(self) -> int:
        """After how many batches all calls have come again, so far."""
        return len(self._calls) - self._borders[-1] if self._borders else 0

    @property
    def comes_round(self) -> bool:
        """True if calls come again after more than one batch, have all done so at least once, and
        will come as they came to a script that had been given `origin` batches."""
        if self.origin is None or not 1 < self.period <= len(self._calls) // 2:
            return False
        return (self.batches - self.origin) % self.period == 0


class Pass:
    """One time through samples that each worker has a fixed part of, as one worker goes through
    them. Those of a lost worker are used by nobody."""

    way: Way | None = None
    """What it goes through; None: it is drawn without a loader that says what it gives."""
    number: int | None = None
    """Which one it is of those that count: not of those within another one."""
    course: int = 0
    """Which passes were counted before it (see `Passes.course`)."""
    late = False
    """True if it counts though it began within another one."""
    rehearsed = False
    """True if others, or this job before it was resumed, have been through it."""
    summed = False
    """True once gradients were summed in it."""
    fixed_length = False
    """True if the code that goes through it ends it after as many batches as it had at first."""
    through = False
    """True if its loader gives no more, and it lasts."""

    def __init__(self, workers: Sequence[int], samples: int, used: int = 0) -> None:
        """``workers``: those with a part of the samples; ``samples``: how many each has, and
        ``used``: has used already."""
        self._there = tuple(workers)
        """Workers with a part in the last sum of gradients, or that begin."""
        self._dealt_to = len(self._there)
        self._used = used
        """Samples that each of them had been given by then."""
        self._lost: dict[int, int] = {}
        """What each lost worker had used."""
        self._size = 0
        """The size of a batch."""
        self._at_sums: list[int] = []
        """Samples given by the first two sums that were not of the same batch, from `_first` on."""
        self._first = used
        self._unused = 0
        """Samples that nobody has used, beside what lost workers have left."""
        self.drawn = samples
        self.given = used
        """Samples that the loader has given to the script."""

    def give(self, batch: int) -> None:
        """Note that a batch has been given. Only the last one has fewer samples than ``batch``."""
        self._size = batch
        self.given += min(batch, self.drawn - self.given)

    def sum_up(self, workers: Sequence[int]) -> None:
        """Note that gradients of these workers were summed: they have used what they were given.
        All others are lost."""
        if workers != self._there:
            if lost := set(self._there).difference(workers):
                self._lose(lost)
            for one in self._lost.keys() & {*workers}:
                self._unused += self._used - self._lost.pop(one)
            self._there = tuple(workers)
        self._used = self.given
        if len(self._at_sums) < _ENOUGH and self.given not in self._at_sums:
            self._at_sums.append(self.given)

    @property
    def may_be_joined(self) -> bool:
        """True if all batches so far were summed, and the script is known to train with a batch
        before it reads the next one: it had no more batches before its first sum of gradients than
        between that and the next."""
        if self.fixed_length or len(self._at_sums) < _ENOUGH or self.given != self._used:
            return False
        first, second = self._at_sums
        return first - self._first <= second - first

    def _lose(self, workers: Collection[int]) -> None:
        self._lost.update(dict.fromkeys(workers, self._used))

    def waste(self, batches: int) -> None:
        """Note that nobody uses some batches that were given."""
        self._unused += batches * self._size

    def deal_anew(self, workers: Sequence[int]) -> bool:
        """Go on with these workers, of which some have come. Returns True if what is left is dealt
        to all of them: what was drawn and not given is no worker's any more."""
        self._at_sums.clear()
        self._first = self.given
        return False

    def goes_on(self) -> bool:
        """Return True if there is more to use when the loader has given all."""
        return False

    @property
    def missed(self) -> int:
        """Samples that lost workers would have used by now, and nobody has."""
        return self._unused + sum(self.given - used for used in self._lost.values())

    @property
    def place(self) -> Place:
        """Where it stood after the last sum of gradients."""
        return Place(self._used, self._dealt_to, None, self.summed)


class DealtPass(Pass):
    """One in which others use what lost workers did not."""

    def __init__(self, deal: Deal, worker: int, batch: int | None) -> None:
        """``worker``: this one; ``batch``: the size of a batch, of a loader that says what it
        gives. Without one, what is drawn is given."""
        super().__init__(deal.workers, 0)
        self._deal = deal
        self._worker = worker
        self._batch = batch
        self._at_first = len(self._mine)

    @property
    def _mine(self) -> Samples:
        return self._deal.of(self._worker)

    def __iter__(self) -> Iterator[int]:
        """Yield this worker's samples that have not been drawn. What comes meanwhile is for the
        next time, if a loader says what it gives: loaders draw ahead, each worker's as far as it
        may, and batches must be the same on all."""
        if self._batch is None:
            while self.drawn < len(self._mine):
                self.drawn += 1
                self.given = self.drawn
                yield int(self._mine[self.drawn - 1])
            return
        # Many modules cannot train with a batch of a single sample.
        lone = self._batch > 1 and (len(self._mine) - self.drawn) % self._batch == 1
        let_go = lone and not self._deal.repeat()
        mine = self._mine
        while self.drawn < len(mine) - let_go:
            self.drawn += 1
            yield int(mine[self.drawn - 1])
        self.drawn = len(mine)

    def _lose(self, workers: Collection[int]) -> None:
        self._deal.lose(workers, self._used)

    def deal_anew(self, workers: Sequence[int]) -> bool:
        """Deal what is left to these workers. Returns True."""
        self._at_sums.clear()
        self._deal = Deal(self._deal.left(self._used), workers, self._deal.whole)
        self._there, self._dealt_to, self._used = tuple(workers), len(workers), 0
        self.drawn = self.given = self._first = 0
        self._at_first = len(self._mine)
        return True

    def goes_on(self) -> bool:
        """Return True if more was dealt since samples were drawn last. A batch that is not full and
        that the loader does not give is let go."""
        self.given = self.drawn
        return self.drawn < len(self._mine)

    @property
    def missed(self) -> int:
        """Samples of lost workers that were dealt to others after the script had used its own, and
        that it did not ask for; of all workers."""
        through = self.given >= self._at_first
        return len(self._there) * (len(self._mine) - self.given) if through else 0

    @property
    def place(self) -> Place:
        """Where it stood after the last sum of gradients."""
        return Place(self._used, self._dealt_to, self._deal.left(self._used), self.summed)


class Passes:
    """The passes that are under way on a worker."""

    def __init__(self, trained: list[bool] | None = None, missed: int = 0, course: int = 0) -> None:
        """``trained``: gets an entry for each that counts, which is true once gradients are summed
        in it. ``missed``: samples that nobody has used, before."""
        self._those: list[Pass] = []
        self.trained = [] if trained is None else trained
        self.course = course
        """A checksum of the ways of all that have counted, in order: alike in scripts that have
        gone through the same ones."""
        self.rehearsed = 0
        """Passes that were rehearsed, but for those within another one."""
        self._missed = missed

    def begin(self, one: Pass, way: Way | None = None, rehearsed: bool = False) -> None:
        """Begin one. For the rest see `Pass`."""
        one.way, one.rehearsed = way, rehearsed
        if way is not None and not self.within_another(way.loader):
            self._count(one, way)
        self._those.append(one)

    def go_on(self, one: Pass, place: Place) -> None:
        """Note that a pass that has begun is one that was at this place."""
        one.summed = place.summed
        if one.number is not None and not one.rehearsed:
            self.trained[one.number] = place.summed

    def with_one(self, way: Way) -> int:
        """Return the course with one more pass."""
        return crc32(pack(way.known_by), self.course)

    def _count(self, one: Pass, way: Way) -> None:
        one.course, self.course = self.course, self.with_one(way)
        if one.rehearsed:
            one.number = self.rehearsed
            self.rehearsed += 1
        else:
            one.number = len(self.trained)
            self.trained.append(False)

    def end_last(self, loader: object) -> None:
        """End the last pass through a loader that begins anew, if that lasts; and any in which no
        gradients were summed."""
        for one in [one for one in self._through_loaders if one.through]:
            anew = one.way is not None and one.way.loader is loader
            if anew or not (one.summed or self._known_to_train(one)):
                self.end(one)

    def _known_to_train(self, one: Pass) -> bool:
        """Return True if gradients were summed in a pass that is rehearsed, as others know: in a
        rehearsal they may not be."""
        number = one.number
        return one.rehearsed and number is not None and self.trained[number : number + 1] == [True]

    def leave(self, one: Pass) -> None:
        """Note that the script goes no further through a loader's batches."""
        if one.way is not None and one.way.lasts and one.number is not None:
            one.through = True
        else:
            self.end(one)

    def within_another(self, loader: object) -> bool:
        """Return True if a pass through this loader is within one through another loader."""
        ways = [one.way for one in self._those if one.way is not None]
        return any(way.lasts and way.loader is not loader for way in ways)

    def end(self, one: Pass) -> None:
        """End one, if it has not ended: no sum uses more of its samples."""
        if one in self._those:
            self._those.remove(one)
            self._missed += one.missed

    def sum_up(self, workers: Sequence[int], shares: Sequence[int] | None = None) -> None:
        """Note that gradients of these workers were summed. ``shares``: those that they have of
        samples which torch deals; None: each has that of its number. A pass that lasts ends if they
        were summed within a later one."""
        *before, last = self._through_loaders or [Pass((), 0)]
        if last.way is not None and last.number is None and all(one.through for one in before):
            for one in before:
                self.end(one)
            self._count(last, last.way)
            last.late = True
        for one in self._those:
            one.sum_up(workers if shares is None or isinstance(one, DealtPass) else shares)
            one.summed = True
            if one.number is not None and not one.rehearsed:
                self.trained[one.number] = True

    @property
    def now(self) -> Pass | None:
        """The last one that is under way, of those that count."""
        there = [one for one in self._those if one.number is not None and not one.rehearsed]
        return there[-1] if there else None

    def goes_through(self, one: Pass | None) -> bool:
        """Return True if this is the only one through a loader that is under way. None: there is
        none."""
        under_way = [there for there in self._through_loaders if not there.through]
        return under_way == ([] if one is None or one.through else [one])

    @property
    def _through_loaders(self) -> list[Pass]:
        return [one for one in self._those if one.way is not None]

    @property
    def missed(self) -> int:
        """Samples of lost workers that nobody has used, so far."""
        return self._missed + sum(one.missed for one in self._those)
