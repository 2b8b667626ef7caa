"""Passes of a script through its data: which samples have been used, by whom.

A worker uses a sample by a sum of gradients after the loader has given it. All workers go through
their loaders in step, so each knows of all others how far they are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from spotmpi.errors import UsageError
from spotmpi.torch.dealing import Deal, Place, Samples

__all__ = ["Company", "DealtPass", "Pass", "Passes", "follow_loaders"]


class Pass:
    """One time through a `DistributedSampler`'s samples, as one worker goes through them. Those of
    a lost worker are used by nobody."""

    number: int | None = None
    """Which one it is of those that all workers begin together, through a loader."""

    def __init__(self, workers: Sequence[int], samples: int, used: int = 0) -> None:
        """``workers``: those with a part of the samples; ``samples``: how many each has, and
        ``used``: has used already."""
        self._there = tuple(workers)
        """Workers with a part in the last sum of gradients, or that begin."""
        self._dealt_to = len(self._there)
        self._used = used
        """Samples that each of them had been given by then."""
        self._lost: list[int] = []
        """What each lost worker had used."""
        self.drawn = samples
        self.given = used
        """Samples that the loader has given to the script."""

    def give(self, batch: int) -> None:
        """Note that a batch has been given. Only the last one has fewer samples than ``batch``."""
        self.given += min(batch, self.drawn - self.given)

    def sum_up(self, workers: Sequence[int]) -> None:
        """Note that gradients of these workers were summed: they have used what they were given.
        All others are lost."""
        if workers != self._there:
            if lost := set(self._there).difference(workers):
                self._lose(lost)
            self._there = tuple(workers)
        self._used = self.given

    def _lose(self, workers: Collection[int]) -> None:
        self._lost += [self._used] * len(workers)

    def goes_on(self) -> bool:
        """Return True if there is more to use when the loader has given all."""
        return False

    @property
    def missed(self) -> int:
        """Samples that lost workers would have used by now, and nobody has."""
        return sum(self.given - used for used in self._lost)

    @property
    def place(self) -> Place:
        """Where it stood after the last sum of gradients."""
        return Place(self._used, self._dealt_to, None)


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
        return Place(self._used, self._dealt_to, self._deal.left(self._used))


class Passes:
    """The passes that are under way on a worker."""

    def __init__(self, trained: list[bool] | None = None, missed: int = 0) -> None:
        """``trained``: gets an entry for each that begins through a loader, and that is true once
        gradients are summed in it. ``missed``: samples that nobody has used, before."""
        self._those: list[Pass] = []
        self.trained = [] if trained is None else trained
        self._missed = missed

    def begin(self, one: Pass, loader: bool = False) -> None:
        """Begin one."""
        if loader:
            one.number = len(self.trained)
            self.trained.append(False)
        self._those.append(one)

    def end(self, one: Pass) -> None:
        """End one, if it has not ended: no sum uses more of its samples."""
        if one in self._those:
            self._those.remove(one)
            self._missed += one.missed

    def sum_up(self, workers: Sequence[int], shares: Sequence[int] | None = None) -> None:
        """Note that gradients of these workers were summed. ``shares``: those that they have of
        samples which torch deals; None: each has that of its number."""
        for one in self._those:
            one.sum_up(workers if shares is None or isinstance(one, DealtPass) else shares)
            if one.number is not None:
                self.trained[one.number] = True

    @property
    def now(self) -> Pass | None:
        """The last one that was begun through a loader and is under way."""
        return next((one for one in reversed(self._those) if one.number is not None), None)

    def goes_through(self, one: Pass | None) -> bool:
        """Return True if this is the only one through a loader that is under way. None: there is
        none."""
        under_way = [there for there in self._those if there.number is not None]
        return under_way == ([] if one is None else [one])

    @property
    def missed(self) -> int:
        """Samples of lost workers that nobody has used, so far."""
        return self._missed + sum(one.missed for one in self._those)


class Company(Protocol):
    """The workers that go through loaders together."""

    @property
    def passes(self) -> Passes:
        """Where passes are noted."""

    @property
    def size(self) -> int:
        """The number of workers at the start."""

    @property
    def place(self) -> tuple[int, int]:
        """This worker's rank, and its share of samples that are dealt to as many as `size`."""

    @property
    def rehearses(self) -> bool:
        """True if this script goes through what others, or this job before it was resumed, have
        done: it is not where they are, or were."""

    def begins_pass(self) -> bool:
        """Let newcomers in, before all begin a pass. Return False if this worker only rehearses
        it. Collective, but on a newcomer that rehearses."""

    def resumed_at(self) -> Place | None:
        """Return the place in the pass that begins now where a resumed script goes on, once; None:
        at its beginning."""

    def rest(self, within: Pass | None) -> None:
        """Keep what the script trains with, and stop, if that is due. ``within``: the pass that it
        is in, before its next batch; None: it begins one. Collective, on all or on none."""

    def goes_on(self, dealt: bool) -> bool:
        """Return True if a script rehearses with another batch of the loader. ``dealt``: its
        samples are dealt to workers."""


