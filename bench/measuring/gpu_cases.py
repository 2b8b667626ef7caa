"""The kernels of a GPU, each beside what a user of CuPy would write: one kernel of the user's own,
or, where a number is told, CuPy's ready-made functions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from spotmpi.bench.measuring.turns import Step, alone
from spotmpi.kernels import gpu
from spotmpi.kernels.reference import FORMATS, narrowed_bytes

__all__ = ["Case", "clock", "copying", "kernel_cases"]

_SUMS = (2, 4, 8)
_ADAM = 1e-3, 0.9, 0.999, 10.0, 31.6, 1e-8, 0.01, 0.5
_MOMENTS = """
    T g = scale * grads;
    mean = beta1 * mean + (1 - beta1) * g;
    square = beta2 * square + (1 - beta2) * (g * g);
"""
_DIRECTION = "(first * mean / (second * sqrt(square) + eps) + decay * params)"


class Case(NamedTuple):
    """One kernel on one machine's arrays."""

    name: str
    ours: Step
    theirs: Step
    """The same by the library that everybody uses."""
    moved: int
    """Bytes that must be read and written."""


def kernel_cases(params: int) -> Iterator[Case]:
    """The kernels of CuPy's current device, one after the other, on float32.

    Nobody but us keeps what narrowing takes away: there the other side only copies as many bytes.
    """
    import cupy

    arrays = [cupy.zeros(params, "float32") for _ in range(10)]
    for array in arrays:
        array.fill(1e-3)
    out, spare, x, y, z = arrays[:5]
    size = out.nbytes

    def case(name: str, ours: Step, theirs: Step, times: int) -> Case:
        return Case(name, ours, theirs, times * size)

    def written(given: str, changed: str, code: str) -> Any:
        """Takes arrays and numbers, and after them what it changes in place."""
        return cupy.ElementwiseKernel(given, changed, code, "theirs")

    yield case("accumulate", partial(gpu.accumulate, out, x), partial(cupy.add, out, x, out), 3)
    blend = written("T x, T a, T b", "T out", "out = b * out + a * x")
    yield case("blend", partial(gpu.blend, out, x, 0.3, 0.7), partial(blend, x, 0.3, 0.7, out), 3)
    swap = written("T x", "T total, T own", "total += x - own; own = x")
    yield case("exchange", partial(gpu.exchange, out, y, x), partial(swap, x, out, y), 5)
    for count in _SUMS:
        inputs = arrays[-count:]
        names = ", ".join(f"T x{i}, T a{i}" for i in range(count))
        terms = " + ".join(f"a{i} * x{i}" for i in range(count))
        add = written(names, "T out", f"out = {terms}")
        weighted = [part for array in inputs for part in (array, 0.5)]
        ours = partial(gpu.scaled_sum, out, inputs, [0.5] * count)
        yield case(f"scaled_sum of {count}", ours, partial(add, *weighted, out), count + 1)
    sgd = written("T grads, T rate, T scale", "T params", "params -= rate * (scale * grads)")
    yield case("sgd", partial(gpu.sgd, out, x, 0.1, 0.5), partial(sgd, x, 0.1, 0.5, out), 3)
    momentum = written(
        "T grads, T rate, T beta, T scale", "T params, T velocity",
        "velocity = beta * velocity + scale * grads; params -= rate * velocity",
    )  # fmt: skip
    theirs = partial(momentum, x, 0.1, 0.9, 0.5, out, y)
    yield case("momentum", partial(gpu.momentum, out, y, x, 0.1, 0.9, 0.5), theirs, 5)

    scalars = "T rate, T beta1, T beta2, T first, T second, T eps, T decay, T scale"
    moved = "T params, T mean, T square"
    adam = written(f"T grads, {scalars}", moved, f"{_MOMENTS} params -= rate * {_DIRECTION};")
    ours = partial(gpu.adam, out, y, z, x, *_ADAM)
    yield case("adam", ours, partial(adam, x, *_ADAM, out, y, z), 7)
    moments = written(
        f"T grads, T params, {scalars}", "T mean, T square, T direction",
        f"{_MOMENTS} direction = {_DIRECTION};",
    )  # fmt: skip

    def norms() -> None:
        moments(x, out, *_ADAM, y, z, spare)
        float(cupy.dot(out, out))
        float(cupy.dot(spare, spare))

    yield case("lamb_norms", partial(gpu.lamb_norms, out, y, z, x, *_ADAM[1:]), norms, 6)
    lamb = written(f"T mean, T square, {scalars}", "T params", f"params -= rate * {_DIRECTION}")
    ours = partial(gpu.lamb, out, y, z, 1e-3, *_ADAM[3:7])
    yield case("lamb", ours, partial(lamb, y, z, *_ADAM, out), 4)
    yield case("sum_of_squares", partial(gpu.sum_of_squares, x), lambda: float(cupy.dot(x, x)), 1)
    copy = partial(cupy.copyto, out, x)
    yield case("pack", partial(gpu.pack, out, [x], 1.0), copy, 2)
    yield case("unpack", partial(gpu.unpack, x, [out]), copy, 2)
    words = x.view("uint32")
    total = partial(cupy.sum, words, dtype="uint64")
    yield case("digest", partial(gpu.digest, x), lambda: int(total()), 1)
    yield case("finite", partial(gpu.finite, x), lambda: bool(cupy.isfinite(x).all()), 1)
    for form in FORMATS:
        wire = cupy.zeros(narrowed_bytes(params, form), "uint8")
        given = (wire, out, y, spare, None, [x], [1.0], form)
        bytes_moved = 4 * size + wire.nbytes
        ours = partial(gpu.narrow_sum, *given)
        yield Case(f"narrow_sum, {form}", ours, copying(bytes_moved // 2), bytes_moved)
        bytes_moved = size + wire.nbytes
        ours = partial(gpu.widen, out, wire, form)
        yield Case(f"widen, {form}", ours, copying(bytes_moved // 2), bytes_moved)


def copying(size: int) -> Step:
    """Copies ``size`` bytes within the memory of the device."""
    import cupy

    source, target = cupy.zeros(size, "uint8"), cupy.zeros(size, "uint8")

    def copy() -> None:
        stream = cupy.cuda.get_current_stream()
        target.data.copy_from_device_async(source.data, size, stream)

    return copy


def clock(step: Step, steps: int) -> float:
    """Seconds of one step when ``steps`` run in a row, until the device has done them."""
    import cupy

    def all_of_them() -> None:
        for _ in range(steps):
            step()
        cupy.cuda.get_current_stream().synchronize()

    return alone(all_of_them, 1) / steps
