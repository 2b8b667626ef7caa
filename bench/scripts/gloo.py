"""PyTorch's gloo, to compare with, where torch is installed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spotmpi.errors import UsageError

__all__ = ["check", "group_of", "interface", "joined", "sees_devices", "there"]

_LOOPBACK = "lo"


def there() -> bool:
    """Whether torch can be imported."""
    return find_spec("torch") is not None


def check() -> None:
    """Raise UsageError if torch is not installed."""
    if not there():
        raise UsageError("no torch: python -m pip install 'spotmpi[torch]'")


def sees_devices() -> bool:
    """Whether torch can use a GPU. It must be installed."""
    found: bool = import_module("torch").cuda.is_available()
    return found


def interface() -> str:
    """Return the first network interface that is not the loopback."""
    return next(name for _, name in socket.if_nameindex() if name != _LOOPBACK)


def group_of(rows: Sequence[Sequence[int]], backend: str) -> tuple[Sequence[int], Any]:
    """Make a group of the ranks in each row. Return this worker's row, and its group. Collective
    among all workers of torch's default group."""
    dist: Any = import_module("torch.distributed")
    made = [(row, dist.new_group([*row], backend=backend)) for row in rows]
    return next(one for one in made if dist.get_rank() in one[0])


def joined(rank: int, size: int, store: Path, alone: bool) -> Callable[[Any], None]:
    """Sums an array of NumPy or CuPy over so many processes, in place. Collective.

    ``store``: a file that all of them see and that is not there yet. ``alone``: all are on one
    host; or else they meet by the first interface that is not the loopback.
    """
    # By name: it is no dependency, and type checkers may not have it.
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    torch.set_num_threads(1)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [
        dist.ProcessGroupGloo.create_device(interface=_LOOPBACK if alone else interface())
    ]
    group = dist.ProcessGroupGloo(dist.FileStore(str(store), size), rank, size, options)

    def total(array: Any) -> None:
        group.allreduce([torch.from_dlpack(array)]).wait()

    return total
