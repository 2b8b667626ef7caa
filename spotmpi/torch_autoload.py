"""What `import torch` calls: in a worker of `spotmpi run` the job is torch's process group.

Torch calls it in each process that imports it where spotmpi is installed (as an entry point of the
group ``torch.backends``). So it imports little, and raises nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from contextlib import suppress
from multiprocessing.process import current_process
from typing import Any

from spotmpi.settings import TORCH_PROCESS, Settings
from spotmpi.torch_hooks.calls import note_what_is_made, put, replace_calls

__all__ = ["autoload"]

_LONGEST = 64
"""Letters of a folder's name, with which the address of a socket in a folder of it is not too
long."""

_TAKEN = (None, "gloo", "nccl", "cpu:gloo", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "spotmpi")
"""Backends of torch in whose place the job is."""

_CALLED = "called"
"""An attribute of a group that stands in for one of torch: the backend that a script has asked for,
which decides in some scripts whether they use a GPU."""


def autoload() -> None:
    """Replace torch's functions that make process groups, if this process is a worker. Local."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not hasattr(dist, "init_process_group") or not _is_worker():
        return
    init, new, usual = dist.init_process_group, dist.new_group, dist.get_backend

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
        # A newcomer is told its rank later, by the others. Frameworks give another one until then.
        newcomer = Settings.from_environ().newcomer is not None
        mine = newcomer or rank in (-1, int(os.environ["RANK"]))
        if _is_worker() and whole and mine and store is None and _is_taken(backend):
            from spotmpi.torch.process_group import init_process_group as ours

            ours()
            setattr(dist.group.WORLD, _CALLED, _named(backend) or "undefined")  # as torch does
        else:
            init(backend, init_method, timeout, world_size, rank, store, *more, **known)

    @functools.wraps(new)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *more: Any, **known: Any
    ) -> Any:
        whole = dist.group.WORLD if dist.is_initialized() else None
        if not (hasattr(whole, _CALLED) and _is_taken(backend)):
            return new(ranks, timeout, backend, *more, **known)
        group = new(ranks, timeout, None, *more, **known)  # as the whole group
        if hasattr(group, _CALLED):
            setattr(group, _CALLED, _named(backend) or getattr(whole, _CALLED))
        return group

    @functools.wraps(usual)
    def get_backend(group: Any = None) -> Any:
        called = getattr(group or dist.group.WORLD, _CALLED, None)
        # What torch does with a backend of its own it must not do with ours.
        own = sys._getframe(1).f_globals.get("__name__", "").startswith("torch.")
        return usual(group) if called is None or own else called

    put("init_process_group", init_process_group)
    put("new_group", new_group)
    vars(dist)["get_backend"] = get_backend  # torch's own modules keep theirs
    replace_calls()
    note_what_is_made()
    _have_sockets_in_the_jobs_folder()


def _have_sockets_in_the_jobs_folder() -> None:
    """Have `multiprocessing` make the sockets of this worker's loaders where they go with the job.
    In its own place they would stay if the worker is killed, and fail if TMPDIR is a long name."""
    folder, known = Settings.from_environ().job_dir, getattr(current_process(), "_config", None)
    if folder is not None and isinstance(known, dict) and len(str(folder)) <= _LONGEST:
        with suppress(OSError):
            known.setdefault("tempdir", tempfile.mkdtemp(prefix="loaders-", dir=folder))


def _is_worker() -> bool:
    return os.environ.get(TORCH_PROCESS) == str(os.getpid())


def _named(backend: Any) -> Any:
    """Return a backend as torch names it; None stays None."""
    return backend.lower() if isinstance(backend, str) else backend


def _is_taken(backend: Any) -> bool:
    return _named(backend) in _TAKEN
