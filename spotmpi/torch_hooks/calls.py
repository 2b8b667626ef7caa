"""What is replaced in torch: functions of torch.distributed, and constructors of what scripts train
with. Imports no torch: `import torch` calls this."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from spotmpi.torch_hooks.compiler import leave_uncompiled

__all__ = [
    "MADE",
    "OWN_CALLS",
    "note_what_is_made",
    "put",
    "replace_calls",
    "tell_of_groups",
]

MADE: list[weakref.ref[Any]] = []
"""What the script trains with, in the order in which it was made: since `note_what_is_made`."""

OWN_CALLS = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
    "monitored_barrier",  # of which torch allows gloo only
)
"""The calls that a group of spotmpi makes itself: those for objects, and a barrier."""

_KEEPERS = (
    "lightning.pytorch.callbacks.model_checkpoint",
    "pytorch_lightning.callbacks.model_checkpoint",
)
"""Modules of Lightning whose `ModelCheckpoint` knows the best models so far."""
_ASKS = "asks_group"
"""An attribute of a function that has been replaced."""
_NOTES = "notes"
"""An attribute of a constructor that has been replaced."""


def replace_calls() -> None:
    """Let groups of spotmpi make some of torch's calls themselves. Local."""
    for name in OWN_CALLS:
        usual = getattr(sys.modules["torch.distributed"], name)
        if not hasattr(usual, _ASKS):
            put(name, _asking_group(usual))


def _asking_group(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that asks its group for a call of its own, and else makes the usual one."""
    known = inspect.signature(usual)

    @functools.wraps(usual)
    def call(*given: Any, **named: Any) -> Any:
        arguments = known.bind(*given, **named).arguments
        group = arguments.pop("group", None) or sys.modules["torch.distributed"].group.WORLD
        ours = getattr(group, "own_calls", {}).get(usual.__name__)
        return usual(*given, **named) if ours is None else ours(group, **arguments)

    setattr(call, _ASKS, True)
    leave_uncompiled(call)
    return call


def tell_of_groups(tell: Callable[[Sequence[int]], None]) -> None:
    """Call ``tell`` with the ranks of each group that a script makes on all workers. Torch makes it
    only on the group's own; those of FSDP must know of the others, which have what they have.
    Local."""
    usual = sys.modules["torch.distributed"].new_group
    known = inspect.signature(usual)

    @functools.wraps(usual)
    def new_group(*given: Any, **named: Any) -> Any:
        arguments = known.bind(*given, **named).arguments
        ranks = arguments.get("ranks")
        if ranks is not None and not arguments.get("use_local_synchronization"):
            tell(ranks if arguments.get("sort_ranks") is False else sorted(ranks))
        return usual(*given, **named)

    put("new_group", new_group)


def note_what_is_made() -> None:
    """From now on note what scripts train with: it is all that a newcomer needs. Local."""
    torch = sys.modules["torch"]
    rates = torch.optim.lr_scheduler
    kinds = [
        torch.nn.parallel.DistributedDataParallel,
        torch.optim.Optimizer,
        # Each of these has a constructor that does not call that of the first one.
        *(rates.LRScheduler, rates.ReduceLROnPlateau, rates.SequentialLR, rates.ChainedScheduler),
        torch.amp.GradScaler,
        # How far a script for Hugging Face's Trainer is.
        *_loaded("transformers.trainer_callback", "TrainerState"),
    ]
    best = [kind for module in _KEEPERS for kind in _loaded(module, "ModelCheckpoint")]
    if best:  # the script has made them by now; Python knows them in another order on each worker
        those = [one for one in gc.get_objects() if issubclass(type(one), tuple(best))]
        noted = {id(ref()) for ref in MADE}
        those = [one for one in those if id(one) not in noted]
        MADE.extend(map(weakref.ref, sorted(those, key=lambda one: one.state_key)))
    for kind in (*kinds, *best):
        if not hasattr(kind.__init__, _NOTES):
            kind.__init__ = _noting(kind.__init__)


def _loaded(module: str, name: str) -> list[Any]:
    """Return this class in a list, if its module is loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return [] if kind is None else [kind]


def _noting(usual: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that notes what it makes."""

    @functools.wraps(usual)
    def make(made: Any, *given: Any, **named: Any) -> None:
        usual(made, *given, **named)
        MADE.append(weakref.ref(made))

    setattr(make, _NOTES, True)
    return make


def put(name: str, ours: Callable[..., Any]) -> None:
    """Replace a function of torch.distributed in all its modules: some have copies."""
    usual = getattr(sys.modules["torch.distributed"], name)
    for where, module in list(sys.modules.items()):
        if where.startswith("torch.distributed") and vars(module).get(name) is usual:
            setattr(module, name, ours)