def follow_loaders(company: Callable[[], Company | None]) -> None:
    """Let torch's loaders say what they give.

    ``company`` returns who goes through them; None: loaders do as ever.
    """
    usual: Callable[[Any], Iterator[Any]] = DataLoader.__iter__
    if hasattr(usual, "followed"):
        return

    @functools.wraps(usual)
    def loop(loader: Any) -> Iterator[Any]:
        if (there := company()) is None:
            return usual(loader)
        # Nobody trains without gradients.
        dealt = _dealt(loader, there.size) if torch.is_grad_enabled() else None
        if dealt is not None and there.begins_pass():
            return _Loop(loader, usual, there, dealt)
        if there.rehearses:
            return _Beginning(usual(loader), lambda: there.goes_on(dealt is not None))
        return usual(loader)

    loop.followed = True  # type: ignore[attr-defined]
    DataLoader.__iter__ = loop
    DistributedSampler.__init__ = _dealing(DistributedSampler.__init__, company)
    DistributedSampler.__iter__ = _skipping(DistributedSampler.__iter__)


def _dealing(
    usual: Callable[..., None], company: Callable[[], Company | None]
) -> Callable[..., None]:
    """Return a constructor of torch's sampler that knows ranks beyond those of the start."""

    @functools.wraps(usual)
    def make(
        sampler: Any,
        dataset: Any,
        num_replicas: Any = None,
        rank: Any = None,
        *how: Any,
        **named: Any,
    ) -> None:
        if (there := company()) is not None and num_replicas in (None, there.size):
            own, share = there.place
            rank = share if rank in (None, own) else rank
        usual(sampler, dataset, num_replicas, rank, *how, **named)

    return make


_SKIPS = "_spotmpi_skips"
"""Attribute of a sampler: samples that the next pass leaves out, as they are used."""


def _skipping(usual: Callable[[Any], Iterator[int]]) -> Callable[[Any], Iterator[int]]:
    """Return a sampler's iterator that leaves out what was used before a job was resumed."""

    @functools.wraps(usual)
    def iterate(sampler: Any) -> Iterator[int]:
        return islice(usual(sampler), vars(sampler).pop(_SKIPS, 0), None)

    return iterate


class Dealt(NamedTuple):
    """How a loader's samples are dealt to workers."""

    elastic: Any
    """The ElasticSampler; None: a DistributedSampler of torch."""
    sampler: Any
    """The sampler of torch, or that one."""
    batch: int
    """The size of a batch."""
    samples: int
    """What torch's gives to each worker."""


