"""CUDA source compiled for the CPU, and run there: the very text, one thread after the other.

A header in front of it says what CUDA's words mean; each kernel gets a function that loops over its
blocks and their threads, and takes arguments as cuLaunchKernel does. So what is shown holds for
kernels whose threads do not wait for each other. Needs the system's C++ compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FOLDER", "Compiled", "KernelError", "compiled", "kernels_in"]

FOLDER = "SPOTMPI_TESTS_KERNELS"
"""The environment variable for where processes keep compiled kernels for each other."""

_FRONT = r"""
#include <utility>
#include <cstring>
#define __global__
#define __device__
struct where_ { unsigned x = 0; };
static thread_local where_ blockIdx, threadIdx, blockDim, gridDim;
static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
template <typename T> static T atomicAdd(T* at, T x) { T old = *at; *at = old + x; return old; }
template <typename T>
static T atomicMax(T* at, T x) { T old = *at; *at = x > old ? x : old; return old; }
#line 1 "kernel.cu"
"""

_BACK = r"""
template <typename... A, size_t... I>
static void each_thread(void (*kernel)(A...), unsigned grid, unsigned block, void** given,
                        std::index_sequence<I...>) {
    gridDim.x = grid, blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x)
            kernel(*(A*)given[I]...);
}
template <typename... A>
static void run(void (*kernel)(A...), unsigned grid, unsigned block, void** given) {
    each_thread(kernel, grid, block, given, std::index_sequence_for<A...>());
}
template <typename... A> static int sizes_of(void (*)(A...), int* to) {
    int all[] = {(int)sizeof(A)...};
    memcpy(to, all, sizeof all);
    return sizeof...(A);
}
"""

_EACH = """
extern "C" void run_{name}(unsigned grid, unsigned block, void** given) {{
    run(&{name}, grid, block, given);
}}
extern "C" int sizes_{name}(int* to) {{ return sizes_of(&{name}, to); }}
"""


class KernelError(Exception):
    """It was not called as it must be, or does not compile."""


def _compiler() -> str:
    for name in ("c++", "g++", "clang++"):
        if (found := shutil.which(name)) is not None:
            return found
    raise KernelError("there is no C++ compiler: install g++ (on Debian: apt-get install g++)")


def kernels_in(source: str) -> list[str]:
    """The names of all kernels, as the preprocessor leaves them."""
    done = subprocess.run(
        [_compiler(), "-E", "-P", "-x", "c++", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return re.findall(r'extern "C" __global__ void (\w+)\(', done.stdout)


def _build(source: str, library: Path) -> None:
    """``library``: written at once, if others do the same at the same time."""
    names = kernels_in(source)
    text = _FRONT + source + _BACK + "".join(_EACH.format(name=name) for name in names)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / "made.so"
        # No product and sum in one, as on the device: they are rounded one after the other.
        flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall"]
        done = subprocess.run(
            [_compiler(), *flags, "-shared", "-fPIC", "-x", "c++", "-", "-o", os.fspath(made)],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise KernelError(done.stderr)
        made.replace(library)


class Compiled:
    """The kernels of one source."""

    def __init__(self, source: str) -> None:
        what = hashlib.blake2b((_FRONT + source + _BACK).encode(), digest_size=12).hexdigest()
        with contextlib.ExitStack() as until_loaded:
            folder = os.environ.get(FOLDER)
            if folder is None:
                folder = until_loaded.enter_context(tempfile.TemporaryDirectory())
            library = Path(folder) / f"{what}.so"
            if not library.exists():
                _build(source, library)
            self._library = ctypes.CDLL(os.fspath(library))

    def launch(self, name: str, grid: int, block: int, arguments: Sequence[Any]) -> None:
        """Run it to its end. ``arguments``: NumPy scalars; addresses are numbers of 64 bits.

        KernelError if they are not as many and as large as the kernel has them.
        """
        if not (0 < grid <= 2**31 - 1 and 0 < block <= 1024):
            raise KernelError(f"{name}: {grid} blocks of {block} threads are not possible")
        sizes = (ctypes.c_int * 64)()
        count = getattr(self._library, f"sizes_{name}")(sizes)
        rooms = [np.array(argument) for argument in arguments]
        if [room.nbytes for room in rooms] != list(sizes[:count]):
            got = [str(room.dtype) for room in rooms]
            raise KernelError(f"{name} takes arguments of {sizes[:count]} bytes, and got {got}")
        addresses = (ctypes.c_void_p * count)(*(room.ctypes.data for room in rooms))
        getattr(self._library, f"run_{name}")(grid, block, addresses)


_KNOWN: dict[str, Compiled] = {}


def compiled(source: str) -> Compiled:
    """The kernels of this source; compiled once."""
    if source not in _KNOWN:
        _KNOWN[source] = Compiled(source)
    return _KNOWN[source]
