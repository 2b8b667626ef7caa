"""Passes of a script through its data: which samples have been used, by whom.

A worker uses a sample by a sum of gradients after the loader has given it. All workers go through
their loaders in step, so each knows of all others how far they are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from spotmpi.errors import UsageError
from spotmpi.torch.dealing import Deal, Samples

__all__ = ["DealtPass", "Pass", "Passes", "follow_loaders"]


class Pass:
    """One time through a `DistributedSampler`'s samples, as one worker goes through them. Those of
    a lost worker are used by nobody."""

    def __init__(self, workers: Sequence[int], samples: int) -> None:
        """``workers``: those with a part of the samples; ``samples``: how many each has."""
        self._there = tuple(workers)
        """Workers with a part in the last sum of gradients, or that begin."""
        self._used = 0
        """Samples that each of them had been given by then."""
        self._lost: list[int] = []
        """What each lost worker had used."""
        self.drawn = samples
        self.given = 0
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


class Passes:
    """The passes that are under way on a worker."""

    def __init__(self) -> None:
        """Begin with none."""
        self._those: list[Pass] = []
        self._missed = 0

    def begin(self, one: Pass) -> None:
        """Begin one."""
        self._those.append(one)

    def end(self, one: Pass) -> None:
        """End one, if it has not ended: no sum uses more of its samples."""
        if one in self._those:
            self._those.remove(one)
            self._missed += one.missed

    def sum_up(self, workers: Sequence[int]) -> None:
        """Note that gradients of these workers were summed."""
        for one in self._those:
            one.sum_up(workers)

    @property
    def missed(self) -> int:
        """Samples of lost workers that nobody has used, so far."""
        return self._missed + sum(one.missed for one in self._those)


def follow_loaders(passes_of: Callable[[], tuple[Passes, int] | None]) -> None:
    """Let torch's loaders say what they give.

    ``passes_of`` returns where passes are noted, and the number of workers at the start; None: they
    are not, and loaders do as ever.
    """
    usual: Callable[[Any], Iterator[Any]] = DataLoader.__iter__
    if hasattr(usual, "followed"):
        return

    @functools.wraps(usual)
    def loop(loader: Any) -> Iterator[Any]:
        there = passes_of()
        if there is None or not torch.is_grad_enabled():  # nobody trains without gradients
            return usual(loader)
        return _followed(loader, usual, *there)

    loop.followed = True  # type: ignore[attr-defined]
    DataLoader.__iter__ = loop


def _followed(
    loader: Any, usual: Callable[[Any], Iterator[Any]], passes: Passes, workers: int
) -> Iterator[Any]:
    """Return what goes through a loader, and notes it if its samples are dealt to workers."""
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
            return _Loop(loader, usual, passes, elastic.begin(size), elastic, size)
        if loader.num_workers:
            raise UsageError(
                "ElasticSampler cannot see which samples a batch of this loader has: give the "
                "loader torch's BatchSampler and batches in order, or num_workers=0"
            )
    elif isinstance(sampler, DistributedSampler) and size is not None:
        many = getattr(sampler, "num_samples", None)
        if many is not None and getattr(sampler, "num_replicas", None) == workers:
            passes.begin(one := Pass(range(workers), many))
            return _Loop(loader, usual, passes, one, None, size)
    return usual(loader)


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
        passes: Passes,
        one: Pass,
        elastic: Any,
        size: int,
    ) -> None:
        """``one``: the pass; ``elastic``: the sampler, of those that deal; ``size``: of a batch."""
        self._loader, self._usual, self._passes = loader, usual, passes
        self._pass, self._elastic = one, elastic
        self._size = size
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
                self._pass.give(self._size)
                return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_inner"), name)

    def __del__(self) -> None:
        self._passes.end(self._pass)
