"""Loaders of torch say which samples they give, and where passes through data begin.

Samples are dealt to workers by a sampler: torch's `DistributedSampler`, our ElasticSampler, or the
one of Hugging Face's Accelerate, which deals batches.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from spotmpi.errors import UsageError
from spotmpi.torch.dealing import Place
from spotmpi.torch.passes import Pass, Passes, Way
from spotmpi.torch_hooks.libraries import counts_batches

__all__ = ["Company", "Dealt", "Orders", "follow_loaders", "following"]


class Dealt(NamedTuple):
    """How a loader's samples are dealt to workers."""

    loader: Any
    sampler: Any
    """What deals them."""
    batch: int
    """The size of a worker's batch."""
    samples: int
    """What each worker is given; 0 with ElasticSampler, where that may change."""
    elastic: bool = False
    """True if the sampler is an ElasticSampler."""
    by_batches: bool = False
    """True if the sampler yields batches. It is Accelerate's then, whose loaders read a batch ahead
    of the script."""

    @property
    def way(self) -> Way:
        """What is known of the loader, on any number of workers."""
        samples = len(getattr(self.loader, "dataset", ()))
        known_by = samples, int(self.random is not None)
        return Way(self.loader, known_by, self.by_batches)

    @property
    def random(self) -> torch.Generator | None:
        """The random numbers that samples are drawn with, if they go on from pass to pass."""
        inner = getattr(self.sampler, "batch_sampler", None)
        found = getattr(getattr(inner, "sampler", None), "generator", None)
        return found if isinstance(found, torch.Generator) else None


class _Order(NamedTuple):
    """The random numbers of a loader."""

    number: int
    """The loader's, of those that have any: in the order of their first passes."""
    random: torch.Generator
    begun: bytes
    """Their state as its last pass began."""


