"""Sums and copies in compiled code that go past the cache.

They are for data that has left the cache before anybody reads it. Ordinary stores read a line of
memory into the cache before they write it, and throw out others that may still be of use.
Processors have stores that do neither; LLVM uses them only where it is told to. The import takes as
long as Numba's.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LINE", "copy_lines", "settle", "sum_lines"]

LINE = 64
"""Bytes that are written at once, at a multiple of this number."""


def _make_sum_lines(
    typing_context: Any, out: Any, start: Any, stop: Any, addresses: Any, weights: Any, count: Any
) -> Any:
    """Numba's recipe for `sum_lines`: the types of the call, and what generates its code."""
    dtype = weights.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, start, stop, addresses, weights, count = arguments
        number = context.get_value_type(dtype)
        size = context.get_abi_sizeof(number)
        whole = isinstance(dtype, types.Integer)
        times, plus = (builder.mul, builder.add) if whole else (builder.fmul, builder.fadd)
        line = ir.VectorType(number, LINE // size)
        mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        given, scales = (
            _struct_of(kind)(context, builder, value).data
            for kind, value in zip(signature.args[3:5], (addresses, weights), strict=True)
        )

        def there(base: Any, at: Any) -> Any:
            return builder.inttoptr(builder.add(base, at), line.as_pointer())

        def scaled(index: Any, at: Any) -> Any:
            base = builder.load(builder.gep(given, [index]))
            weight = builder.load(builder.gep(scales, [index]))
            one = builder.insert_element(ir.Constant(line, ir.Undefined), weight, ir.IntType(32)(0))
            every = ir.Constant(ir.VectorType(ir.IntType(32), LINE // size), [0] * (LINE // size))
            weights = builder.shuffle_vector(one, ir.Constant(line, ir.Undefined), every)
            return times(weights, builder.load(there(base, at), align=size))

        first, length = context.get_constant(types.intp, 0), context.get_constant(types.intp, LINE)
        total = _room(builder, line)
        with cgutils.for_range_slice(builder, start, stop, length) as (at, _):
            builder.store(scaled(first, at), total)
            rest = context.get_constant(types.intp, 1)
            with cgutils.for_range_slice(builder, rest, count, rest) as (index, _):
                builder.store(plus(builder.load(total), scaled(index, at)), total)
            done = builder.store(builder.load(total), there(out, at), align=LINE)
            done.set_metadata("nontemporal", mark)
        return context.get_dummy_value()

    return types.void(types.uintp, types.intp, types.intp, addresses, weights, types.intp), generate


def _make_copy_lines(typing_context: Any, to: Any, source: Any, size: Any) -> Any:
    """Numba's recipe for `copy_lines`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, source, size = arguments
        line = ir.VectorType(ir.IntType(64), LINE // 8)
        mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])

        def there(base: Any, at: Any) -> Any:
            return builder.inttoptr(builder.add(base, at), line.as_pointer())

        zero, length = context.get_constant(types.intp, 0), context.get_constant(types.intp, LINE)
        with cgutils.for_range_slice(builder, zero, size, length) as (at, _):
            done = builder.store(
                builder.load(there(source, at), align=8), there(to, at), align=LINE
            )
            done.set_metadata("nontemporal", mark)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.intp), generate


def _make_settle(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_struct_of: Any = cgutils.create_struct_proxy
_room: Any = cgutils.alloca_once

sum_lines: Any = intrinsic(_make_sum_lines)
"""sum_lines(out, start, stop, addresses, weights, count): write a weighted sum past the cache. It
writes the bytes from ``start`` to ``stop`` of the sum of ``count`` arrays, from left to right, as a
loop would add up. ``out`` and ``addresses`` say where arrays of the weights' type lie. A line of
``out`` begins at ``start``, and one ends at ``stop``. Others see the sum after `settle`."""

copy_lines: Any = intrinsic(_make_copy_lines)
"""copy_lines(to, source, size): copy ``size`` bytes, of whole lines, past the cache. ``to`` and
``source`` are where they lie, ``to`` at the beginning of a line. Others see it after `settle`."""

settle: Any = intrinsic(_make_settle)
"""settle(): put all that was written past the cache in its place, before what is written next."""
