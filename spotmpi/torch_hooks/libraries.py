"""What libraries for torch mean by their calls, and what they do on rank 0 alone. Imports none."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from spotmpi.torch_hooks import profiles

__all__ = [
    "NOBODY",
    "asked_in",
    "asker",
    "counts_batches",
    "divides_whole_numbers",
    "is_alike",
    "let_first_stand_in",
]

NOBODY = "nobody"
"""Stands for a module's name where a thread of C++ has made the call."""

_BETWEEN = (
    *("torch.distributed.distributed_c10d", "torch.distributed.c10d_logger"),
    *("spotmpi.torch", "spotmpi.torch_hooks"),
    *("torch.overrides", "torch.utils._device"),
    *("torch.distributed._functional_collectives", "torch._ops", "torch._library"),
)
"""Modules between a script's call and this one."""
_LIGHTNING = ("lightning", "lightning_fabric", "pytorch_lightning")
_ALIKE = (
    *("torch.nn.parallel", "torch.distributed.utils"),  # DDP: its buffers
    *("accelerate.utils.random", "transformers", *_LIGHTNING),
)
"""Modules that send from rank 0 what is the same on all: buffers, random states, signals, names."""
_COUNTING = ("lightning", "pytorch_lightning")
"""Modules that count the batches of a pass."""


def is_alike() -> bool:
    """Return True if the code that has made the call of torch.distributed which is under way is
    known to send from rank 0 what all workers have, so that one may stand in. Alike on all."""
    return asked_in(_ALIKE)


def counts_batches() -> bool:
    """Return True if the code that goes through a loader ends a pass after as many batches as the
    loader had at its beginning."""
    return asked_in(_COUNTING)


def divides_whole_numbers() -> bool:
    """Return True if the code that has made the call of torch.distributed which is under way
    divides sums of whole numbers by the number of workers at the start, compares them with it, or
    divides sums of floats by them. Alike on all."""
    return asked_in(_LIGHTNING)


def asker() -> str:
    """Return the name of the module that has called the method which calls this. Code in C++ is
    passed over, and what shows calls to profilers; `NOBODY` if there is nothing before it."""
    caller = sys._getframe(1).f_back
    while caller and caller.f_globals.get("__name__") == profiles.__name__:
        caller = caller.f_back
    name: str = caller.f_globals.get("__name__", "") if caller else NOBODY
    return name


def asked_in(modules: Sequence[str]) -> bool:
    """Return True if code in one of these modules has made the call which is under way."""
    return _is_in(next((name for name, _ in _callers() if not _is_in(name, _BETWEEN)), ""), modules)


class _Question(NamedTuple):
    """How a library asks whether it is on rank 0."""

    module: str
    owner: str
    """A class in it."""
    names: Sequence[str]
    """The properties and methods of the class that answer."""
    askers: Sequence[str]
    """Modules that get the first worker's answer: those of libraries. They do on rank 0 alone what
    any worker could do, such as to save a model. What a script does there may need what it has made
    there before."""


_HUGGING = ("transformers", "accelerate")
_QUESTIONS = (
    _Question(
        "accelerate.state",
        "PartialState",
        ("is_main_process", "is_local_main_process"),
        _HUGGING,
    ),
    _Question("transformers.training_args", "TrainingArguments", ("should_save",), _HUGGING),
    _Question(
        "transformers.trainer",
        "Trainer",
        ("is_world_process_zero", "is_local_process_zero"),
        _HUGGING,
    ),
    _Question(
        "transformers.distributed.mixin",
        "DistributedMixin",
        ("should_save_on_this_rank",),
        _HUGGING,
    ),
    *(
        _Question(f"{one}.strategies.parallel", "ParallelStrategy", ("is_global_zero",), _LIGHTNING)
        for one in (
            "lightning.pytorch",
            "lightning.fabric",
            "pytorch_lightning",
            "lightning_fabric",
        )
    ),
)
_DECORATORS = ("on_main_process", "on_local_main_process")
"""Functions of Accelerate that ask for others: for functions of the script, and for logs."""
_STANDS_IN = "stands_in"
"""An attribute of a function that has been replaced."""


def let_first_stand_in() -> list[str]:
    """From now on let the libraries which are loaded do on the first worker that lives what they do
    on rank 0 alone, but for logs. Return their names. Local."""
    found = []
    for question in _QUESTIONS:
        owner = getattr(sys.modules.get(question.module), question.owner, None)
        if owner is None:
            continue
        found.append(question.module.partition(".")[0])
        for name in question.names:
            usual = vars(owner).get(name)
            asked = usual.fget if isinstance(usual, property) else usual
            if asked is not None and not hasattr(asked, _STANDS_IN):
                ours = _standing_in(asked, question)
                setattr(owner, name, property(ours) if isinstance(usual, property) else ours)
    return [*dict.fromkeys(found)]


def _standing_in(usual: Callable[..., bool], question: _Question) -> Callable[..., bool]:
    """Return a function that says True on the first worker that lives if the library asks."""

    @functools.wraps(usual)
    def asked(of: Any, *given: Any, **named: Any) -> bool:
        return usual(of, *given, **named) or (_is_first() and _asks(question))

    setattr(asked, _STANDS_IN, True)
    return asked


def _is_first() -> bool:
    """Return True if this worker is the first one that lives of a group of spotmpi."""
    return getattr(sys.modules["torch.distributed"].group.WORLD, "is_first", False)


def _asks(question: _Question) -> bool:
    """Return True if a library asks the question that is under way, for itself: not for the script,
    and not for a log."""
    for name, code in _callers():
        if not _is_in(name, _BETWEEN) and code.co_name not in question.names:
            return _is_in(name, question.askers) and code.co_name not in _DECORATORS
    return False


def _callers() -> Iterator[tuple[str, CodeType]]:
    """Yield the module and the function of each call which is under way, the last one first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame.f_code
        frame = frame.f_back


def _is_in(name: str, modules: Sequence[str]) -> bool:
    """Return True if this is the name of one of these modules, or of a module in one."""
    return any(name == one or name.startswith(f"{one}.") for one in modules)
