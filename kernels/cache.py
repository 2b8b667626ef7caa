"""Numba functions that are compiled once on a machine and loaded from disk from then on."""

from __future__ import annotations

import fcntl
import inspect
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numba
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

__all__ = ["Loops", "compiled"]

Loops: TypeAlias = Mapping[Callable[..., Any], tuple[Any, ...]]
"""Functions that Numba can compile, with the Numba types of their arguments."""


def compiled(loops: Loops) -> SimpleNamespace:
    """Return machine code of each function in ``loops`` for these types of its arguments.

    The namespace has each function under its name, without leading underscores. The call is local.
    It blocks for seconds the first time, for milliseconds once the code is in Numba's cache. If
    processes start together for the first time, one compiles and the others wait. A cache that
    cannot be used costs a RuntimeWarning and the compilation, nothing else.

    The code takes positional arguments and believes that they have these types: the caller checks
    them. It runs without the GIL.
    """
    try:
        jitted = _jitted(loops, cache=True)
        folder = Path(next(iter(jitted)).stats.cache_path)
        with _first_compiles(folder, _identity(loops)), _without_scipy(), _without_compiler():
            return _namespace(jitted)
    except Exception as error:  # noqa: BLE001 -- no folder, full, unreadable, garbled: all the same
        warnings.warn(
            "spotmpi compiles its kernels again in every process, because Numba's cache cannot be "
            f"used ({error}): point NUMBA_CACHE_DIR at a folder that can be written, or empty it",
            RuntimeWarning,
            stacklevel=2,
        )
        return _namespace(_jitted(loops, cache=False))


def _jitted(loops: Loops, cache: bool) -> dict[Any, tuple[Any, ...]]:
    jit = numba.njit(nogil=True, cache=cache, error_model="numpy")  # x / 0 is infinite
    return {jit(function): types for function, types in loops.items()}


def _namespace(jitted: Mapping[Any, tuple[Any, ...]]) -> SimpleNamespace:
    # Calling the compiled function itself, not Numba's dispatcher, halves the cost of a call.
    entries = {f.__name__.lstrip("_"): f.compile(types) for f, types in jitted.items()}
    return SimpleNamespace(**entries)


@contextmanager
def _first_compiles(folder: Path, identity: str) -> Iterator[None]:
    """Admit one process at a time to ``folder`` until one has been through; from then on, all.

    Numba itself does not guard its index of a function's versions. If two processes add one each at
    the same time, the wrong code may end under a version's name.
    """
    with (folder / "spotmpi.lock").open("a+", encoding="ascii") as file:
        file.seek(0)
        done = identity in file.read().split()
        if not done:
            with suppress(OSError):  # a file system without locks: as good as Numba alone
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
        if not done:
            file.write(f"{identity}\n")


_BLAS = "scipy.linalg.cython_blas"


@contextmanager
def _without_scipy() -> Iterator[None]:
    """Keep Numba from importing SciPy, which it does with the first function that it loads, only to
    see whether it is there. No loop of ours needs it, and the import takes each worker 0.15 s of
    computing, or 0.3 s where it is alone on its cores.

    In the block Numba finds an empty module instead. What needs SciPy imports it when it compiles.
    """
    alone = threading.active_count() == 1  # nobody else can find the empty module
    if not alone or _BLAS in sys.modules or find_spec("scipy") is None:
        yield
        return
    sys.modules[_BLAS] = ModuleType(_BLAS)
    try:
        yield
    finally:
        del sys.modules[_BLAS]


_LOADS = "load_overload"
"""Numba's method that takes a function from the cache."""


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Keep Numba from setting up its compiler, which it does with the first function that it loads.
    Loaded code does without, and it takes each worker 0.3 s of computing.

    If something is compiled, in the block or later, Numba sets its compiler up then.
    """
    context = cpu_target.target_context

    def refresh() -> None:
        if sys._getframe(1).f_code.co_name == _LOADS:
            rtsys.initialize(context)  # the memory that loops ask for
        else:
            type(context).refresh(context)

    context.refresh = refresh
    try:
        yield
    finally:
        context.__dict__.pop("refresh", None)  # another thread may have done so


def _identity(loops: Loops) -> str:
    """Return what must be the same for code from the cache to be used, as in Numba's own index."""
    sources = sorted({inspect.getfile(f) for f in loops})
    machine = cpu_target.target_context.codegen().magic_tuple()
    parts = [numba.__version__, sys.implementation.cache_tag, machine, list(loops.values())]
    parts += [Path(source).read_bytes() for source in sources]
    return f"{zlib.crc32(repr(parts).encode()):08x}"
