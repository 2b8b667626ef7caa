"""What `import torch` calls: in a worker of `spotmpi run` the job is torch's process group.

Torch calls it in each process that imports it where spotmpi is installed (as an entry point of the
group ``torch.backends``). So it imports nothing, and raises nothing.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

__all__ = ["MARK", "autoload"]

MARK = "SPOTMPI_TORCH_PROCESS"
"""Variable with the number of the process whose process group is the job: of no child of it."""

_TAKEN = (None, "gloo", "cpu:gloo", "spotmpi")
"""Backends of torch in whose place the job is."""


def autoload() -> None:
    """Replace `torch.distributed.init_process_group`, if this process is a worker. Local."""
    dist = sys.modules.get("torch.distributed")
    usual = getattr(dist, "init_process_group", None)
    if dist is None or usual is None or not _is_worker():
        return

    @functools.wraps(usual)
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
            from spotmpi.torch.process_group import init_process_group as ours

            ours()
        else:
            usual(backend, init_method, timeout, world_size, rank, store, *more, **known)

    for module in (dist, sys.modules["torch.distributed.distributed_c10d"]):
        module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _is_worker() -> bool:
    return os.environ.get(MARK) == str(os.getpid())


def _is_taken(backend: Any) -> bool:
    """Return True if the job takes the place of this backend. Without a name torch chooses NCCL
    where there is a GPU, whose tensors are not ours."""
    name = backend.lower() if isinstance(backend, str) else backend
    return name in _TAKEN and not (name is None and sys.modules["torch"].cuda.is_available())
