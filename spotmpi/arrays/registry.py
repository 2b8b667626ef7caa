"""The registry: all that must survive, by name. Checkpoints, digests, newcomers and resumed jobs
read it and nothing else.

Arrays have a scope. REPLICATED ones are equal to the bit on all workers after a round: a checkpoint
holds them, the digest compares them, a newcomer learns them. LOCAL ones belong to their worker and
go with it: a newcomer, and every worker of a job that was resumed, begins with them as they were
at first. Beside arrays there are plain values, which say for themselves what a checkpoint keeps of
them and what a newcomer is told.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spotmpi.arrays.layout import Array, Layout, Tape, digest_of, kept
from spotmpi.errors import UsageError
from spotmpi.protocol.membership import WorkerId


class Scope(enum.Enum):
    """Whose an array is."""

    REPLICATED = "replicated"
    LOCAL = "local"


@dataclass(frozen=True)
class State:
    """Arrays of one layout: one flat buffer for each of its buckets. They are live."""

    flats: Sequence[Array]
    scope: Scope = Scope.REPLICATED


class Values(Protocol):
    """Plain values that must survive."""

    def kept(self) -> Mapping[str, Any]:
        """What a checkpoint keeps, by name."""

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on from what a checkpoint kept, at ``where``; UsageError if that cannot be."""

    def told(self, contributors: Sequence[WorkerId] | None) -> Any:
        """What a newcomer is told, in the values of JSON; as it is after the step that is drawn,
        if its ``contributors`` are given."""

    def take(self, told: Any) -> None:
        """Go on where it was told."""


class Registry:
    """What one worker holds."""

    def __init__(self) -> None:
        self._arrays: dict[str, tuple[Layout, State]] = {}
        self._values: dict[str, Values] = {}

    def add(self, name: str, layout: Layout, state: State) -> None:
        """Register arrays; a name is used once."""
        if name in self._arrays:
            raise ValueError(f"two states are called {name}")
        self._arrays[name] = layout, state

    def keep(self, name: str, values: Values) -> None:
        """Register plain values."""
        self._values[name] = values

    # Arrays.

    def sets(self) -> list[list[Array]]:
        """The replicated arrays. In each set the larger elements come first, so that none of them
        begins at an odd word."""
        return [sorted(state.flats, key=_largest_first) for _, _, state in self._replicated()]

    def tape(self) -> tuple[Tape, int]:
        """The replicated arrays as one row of words, which are the live ones; in how many sets."""
        sets = self.sets()
        return Tape([flat for flats in sets for flat in flats]), len(sets)

    def digest(self) -> int:
        """64 bits over the bits of all that is replicated; one pass over memory."""
        return digest_of([flat for _, _, state in self._replicated() for flat in state.flats])

    def _replicated(self) -> Iterator[tuple[str, Layout, State]]:
        for name, (layout, state) in self._arrays.items():
            if state.scope is Scope.REPLICATED:
                yield name, layout, state

    # Checkpoints.

    def arrays(self) -> dict[str, Any]:
        """What a checkpoint holds of arrays: live ones, to be copied or written."""
        found: dict[str, Any] = {}
        for name, layout, state in self._replicated():
            views = layout.views(state.flats)
            items = views.items() if isinstance(views, dict) else enumerate(views)
            found.update({f"{name}/{key}": view for key, view in items})
        return found

    def checkpoint(self) -> dict[str, Any]:
        """All that one holds."""
        found: dict[str, Any] = {}
        for values in self._values.values():
            found.update(values.kept())
        return {**found, **self.arrays()}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on from a `checkpoint`; UsageError if it is of another model, optimizer or data."""
        for values in self._values.values():
            values.resume(found, where)
        for name, array in self.arrays().items():
            known = kept(found.get(name))
            if known is None or known.shape != array.shape or known.dtype != array.dtype:
                got = "nothing" if known is None else f"{known.dtype} of shape {known.shape}"
                raise UsageError(
                    f"the checkpoint {where} holds {got} for {name}, and this run needs "
                    f"{array.dtype} of shape {array.shape}: resume with the script, the model and "
                    "the optimizer that it was written by, or train without --resume"
                )
            array[...] = known

    # Newcomers.

    def told(self, contributors: Sequence[WorkerId] | None) -> dict[str, Any]:
        """The plain values, for a newcomer."""
        return {name: values.told(contributors) for name, values in self._values.items()}

    def take(self, told: Mapping[str, Any]) -> None:
        """Go on with these."""
        for name, values in self._values.items():
            values.take(told[name])


def _largest_first(flat: Array) -> int:
    return -int(flat.itemsize)
