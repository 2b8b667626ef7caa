"""What torch's profiler shows of calls. Imports no torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["GROUP_CALLS", "show_in_profiles"]

GROUP_CALLS = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "all_gather_single"),
    *("_allgather_base", "gather", "scatter", "reduce_scatter", "reduce_scatter_single"),
    *("_reduce_scatter_base", "alltoall", "all_to_all_single", "alltoall_base", "barrier", "send"),
)
"""Methods of a process group that take time. (Sums of a backward pass are made at its end.)"""


def show_in_profiles(kind: type, names: Sequence[str], label: str | None = None) -> None:
    """Have torch's profiler show these methods of a class: as ``spotmpi:LABEL``, or by their names.
    Local."""
    for name in names:
        method = vars(kind)[name]
        setattr(kind, name, _shown(method, f"spotmpi:{label or method.__name__}"))


def _shown(method: Callable[..., Any], label: str) -> Callable[..., Any]:
    """Return a method that a profiler sees, if there is one."""
    torch = sys.modules["torch"]

    @functools.wraps(method)
    def shown(*given: Any, **named: Any) -> Any:
        if not torch.autograd._profiler_enabled():
            return method(*given, **named)
        with torch.profiler.record_function(label):
            return method(*given, **named)

    return shown