def _dealt(loader: Any, workers: int) -> Dealt | None:
    """Return how a loader's samples are dealt to workers; None: they are not, or it cannot be seen.
    Raises UsageError if it would have to be seen."""
    batches = loader.batch_sampler
    sampler: Any = loader.sampler if batches is None else getattr(batches, "sampler", None)
    size = None
    if batches is None:
        size = 1
    elif type(batches) is BatchSampler:
        size = batches.batch_size
    elastic = _elastic_in(loader)
    if elastic is not None:
        if size is not None and sampler is elastic and getattr(loader, "in_order", True):
            return Dealt(elastic, sampler, size, 0)
        if loader.num_workers:
            raise UsageError(
                "ElasticSampler cannot see which samples a batch of this loader has: give the "
                "loader torch's BatchSampler and batches in order, or num_workers=0"
            )
    elif isinstance(sampler, DistributedSampler) and size is not None:
        many = getattr(sampler, "num_samples", None)
        if many is not None and getattr(sampler, "num_replicas", None) == workers:
            return Dealt(None, sampler, size, many)
    return None


def _elastic_in(loader: Any) -> Any:
    """Return the ElasticSampler behind a loader, if there is one: samplers may have samplers."""
    those = [loader.batch_sampler, loader.sampler]
    for _ in range(5):
        for one in those:
            if hasattr(one, "next_pass"):
                return one
        names = ("sampler", "batch_sampler")
        inner = [getattr(one, name, None) for one in those for name in names]
        those = [one for one in inner if one is not None]
    return None


class _Loop:
    """Goes through a loader, and on to what is dealt meanwhile."""

    def __init__(
        self,
        loader: Any,
        usual: Callable[[Any], Iterator[Any]],
        there: Company,
        dealt: Dealt,
    ) -> None:
        """Begin a pass: among those that are ``there``, as samples are ``dealt``."""
        self._loader, self._usual, self._passes = loader, usual, there.passes
        self._elastic, self._size = dealt.elastic, dealt.batch
        self._rest = there.rest
        self._pass: Pass
        place = there.resumed_at()
        if place is not None and (place.left is None) != (self._elastic is None):
            raise UsageError(
                "the checkpoint was written in a pass through a loader with another kind of "
                "sampler: resume with the script that it was written by"
            )
        if self._elastic is None:
            used = 0 if place is None else min(place.used_by_each_of(there.size), dealt.samples)
            setattr(dealt.sampler, _SKIPS, used)
            self._pass = Pass(range(there.size), dealt.samples, used)
            self._passes.begin(self._pass, loader=True)
        else:
            self._pass = self._elastic.begin(self._size, place and place.left)
        self._thread = threading.get_ident()
        self._inner = self._drawn(lambda: usual(loader))

    def _drawn(self, what: Callable[[], Any]) -> Any:
        """Do something in which the sampler may be asked for samples: for those of this pass."""
        if self._elastic is None:
            return what()
        self._elastic.next_pass = self._pass
        try:
            return what()
        finally:
            self._elastic.next_pass = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._elastic is not None and threading.get_ident() != self._thread:
            raise UsageError(
                "a loader with ElasticSampler is read by another thread than the script's: how far "
                "the script is cannot be seen"
            )
        while True:
            try:
                batch = self._drawn(lambda: next(self._inner))
            except StopIteration:
                if not self._pass.goes_on():
                    self._passes.end(self._pass)
                    raise
                self._inner = self._drawn(lambda: self._usual(self._loader))
            else:
                if threading.get_ident() == self._thread:
                    self._rest(self._pass)
                self._pass.give(self._size)
                return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_inner"), name)

    def __del__(self) -> None:
        self._passes.end(self._pass)


class _Beginning:
    """The beginning of a loader's batches, in a rehearsal: one, and more if it needs them."""

    def __init__(self, batches: Iterator[Any], goes_on: Callable[[], bool]) -> None:
        """``goes_on``: asked before each further one."""
        self._batches, self._goes_on = batches, goes_on
        self._given = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._given and not self._goes_on():
            raise StopIteration
        batch = next(self._batches)
        self._given = True
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # as torch's

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_batches"), name)
