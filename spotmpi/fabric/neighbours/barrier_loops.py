"""Loops by which processes of one host wait for each other, compiled by Numba.

Each process has numbers of its own, which only grow. It waits until all others' are as large. The
last process to come wakes those that sleep. Published models have such numbers, too, and one that
all who read them raise. To import this takes as long as Numba does.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import int64, types, uint64, uintp
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from spotmpi.kernels import cache

__all__ = ["compiled"]

_WAIT, _WAKE = 0, 1
_ALL = 2**31 - 1


@functools.cache
def compiled() -> SimpleNamespace:
    """Return the loops: ``post``, ``meet``, ``ring``, ``publish``, ``announce``, ``look`` and
    ``claim``. All work on addresses. They are loaded once in a process."""
    numbers = uintp[::1]
    return cache.compiled(
        {
            _post: (uintp, uint64, numbers, uintp, int64),
            _meet: (numbers, uint64, uintp, int64, int64, uintp, int64),
            _ring: (uintp, int64),
            _publish: (uintp, uint64),
            _announce: (uintp, uint64),
            _look: (uintp,),
            _claim: (uintp, uint64),
        }
    )


def _post(own: Any, number: Any, everybody: Any, bell: Any, futex: Any) -> None:
    """Set the number at ``own``; wake the others if all of ``everybody`` have reached it."""
    _store(own, number)
    if _reached(everybody, number):
        _ring(bell, futex)


def _meet(
    everybody: Any, number: Any, bell: Any, looks: Any, yields: Any, nap: Any, futex: Any
) -> Any:
    """Return True if all of ``everybody`` have reached ``number``. Look ``looks`` times; then look
    ``yields`` times and yield the core after each; then sleep once at most. ``nap``: the address of
    the limit of that sleep, as seconds and nanoseconds."""
    for _ in range(looks):
        if _reached(everybody, number):
            return True
    for _ in range(yields):
        if _reached(everybody, number):
            return True
        _yield_core()
    heard = _load_half(bell)
    if _reached(everybody, number):
        return True
    # Returns at once if the bell has rung since it was read.
    _system_call(futex, bell, _WAIT, heard, nap)
    return _reached(everybody, number)


def _publish(address: Any, number: Any) -> None:
    """Store a number. A process that reads it there finds all that was written before."""
    _store(address, number)


def _announce(address: Any, number: Any) -> None:
    """Store a number. A process that finds a later write finds this number, or a later one."""
    _store(address, number)
    _fence()


def _look(address: Any) -> Any:
    """Return the number there. It is read after all that was read before."""
    _fence()
    return _load(address)


def _claim(address: Any, number: Any) -> Any:
    """Raise the number there to ``number``; return True if it was lower. One of several processes
    that claim the same number at the same time finds it lower."""
    return _raise(address, number) < number


@register_jitable
def _ring(bell: Any, futex: Any) -> None:
    """Wake all processes that sleep by this bell."""
    _increase(bell)
    _system_call(futex, bell, _WAKE, _ALL, 0)


@register_jitable
def _reached(everybody: Any, number: Any) -> Any:
    for i in range(everybody.size):  # noqa: SIM110 - Numba knows no all()
        if _load(everybody[i]) < number:
            return False
    return True


# What Numba cannot express. Each is a pair: the types, and a function that generates the code.


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _make_load(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(builder, arguments[0], 64), "seq_cst", 8)

    return types.uint64(types.uintp), generate


def _make_load_half(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.load_atomic(_pointer(builder, arguments[0], 32), "seq_cst", 4)
        return builder.zext(half, ir.IntType(64))

    return types.int64(types.uintp), generate


def _make_store(typing_context: Any, address: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, number = arguments
        builder.store_atomic(number, _pointer(builder, address, 64), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uint64), generate


def _make_fence(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _make_increase(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = ir.Constant(ir.IntType(32), 1)
        builder.atomic_rmw("add", _pointer(builder, arguments[0], 32), one, "seq_cst")
        return context.get_dummy_value()

    return types.void(types.uintp), generate


def _make_raise(typing_context: Any, address: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, number = arguments
        return builder.atomic_rmw("umax", _pointer(builder, address, 64), number, "seq_cst")

    return types.uint64(types.uintp, types.uint64), generate


def _make_system_call(
    typing_context: Any, futex: Any, bell: Any, action: Any, value: Any, limit: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        long = ir.IntType(64)
        kind = ir.FunctionType(long, [long], var_arg=True)
        call: Any = _declared(builder.module, kind, "syscall")
        return builder.call(call, arguments)

    return types.int64(types.int64, types.uintp, types.int64, types.int64, types.uintp), generate


def _make_yield_core(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(_declared(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


_declared: Any = cgutils.get_or_insert_function
_load: Any = intrinsic(_make_load)
_load_half: Any = intrinsic(_make_load_half)
_store: Any = intrinsic(_make_store)
_fence: Any = intrinsic(_make_fence)
_increase: Any = intrinsic(_make_increase)
_raise: Any = intrinsic(_make_raise)
_yield_core: Any = intrinsic(_make_yield_core)
_system_call: Any = intrinsic(_make_system_call)
