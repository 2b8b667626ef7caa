"""What `import torch` calls: in a worker of `spotmpi run` the job is torch's process group.

Torch calls it in each process that imports it where spotmpi is installed (as an entry point of the
group ``torch.backends``). So it imports little, and raises nothing.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from spotmpi.settings import TORCH_PROCESS

__all__ = ["autoload", "replace_object_calls"]

_TAKEN = (None, "gloo", "nccl", "cpu:gloo", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "spotmpi")
"""Backends of torch in whose place the job is."""

_OBJECT_CALLS = "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"
_ASKS_GROUP = "asks_group"
"""An attribute of a function that has been replaced."""


def autoload() -> None:
    """Replace torch's functions that make process groups, if this process is a worker. Local."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not hasattr(dist, "init_process_group") or not _is_worker():
        return
    init, new = dist.init_process_group, dist.new_group

    @functools.wraps(init)
    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *more: Any,
        **known: Any,
    ) -> None:
        whole = world_size in (-1, int(os.environ["WORLD_SIZE"]))
        mine = rank in (-1, int(os.environ["RANK"]))
        if _is_worker() and whole and mine and store is None and _is_taken(backend):
            import_module("spotmpi.torch.process_group").init_process_group()
        else:
            init(backend, init_method, timeout, world_size, rank, store, *more, **known)

    @functools.wraps(new)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *more: Any, **known: Any
    ) -> Any:
        if dist.is_initialized() and dist.get_backend() == "spotmpi" and _is_taken(backend):
            backend = None  # as the whole group
        return new(ranks, timeout, backend, *more, **known)

    _put("init_process_group", init_process_group)
    _put("new_group", new_group)
    replace_object_calls()


def replace_object_calls() -> None:
    """Let groups of spotmpi make torch's calls for objects themselves. Local."""
    for name in _OBJECT_CALLS:
        usual = getattr(sys.modules["torch.distributed"], name)
        if not hasattr(usual, _ASKS_GROUP):
            _put(name, _asking_group(usual))


def _asking_group(usual: Callable[..., None]) -> Callable[..., None]:
    """Return a function that asks its group for a call of its own, and else makes the usual one."""
    known = inspect.signature(usual)

    @functools.wraps(usual)
    def call(*given: Any, **named: Any) -> None:
        arguments = known.bind(*given, **named).arguments
        group = arguments.pop("group", None) or sys.modules["torch.distributed"].group.WORLD
        ours = getattr(group, "object_calls", {}).get(usual.__name__)
        if ours is None:
            usual(*given, **named)
        else:
            ours(group, **arguments)

    setattr(call, _ASKS_GROUP, True)
    return call


def _put(name: str, ours: Callable[..., Any]) -> None:
    """Replace a function of torch.distributed in all its modules: some have copies."""
    usual = getattr(sys.modules["torch.distributed"], name)
    for where, module in list(sys.modules.items()):
        if where.startswith("torch.distributed") and vars(module).get(name) is usual:
            setattr(module, name, ours)


def _is_worker() -> bool:
    return os.environ.get(TORCH_PROCESS) == str(os.getpid())


def _is_taken(backend: Any) -> bool:
    return (backend.lower() if isinstance(backend, str) else backend) in _TAKEN
