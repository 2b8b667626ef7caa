"""Calls of torch.distributed for objects among the workers of a job.

Torch makes several calls of each one, of sizes and of bytes, and a worker that is lost between them
leaves rubbish. Here each is one exchange: such a worker is in it on all others, or on none. Torch
turns objects into bytes and back, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.distributed import distributed_c10d

from spotmpi.errors import UsageError
from spotmpi.torch.collectives import Calls, lost
from spotmpi.torch_hooks.libraries import is_alike

__all__ = ["CALLS", "Peers"]


class Peers(Protocol):
    """A process group."""

    @property
    def collectives(self) -> Calls:
        """Its calls."""

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of its workers among all."""

    def key(self, what: object) -> bytes:
        """Return the key of messages of this kind, or with this tag."""

    def rank(self) -> int:
        """Return this worker's rank."""

    def size(self) -> int:
        """Return the number of workers at the start."""


def all_gather_object(group: Peers, object_list: list[Any], obj: Any) -> None:
    """Write all workers' objects into a list on all. Of a lost one there is the next one's."""
    for rank, one in enumerate(_gathered(group, obj)):
        object_list[rank] = _object(one, group)


def gather_object(
    group: Peers,
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group_dst: int | None = None,
) -> None:
    """Write all workers' objects into a list on one."""
    found = _gathered(group, obj)
    if group.rank() == _rank(group, dst, group_dst):
        if object_gather_list is None:
            raise UsageError("give object_gather_list on the worker that gathers")
        object_gather_list[:] = [_object(one, group) for one in found]


def broadcast_object_list(
    group: Peers,
    object_list: list[Any],
    src: int | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Write one worker's objects on all. Raises PeersLost if it is lost, or if the one that stands
    in for it has nothing but None."""
    source = _rank(group, src, group_src)
    said, came_from = group.collectives.from_one(
        source, lambda: _bytes_of(object_list, group), stands_in=is_alike()
    )
    found = _object(said, group)
    if came_from != source and all(one is None for one in found):
        raise lost(source)
    object_list[:] = found


def scatter_object_list(
    group: Peers,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group_src: int | None = None,
) -> None:
    """Write on each worker its object of one worker's list. Raises PeersLost if that is lost."""
    if not scatter_object_output_list:
        raise UsageError("the list for the object is empty: give one with one place, as [None]")
    source, mine = _rank(group, src, group_src), scatter_object_input_list or []
    if group.rank() == source and len(mine) != group.size():
        raise UsageError(f"{len(mine)} objects for {group.size()} workers")
    said, _ = group.collectives.from_one(source, lambda: [_bytes_of(one, group) for one in mine])
    scatter_object_output_list[0] = _object(said[group.rank()], group)


def send_object_list(
    group: Peers,
    object_list: list[Any],
    dst: int | None = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send objects to one worker, and do not wait. Raises PeersLost if that is known to be lost."""
    to = _rank(group, dst, group_dst)
    group.collectives.post(to, group.key("objects"), _bytes_of(object_list, group))


def recv_object_list(
    group: Peers,
    object_list: list[Any],
    src: int | None = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Write the objects of one worker, or of the first of the others that sends some, and return
    its rank among all. Raises PeersLost if it is lost. A newcomer that rehearses keeps its own."""
    any_source = src is None and group_src is None
    sender = None if any_source else _rank(group, src, group_src)
    found = group.collectives.receive(sender, group.key("objects"), waits=True)
    assert found is not None
    source, there = found
    if there is not None:
        object_list[:] = _object(there, group)
    return group.ranks[source]


CALLS: Mapping[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        *(all_gather_object, gather_object, broadcast_object_list, scatter_object_list),
        *(send_object_list, recv_object_list),
    )
}
"""By torch's names. Each takes a group first, and what torch's takes."""


def _gathered(group: Peers, obj: Any) -> list[Any]:
    """Return the bytes of all workers' objects, by rank."""
    return group.collectives.filled(group.collectives.exchange(_bytes_of(obj, group), "objects"))


def _rank(group: Peers, of_all: int | None, of_group: int | None) -> int:
    """Return a rank in the group, which torch names in one of two ways."""
    if of_all is not None and of_group is not None:
        raise UsageError(f"give one rank, not {of_all} and {of_group}")
    if of_group is not None or of_all is None:
        return of_group or 0
    if of_all not in group.ranks:
        raise UsageError(f"there is no rank {of_all} in the group of ranks {[*group.ranks]}")
    return [*group.ranks].index(of_all)


def _bytes_of(obj: Any, group: Peers) -> Any:
    there, _ = distributed_c10d._object_to_tensor(obj, torch.device("cpu"), group)
    return there.numpy()


def _object(there: Any, group: Peers) -> Any:
    return distributed_c10d._tensor_to_object(torch.from_numpy(there), there.nbytes, group)
