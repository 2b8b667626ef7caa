"""Calls of torch.distributed for objects, among the workers of a job.

Torch makes several calls of each one, of sizes and of bytes, and a worker that is lost between them
leaves rubbish. Here each is one exchange: such a worker is in it on all others, or on none. Torch
turns objects into bytes and back, as ever.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from spotmpi.torch.collectives import Collectives, lost

__all__ = ["Peers", "replace"]

_REPLACED = "of_spotmpi"
"""An attribute of a function that has been replaced."""


class Peers(Protocol):
    """A process group of all workers."""

    @property
    def collectives(self) -> Collectives:
        """Its calls."""

    def rank(self) -> int:
        """Return this worker's rank."""

    def note(self, rank: int, source: int) -> None:
        """Say once that this worker stands in for that rank, if it does."""


def all_gather_object(group: Peers, object_list: list[Any], obj: Any) -> None:
    """Write all workers' objects into a list on all."""
    for rank, one in enumerate(_gathered(group, obj)):
        object_list[rank] = one


def gather_object(
    group: Peers,
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group_dst: int | None = None,
) -> None:
    """Write all workers' objects into a list on one."""
    found = _gathered(group, obj)
    if group.rank() == _rank(dst, group_dst):
        assert object_gather_list is not None, "give a list on the worker that gathers"
        object_gather_list[:] = found


def broadcast_object_list(
    group: Peers,
    object_list: list[Any],
    src: int | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Write one worker's objects on all. If it is lost, the first worker that lives stands in for
    it, unless that one has nothing but None: then PeersLost is raised on all."""
    source = _rank(src, group_src)
    said, came_from = group.collectives.from_one(source, lambda: _bytes_of(object_list, group))
    found = _object(said, group)
    if came_from != source and all(one is None for one in found):
        raise lost(source)
    group.note(source, came_from)
    object_list[:] = found


def scatter_object_list(
    group: Peers,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group_src: int | None = None,
) -> None:
    """Write on each worker its object of one worker's list. Raises PeersLost if that is lost."""
    source = _rank(src, group_src)
    mine = scatter_object_input_list or []
    said, came_from = group.collectives.from_one(
        source, lambda: [_bytes_of(one, group) for one in mine]
    )
    if came_from != source:
        raise lost(source)
    scatter_object_output_list[0] = _object(said[group.rank()], group)


def replace(kind: type[Peers]) -> None:
    """Let torch's calls be these, for groups of this kind. Local."""
    for ours in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list):
        usual = getattr(dist, ours.__name__)
        if not hasattr(usual, _REPLACED):
            for module in (dist, distributed_c10d):
                setattr(module, ours.__name__, _either(usual, ours, kind))


def _either(
    usual: Callable[..., None], ours: Callable[..., None], kind: type[Peers]
) -> Callable[..., None]:
    known = inspect.signature(usual)

    @functools.wraps(usual)
    def call(*given: Any, **named: Any) -> None:
        arguments = known.bind(*given, **named).arguments
        group = arguments.pop("group", None) or dist.group.WORLD
        if isinstance(group, kind):
            ours(group, **arguments)
        else:
            usual(*given, **named)

    setattr(call, _REPLACED, True)
    return call


def _gathered(group: Peers, obj: Any) -> list[Any]:
    """Return all workers' objects by rank; a worker that lives stands in for one that is lost."""
    found = group.collectives.exchange(_bytes_of(obj, group))
    return [_object(one, group) for one in group.collectives.filled(found)]


def _rank(of_all: int | None, of_group: int | None) -> int:
    """Return a rank that torch names in one of two ways: groups have all workers, in order."""
    return of_group or 0 if of_all is None else of_all


def _bytes_of(obj: Any, group: Peers) -> Any:
    there, _ = distributed_c10d._object_to_tensor(obj, torch.device("cpu"), group)
    return there.numpy()


def _object(there: Any, group: Peers) -> Any:
    return distributed_c10d._tensor_to_object(torch.from_numpy(there), there.nbytes, group)
