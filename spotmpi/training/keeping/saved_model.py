"""The model in a checkpoint, in the structures that the script had. Needs no MPI."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from spotmpi.arrays.structure import Structure
from spotmpi.errors import CheckpointError, UsageError
from spotmpi.training.keeping import checkpoint_file

__all__ = ["SavedModel", "load"]

P = TypeVar("P")

_KINDS = {"dict": dict, "list": list, "tuple": tuple}


@dataclass(frozen=True)
class SavedModel:
    """A model from a checkpoint. The caller may change the arrays."""

    params: Any
    """Parameters in the structure that the script gave. Nested ones are in a dict, by their
    names."""
    step: int
    """Number of steps done."""
    complete: bool
    """True if training was over, so this is its last state."""
    optimizer: dict[str, Any]
    """The optimizer's memory by name (``velocity``), each in the structure of ``params``."""
    rest: dict[str, Any]
    """All other values by name: the seed, the place in the data, a strategy's memory."""
    path: Path
    """File that the model was read from."""

    def like(self, params: P) -> P:
        """Return the saved parameters in the structure of ``params``, which may be nested.
        UsageError if their names are not the same."""
        structure, _ = Structure.of(params)
        own = self.params if isinstance(self.params, dict) else dict(enumerate(self.params))
        if own.keys() != set(structure.keys):
            raise UsageError(
                f"the parameters in {self.path} are {_some(own)}, and these are "
                f"{_some(structure.keys)}: give it parameters as the script did"
            )
        found: P = structure.build(own)
        return found


def load(path: str | os.PathLike[str]) -> SavedModel:
    """Read a checkpoint: a file, or the newest whole one of a folder. Local, blocking.

    Needs neither MPI nor a launcher, and changes nothing. A job may be writing into the folder.
    Warns (RuntimeWarning) of newer ones in the folder that are damaged. Raises CheckpointError.
    """
    place = Path(path)
    if place.is_dir():
        warn = partial(warnings.warn, category=RuntimeWarning, stacklevel=2)
        found = checkpoint_file.load_latest(place, warn)
    else:
        found = checkpoint_file.load_file(place)
    structure = found.about.get("structure")
    if not isinstance(structure, dict) or "params" not in structure:
        raise CheckpointError(
            f"{found.path} does not say in what structure its parameters were: it was not written "
            "by a trainer of this version"
        )
    rest: dict[str, Any] = dict(found.state)
    trees = {name: _tree(rest, name, how, found.path) for name, how in structure.items()}
    params = trees.pop("params")
    memory = {name: tree for name, tree in trees.items() if name.startswith("optimizer/")}
    rest.update((name, tree) for name, tree in trees.items() if name not in memory)
    rest.pop("steps", None)
    return SavedModel(
        params=params,
        step=found.step,
        complete=found.about.get("complete") is True,
        optimizer={name.removeprefix("optimizer/"): tree for name, tree in memory.items()},
        rest=rest,
        path=found.path,
    )


def _some(names: Iterable[object]) -> str:
    first, *rest = map(repr, names)
    return ", ".join([first, *rest[:4], *([".."] if rest[4:] else [])])


def _tree(state: dict[str, Any], name: str, how: Any, path: Path) -> Any:
    """Take the arrays of this name out of ``state``; return them in the script's structure."""
    try:
        kind = _KINDS[how["kind"]]
        arrays = {key: state.pop(f"{name}/{key}") for key in how["keys"]}
    except (KeyError, TypeError) as wrong:
        raise CheckpointError(
            f"{path} does not hold what it says of {name}: it was not written by spotmpi"
        ) from wrong
    return arrays if kind is dict else kind(arrays.values())
