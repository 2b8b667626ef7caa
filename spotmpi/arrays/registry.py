"""The registry: all that must survive, by name.

Checkpoints, digests, newcomers and resumed jobs read it and nothing else. Arrays have a scope.
REPLICATED arrays are equal to the bit on all workers after a round: a checkpoint holds them, the
digest compares them, a newcomer learns them. LOCAL arrays belong to their worker and go with it. A
newcomer, and every worker of a resumed job, begins with them as they were at first. Beside arrays
there are plain values. They define what a checkpoint keeps of them and what a newcomer is told.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spotmpi.arrays.backend import HOST, Array, Backend, Buffer, digest_of
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.word_view import WordView
from spotmpi.errors import UsageError
from spotmpi.protocol.membership import WorkerId


class Scope(enum.Enum):
    """Whether an array is equal on all workers, or each worker has its own."""

    REPLICATED = "replicated"
    LOCAL = "local"


@dataclass(frozen=True)
class State:
    """Arrays of one layout: one flat buffer for each of its buckets, in use and no copy."""

    flats: Sequence[Buffer]
    scope: Scope = Scope.REPLICATED
    paged: bool = True
    """True if a newcomer learns them in pages. If not, it is told all of them with each round: a
    few float64, in the memory of the host, without which it could not use a round's result."""


class Values(Protocol):
    """Plain values that must survive."""

    def kept(self) -> Mapping[str, Any]:
        """Return what a checkpoint keeps, by name."""

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on from what the checkpoint ``where`` kept; UsageError if that cannot be."""

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Return what a newcomer is told, as JSON values. If ``contributors`` are given, it is the
        state after the step that is drawn."""

    def restore(self, told: Any) -> None:
        """Go on from what the newcomer was told."""


class Registry:
    """All that one worker has registered."""

    def __init__(self) -> None:
        self._arrays: dict[str, tuple[Layout, State]] = {}
        self._values: dict[str, Values] = {}

    def add(self, name: str, layout: Layout, state: State) -> None:
        """Register arrays. A name is used once."""
        if name in self._arrays:
            raise ValueError(f"two states are called {name}")
        self._arrays[name] = layout, state

    def arrays(self, name: str) -> tuple[Layout, Sequence[Buffer]]:
        """Return the layout and the live buffers that are registered under this name."""
        layout, state = self._arrays[name]
        return layout, state.flats

    def reset(self) -> None:
        """Remove all arrays."""
        self._arrays.clear()

    def keep(self, name: str, values: Values) -> None:
        """Register plain values."""
        self._values[name] = values

    # Arrays.

    def words(self) -> WordView:
        """Return the replicated arrays of which there are pages, as one row of words. It shares
        their memory."""
        return WordView(*(state.flats for _, _, state in self._replicated() if state.paged))

    def numbers(self) -> dict[str, list[float]]:
        """Return the replicated arrays of which there are no pages, as plain numbers."""
        return {
            name: [number for flat in state.flats for number in flat.tolist()]
            for name, _, state in self._replicated()
            if not state.paged
        }

    def put_numbers(self, found: Mapping[str, Sequence[float]]) -> None:
        """Overwrite the arrays of which there are no pages with another worker's `numbers`."""
        for name, _, state in self._replicated():
            if not state.paged:
                left = iter(found[name])
                for flat in state.flats:
                    flat[:] = list(itertools.islice(left, len(flat)))

    def digest(self) -> int:
        """Return 64 bits over the bits of all that is replicated, in one pass over memory."""
        return digest_of([flat for _, _, state in self._replicated() for flat in state.flats])

    def _arrays_by_name(self) -> Iterator[tuple[str, Backend, Array]]:
        for name, layout, state in self._replicated():
            for key, array in layout.named(state.flats).items():
                yield f"{name}/{key}", layout.backend, array

    def _replicated(self) -> Iterator[tuple[str, Layout, State]]:
        for name, (layout, state) in self._arrays.items():
            if state.scope is Scope.REPLICATED:
                yield name, layout, state

    # Checkpoints.

    def described(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype and the shape of each array that a checkpoint holds."""
        return {
            f"{name}/{key}": what
            for name, layout, _ in self._replicated()
            for key, what in layout.described.items()
        }

    def structure(self) -> dict[str, Any]:
        """Return the user's structures of the arrays that a checkpoint holds, as JSON values."""
        return {
            name: {"kind": layout.structure.kept_as.__name__, "keys": list(layout.keys)}
            for name, layout, _ in self._replicated()
        }

    def checkpoint(self) -> dict[str, Any]:
        """Return all that a checkpoint holds, as it is now: copies in the memory of the host."""
        found: dict[str, Any] = {}
        for values in self._values.values():
            found.update(values.kept())
        for name, backend, array in self._arrays_by_name():
            found[name] = backend.to_host(array)
        return found

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on from a `checkpoint`; UsageError if it is of another model, optimizer or data."""
        for values in self._values.values():
            values.resume(found, where)
        needed = self.described()
        for name, backend, array in self._arrays_by_name():
            known: Any = found.get(name)
            dtype, shape = needed[name]
            if not HOST.fit([known], dtype, [shape]):
                got = "nothing"
                if HOST.owns(known):
                    got = "{} of shape {}".format(*HOST.describe(known))
                raise UsageError(
                    f"the checkpoint {where} holds {got} for {name}, and this run needs "
                    f"{dtype} of shape {shape}: resume with the script, the model and "
                    "the optimizer that it was written by, or train without --resume"
                )
            backend.from_host(array, known)

    # Newcomers.

    def snapshot(
        self, contributors: Sequence[WorkerId] | None, names: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return the plain values, for a newcomer: all, or those of these names."""
        return {
            name: values.snapshot(contributors)
            for name, values in self._values.items()
            if names is None or name in names
        }

    def restore(self, told: Mapping[str, Any]) -> None:
        """Go on with the values of a `snapshot`, in the order in which they were registered."""
        for name, values in self._values.items():
            if name in told:
                values.restore(told[name])
