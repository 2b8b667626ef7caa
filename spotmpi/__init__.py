"""Data-parallel training on nodes that can vanish at any moment, over MPI.

Importing this package starts nothing: no MPI, no threads, no compilation. MPI starts when a
:class:`Trainer` is entered.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spotmpi.errors import (
    CheckpointError,
    LeftAlone,
    ReplicaMismatch,
    ScriptError,
    SpotmpiError,
    Stopped,
    UsageError,
)
from spotmpi.version import VERSION

if TYPE_CHECKING:
    from spotmpi.training.group import Group
    from spotmpi.training.keeping.saved_model import load
    from spotmpi.training.trainer import Trainer

__version__ = VERSION

__all__ = [
    "CheckpointError",
    "Group",
    "LeftAlone",
    "ReplicaMismatch",
    "ScriptError",
    "SpotmpiError",
    "Stopped",
    "Trainer",
    "UsageError",
    "load",
]


def __getattr__(name: str) -> Any:
    # The trainer pulls in NumPy and Numba, which a launcher or `spotmpi --help` has no use for.
    if name in ("Group", "Trainer"):
        return getattr(import_module(f"spotmpi.training.{name.lower()}"), name)
    if name == "load":
        return import_module("spotmpi.training.keeping.saved_model").load
    raise AttributeError(f"module 'spotmpi' has no attribute {name!r}")
