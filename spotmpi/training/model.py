"""One worker's model: parameters, what the optimizer remembers, and the registry of all that must
survive. All of it is local."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from spotmpi.arrays.backend import HOST, fill, kernels_for
from spotmpi.arrays.layout import BUCKET_MB, Layout
from spotmpi.arrays.registry import Registry, Scope, State
from spotmpi.arrays.views import Views
from spotmpi.arrays.word_view import WordView
from spotmpi.fabric import Buffer, DoubleBuffer
from spotmpi.optimizers import Optimizer

__all__ = ["Model", "OwnModel"]

P = TypeVar("P")


class OwnModel:
    """A model that only the script has, and that it moves by itself. It is not compared."""

    at_rest = True
    """False in the middle of a step of the script: nothing is kept then, and nobody stops."""
    broken: str | None = None
    """The first parameter with NaN or infinity in the last checkpoint; None if there was none."""


class Model(Generic[P]):
    """Arrays that all workers hold.

    ``optimizer``: moves the parameters. Without one the script moves them, and ``arrays`` says what
    is averaged, if that is something else. ``fusable``: an update may be fused with the sums of a
    round, so there is room for a second copy.
    """

    def __init__(
        self,
        params: P,
        optimizer: Optimizer | None = None,
        arrays: Any = None,
        bucket_mb: float = BUCKET_MB,
        fusable: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.bucket_mb = bucket_mb
        self.layout = layout = Layout.of(params, bucket_mb, halves=optimizer is not None)
        """Layout of the parameters."""
        self.brought = layout if arrays is None else Layout.of(arrays, bucket_mb)
        """Layout of what workers bring to rounds of steps."""
        slots = () if optimizer is None else optimizer.slots
        self.double_buffer = _doubled(layout, optimizer, 1 + len(slots)) if fusable else None
        """Two copies of the parameters and of what the optimizer remembers; None: one copy."""
        own = _buffers(layout, self.double_buffer)
        self.flats: Sequence[Buffer] = own()
        """The live parameters."""
        layout.pack(params, self.flats, 1.0, what="params")
        self.memory = {name: own() for name in slots}
        """What the optimizer remembers, by name: the live arrays."""
        for name in () if optimizer is None else optimizer.counts:
            self.memory[name] = [HOST.zeros("float64", 1)]
        self.agreed: Sequence[Buffer] = self.flats
        """The model on which all workers agree after a round."""
        self.own: OwnModel | None = None
        """What the script trains with, if that is not here."""
        self.registry = Registry()
        self._seen = self._seen_agreed = Views(layout, self.flats, self.moves_itself)
        """What the script sees of the parameters, and of the model on which all agree."""
        self._seen_after: object = None
        self.params: P = self._seen.tree
        """The parameters, in the user's structure."""

    @property
    def model(self) -> P:
        """The model on which all workers agree after a round, in the user's structure."""
        tree: P = self._seen_agreed.tree
        return tree

    @property
    def is_apart(self) -> bool:
        """True if the model of all is in other arrays than the parameters, in the memory of the
        host. Then each worker has its own optimizer memory, and only rounds change what is
        replicated."""
        return self.agreed is not self.flats and self.layout.backend is HOST

    @property
    def moves_itself(self) -> bool:
        """True if an optimizer moves the parameters; else the script does."""
        return self.optimizer is not None

    @property
    def library(self) -> str:
        """The array library of its arrays."""
        return self.brought.backend.name

    @property
    def signature(self) -> str:
        """A text that is equal on two workers if their arrays have the same structure."""
        return str((self.layout.signature, self.brought.signature))

    @property
    def ends(self) -> Sequence[int] | None:
        """Places where a page of its state may end, in words of one set; None: anywhere.

        The next values of a page's elements must follow from that page alone. An optimizer moves
        each element by itself, or with all others of its array; a script moves all together.
        """
        if self.optimizer is None:
            return self.layout.ends[-1:]
        return None if self.optimizer.elementwise else self.layout.ends

    def hold(
        self, states: Mapping[str, State], centre: Sequence[Buffer] | None, local: bool
    ) -> None:
        """Register all arrays again, for a strategy that remembers ``states``.

        ``centre``: holds the model of all, and gets the parameters now; None: the parameters are
        that model. ``local``: each worker has its own optimizer memory.
        """
        self.agreed, self._seen_agreed = self.flats, self._seen
        if centre is not None:
            self.agreed = centre
            _copy(centre, self.flats)
            self._seen_agreed = Views(self.layout, centre, self.moves_itself)
        registry, scope = self.registry, Scope.LOCAL if local else Scope.REPLICATED
        registry.reset()
        registry.add("params", self.layout, State(self.agreed))
        counts = () if self.optimizer is None else self.optimizer.counts
        for name, flats in self.memory.items():
            held = State(flats, scope, paged=name not in counts)
            there = self.layout if held.paged else Layout.of(flats)
            registry.add(f"optimizer/{name}", there, held)
        for name, state in states.items():
            registry.add(f"strategy/{name}", self.brought, state)

    def first(self) -> WordView:
        """Return what the first worker gives to all at the beginning."""
        return WordView(self.agreed)

    def settle(self) -> None:
        """Copy the model of all, which has arrived, to the parameters: train from there."""
        if self.agreed is not self.flats:
            _copy(self.flats, self.agreed)

    def forget(self) -> None:
        """Set what the optimizer remembers to zero."""
        for flats in self.memory.values():
            fill(flats, 0)

    def show(self, after: object) -> None:
        """Show the present parameters to the script. Those of half precision are rounded again, if
        they have moved since the last call: then ``after`` differs."""
        if after != self._seen_after:
            self._seen_after = after
            self._seen.round()
            if self._seen_agreed is not self._seen:
                self._seen_agreed.round()


def _doubled(layout: Layout, optimizer: Optimizer | None, sets: int) -> DoubleBuffer | None:
    """Return room for two copies of parameters and slots, if a plane can do a whole step."""
    if optimizer is None or layout.backend is not HOST or not optimizer.at_once:
        return None
    return DoubleBuffer([(bucket.dtype, bucket.size) for bucket in layout.buckets] * sets)


def _buffers(layout: Layout, doubled: DoubleBuffer | None) -> Callable[[], list[Buffer]]:
    """Return a function: each call returns the buffers of one more set."""
    if doubled is None:
        return layout.allocate
    left, many = iter(doubled.live), len(layout.buckets)
    return lambda: list(itertools.islice(left, many))


def _copy(flats: Sequence[Buffer], values: Sequence[Buffer]) -> None:
    for flat, value in zip(flats, values, strict=True):
        kernels_for(flat).pack(flat, [value], 1.0)