class Orders:
    """The orders of the samples of all loaders that a script goes through: newcomers and resumed
    scripts draw them as the others do, or as the script did before."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Any, _Order] = weakref.WeakKeyDictionary()
        self._seen = 0
        """Loaders so far."""

    def begin(self, dealt: Dealt) -> None:
        """Note that a pass begins."""
        if dealt.random is not None:
            known = self._of.get(dealt.loader)
            number = self._seen if known is None else known.number
            self._seen += known is None
            self._of[dealt.loader] = _Order(number, dealt.random, _state(dealt.random))

    def told(self, within: object = None) -> list[tuple[int, bytes]]:
        """Return the orders by the loaders' numbers: of one that the script is ``within`` a pass
        of, as it was at the beginning of that."""
        return [
            (one.number, one.begun if loader is within else _state(one.random))
            for loader, one in self._of.items()
        ]

    def take(self, told: Sequence[tuple[int, bytes]]) -> None:
        """Draw samples in the orders that were told. Raises UsageError if these are none."""
        states = dict(told)
        for loader, one in [*self._of.items()]:
            if (state := states.get(one.number)) is None:
                continue
            try:
                one.random.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            except (RuntimeError, TypeError, ValueError) as error:
                raise UsageError(f"samples cannot be drawn as before: {error}") from None
            self._of[loader] = one._replace(begun=state)


def _state(random: torch.Generator) -> bytes:
    there: bytes = random.get_state().numpy().tobytes()
    return there


class Company(Protocol):
    """The workers that go through loaders together."""

    @property
    def passes(self) -> Passes:
        """Where passes are noted."""

    @property
    def orders(self) -> Orders:
        """The orders of samples."""

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

    def begins_pass(self, dealt: Dealt) -> bool:
        """Let newcomers in, before all begin a pass. Return False if this worker only rehearses
        it. Collective, but on a newcomer that rehearses."""

    def begins_within(self, dealt: Dealt) -> bool:
        """Begin a pass within another one. Return True if a resumed script goes on in it; if it
        rehearses it, it has the model of the checkpoint again."""

    def resumed_at(self) -> Place | None:
        """Return the place in the pass that begins now where a resumed script, or a newcomer, goes
        on, once; None: at its beginning."""

    def rest(self, within: Pass | None) -> bool:
        """Keep what the script trains with, stop, and let newcomers in, if that is due. ``within``:
        the pass that it is in, before its next batch; None: it begins one. Return True if what is
        left of it is dealt anew (`Pass.deal_anew`). Collective, on all or on none."""

    def joins_within(self, one: Pass, given: bool) -> bool:
        """Return True if a newcomer, which rehearses a pass, is among the others from now on: they
        are in it, and it goes on where they are (`resumed_at`). It waits for them if they may be.
        ``given``: it has had a batch of it."""

    def goes_on(self, dealt: Dealt | None) -> bool:
        """Return True if a script rehearses with another batch of the loader. ``dealt``: how its
        samples are dealt to workers; None: they are not, or this is a pass within another one."""


def follow_loaders(company: Callable[[], Company | None]) -> None:
    """Let torch's loaders say what they give.

    ``company`` returns who goes through them; None: loaders do as ever.
    """
    usual: Callable[[Any], Iterator[Any]] = DataLoader.__iter__
    if hasattr(usual, "followed"):
        return
    DataLoader.__iter__ = following(usual, company)
    DistributedSampler.__init__ = _dealing(DistributedSampler.__init__, company)
    DistributedSampler.__iter__ = _skipping(DistributedSampler.__iter__)


def following(
    usual: Callable[[Any], Iterator[Any]], company: Callable[[], Company | None]
) -> Callable[[Any], Iterator[Any]]:
    """Return what makes an iterator of a loader, and lets it say what it gives. See
    `follow_loaders`."""

    @functools.wraps(usual)
    def loop(loader: Any) -> Iterator[Any]:
        if (there := company()) is None:
            return usual(loader)
        _have_share(loader.batch_sampler, there.place)
        # Nobody trains without gradients.
        dealt = _dealt(loader, there.size) if torch.is_grad_enabled() else None
        if dealt is not None:
            there.orders.begin(dealt)
        there.passes.end_last(loader)
        within = there.passes.within_another(loader)
        late = within and dealt is not None and there.begins_within(dealt)
        if dealt is None or (within and not late):
            trains = not there.rehearses
        else:
            trains = there.begins_pass(dealt)
        if not trains:
            return _Beginning(usual, there, loader, dealt, within)
        return usual(loader) if dealt is None else _Loop(usual, there, dealt, late)

    loop.followed = True  # type: ignore[attr-defined]
    return loop


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
"""Attribute of a sampler: what the next pass leaves out of what it yields, as it is used."""


def _skipping(usual: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """Return a sampler's iterator that leaves out what was used before a job was resumed, or before
    a newcomer joined."""

    @functools.wraps(usual)
    def iterate(sampler: Any) -> Iterator[Any]:
        return islice(usual(sampler), vars(sampler).pop(_SKIPS, 0), None)

    iterate.skips = True  # type: ignore[attr-defined]
    return iterate


def _is_accelerates(sampler: Any) -> bool:
    """Return True if Accelerate deals batches by this sampler."""
    kind = getattr(sys.modules.get("accelerate.data_loader"), "BatchSamplerShard", None)
    return kind is not None and isinstance(sampler, kind)


def _have_share(batches: Any, place: tuple[int, int]) -> None:
    """Let Accelerate deal to a newcomer what its rank does not tell."""
    own, share = place
    if own != share and _is_accelerates(batches) and batches.process_index == own:
        batches.process_index = share


def _dealt(loader: Any, workers: int) -> Dealt | None:
    """Return how a loader's samples are dealt to workers; None: they are not, or it cannot be seen.
    Raises UsageError if it would have to be seen."""
    batches = loader.batch_sampler
    if _is_accelerates(batches):
        return _dealt_by_accelerate(loader, workers)
    sampler: Any = loader.sampler if batches is None else getattr(batches, "sampler", None)
    size = None
    if batches is None:
        size = 1
    elif type(batches) is BatchSampler:
        size = batches.batch_size
    elastic = _elastic_in(loader)
    if elastic is not None:
        if size is not None and sampler is elastic and getattr(loader, "in_order", True):
            return Dealt(loader, sampler, size, 0, elastic=True)
        if loader.num_workers:
            raise UsageError(
                "ElasticSampler cannot see which samples a batch of this loader has: give the "
                "loader torch's BatchSampler and batches in order, or num_workers=0"
            )
    elif isinstance(sampler, DistributedSampler) and size is not None:
        many = getattr(sampler, "num_samples", None)
        if many is not None and getattr(sampler, "num_replicas", None) == workers:
            return Dealt(loader, sampler, size, many)
    return None


def _dealt_by_accelerate(loader: Any, workers: int) -> Dealt | None:
    """Return how Accelerate deals a loader's samples; None: workers may have different numbers of
    batches, or of samples in them, or their order cannot be told to newcomers."""
    shard = loader.batch_sampler
    size, even = shard.batch_size, shard.even_batches or shard.drop_last
    if size is None or not even or shard.num_processes != workers or not _is_ordered(shard):
        return None
    if shard.split_batches:
        size //= workers
    if not hasattr(type(shard).__iter__, "skips"):
        type(shard).__iter__ = _skipping(type(shard).__iter__)
    return Dealt(loader, shard, size, len(shard) * size, by_batches=True)


def _is_ordered(shard: Any) -> bool:
    """Return True if the order of the samples is known, or follows from what `Orders` keeps."""
    sampler = getattr(shard.batch_sampler, "sampler", None)
    seeded = isinstance(getattr(sampler, "generator", None), torch.Generator)
    return (
        seeded
        or isinstance(sampler, SequentialSampler)
        or type(sampler).__name__ == "SeedableRandomSampler"  # makes one in its first pass
    )


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
        usual: Callable[[Any], Iterator[Any]],
        there: Company,
        dealt: Dealt,
        late: bool = False,
        holds_one: bool = False,
    ) -> None:
        """Begin a pass: among those that are ``there``, as samples are ``dealt``. ``late``: a
        resumed script goes on in it, and it began within another one. ``holds_one``: a batch was
        read that the script has yet to get."""
        self._usual, self._passes, self._dealt = usual, there.passes, dealt
        self._rest = there.rest
        self._waits = dealt.by_batches and not holds_one
        """True if the script has not had the batch that is read next."""
        self._pass, drops = Pass((), 0), 0
        place = there.resumed_at()
        if place is not None and (place.left is None) != (not dealt.elastic):
            raise UsageError(
                "the checkpoint was written in a pass through a loader with another kind of "
                "sampler: resume with the script that it was written by"
            )
        if dealt.elastic:
            self._pass = dealt.sampler.begin(dealt.batch, dealt.way, place and place.left)
        else:
            used = 0 if place is None else min(place.used_by_each_of(there.size), dealt.samples)
            # (A script's own sampler may have an iterator of its own: then batches are dropped.)
            skips = hasattr(type(dealt.sampler).__iter__, "skips")
            unit = dealt.batch if dealt.by_batches or not skips else 1
            many = used // unit + holds_one
            setattr(dealt.sampler, _SKIPS, many if skips else 0)
            drops = 0 if skips else many
            self._pass = Pass(range(there.size), dealt.samples, used - used % unit)
            self._passes.begin(self._pass, dealt.way)
            self._pass.late = late
        if place is not None:
            self._passes.go_on(self._pass, place)
        self._pass.fixed_length = counts_batches()
        self._thread = threading.get_ident()
        self._inner = self._drawn(lambda: usual(dealt.loader))
        for _ in islice(self._inner, drops):
            pass

    def _drawn(self, what: Callable[[], Any]) -> Any:
        """Do something in which the sampler may be asked for samples: for those of this pass."""
        if not self._dealt.elastic:
            return what()
        self._dealt.sampler.next_pass = self._pass
        try:
            return what()
        finally:
            self._dealt.sampler.next_pass = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._dealt.elastic and threading.get_ident() != self._thread:
            raise UsageError(
                "a loader with ElasticSampler is read by another thread than the script's: how far "
                "the script is cannot be seen"
            )
        while True:
            try:
                batch = self._drawn(lambda: next(self._inner))
            except StopIteration:
                if self._lasts and not self._pass.through:
                    if not self._waits:
                        self._give()
                    self._pass.through = True
                    raise
                if not self._pass.goes_on():
                    self._passes.end(self._pass)
                    raise
                self._inner = self._drawn(lambda: self._usual(self._dealt.loader))
            else:
                if self._waits or self._give():
                    self._waits = False
                    return batch
                self._inner = iter(())  # it may have processes of its own
                self._inner = self._drawn(lambda: self._usual(self._dealt.loader))

    @property
    def _lasts(self) -> bool:
        """True if the pass lasts when the loader gives no more: unless no batch of it was ever
        given, also before the script was resumed."""
        return self._dealt.by_batches and (self._pass.summed or not self._waits)

    def _give(self) -> bool:
        """Note that the script gets a batch. Return False if it does not get this one: samples are
        dealt anew."""
        if threading.get_ident() == self._thread and self._rest(self._pass):
            return False
        self._pass.give(self._dealt.batch)
        return True

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_inner"), name)

    def __del__(self) -> None:
        self._passes.leave(self._pass)


class _Beginning:
    """The beginning of a loader's batches, in a rehearsal: one, and more if it needs them."""

    def __init__(
        self,
        usual: Callable[[Any], Iterator[Any]],
        there: Company,
        loader: Any,
        dealt: Dealt | None,
        within: bool,
    ) -> None:
        """``dealt``: how the loader's samples are dealt to workers; None: they are not. ``within``:
        this is a pass within another one."""
        self._usual, self._batches, self._there = usual, usual(loader), there
        self._counts = None if within else dealt
        self._thread = threading.get_ident()
        self._joined = False
        """True if a newcomer has joined in this pass."""
        self._lasts = dealt is not None and dealt.by_batches
        self._given = False
        self._pass = Pass((), 0)
        self._pass.fixed_length = counts_batches()
        self._passes = there.passes
        if dealt is not None:
            self._passes.begin(self._pass, dealt.way, rehearsed=True)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._joined or self._joins():
            return next(self._batches)
        try:
            if self._given and not self._there.goes_on(self._counts):
                raise StopIteration
            batch = next(self._batches)
        except StopIteration:
            if self._lasts:
                self._pass.through = True  # the script has yet to train with the last batch
            else:
                self._passes.end(self._pass)
            raise
        self._given = True
        return batch

    def _joins(self) -> bool:
        """Return True if a newcomer goes on where the others are in this pass."""
        if self._counts is not None and threading.get_ident() == self._thread:
            self._joined = self._there.joins_within(self._pass, self._given)
            if self._joined:
                held = self._lasts and self._given
                self._batches = _Loop(self._usual, self._there, self._counts, holds_one=held)
        return self._joined

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # as torch's

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_batches"), name)

    def __del__(self) -> None:
        self._passes.leave(self._pass)
