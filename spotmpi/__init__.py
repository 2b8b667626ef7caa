"""Data-parallel training on nodes that can vanish at any moment, over MPI.

Importing this package starts nothing: no MPI, no threads, no compilation. MPI starts when a
:class:`Trainer` is entered.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
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

if TYPE_CHECKING:
    from spotmpi.trainer import Trainer

__all__ = [
    "CheckpointError",
    "LeftAlone",
    "ReplicaMismatch",
    "ScriptError",
    "SpotmpiError",
    "Stopped",
    "Trainer",
    "UsageError",
]

try:
    __version__ = version("spotmpi")
except PackageNotFoundError:  # a bare checkout that nobody installed
    __version__ = "0+checkout"


def __getattr__(name: str) -> Any:
    # The trainer pulls in NumPy and Numba, which a launcher or `spotmpi --help` has no use for.
    if name == "Trainer":
        return import_module("spotmpi.trainer").Trainer
    raise AttributeError(f"module 'spotmpi' has no attribute {name!r}")
