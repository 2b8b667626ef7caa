"""``spotmpi bench kernels``: how fast the arithmetic is, beside NumPy or CuPy, and beside copies.

Each kernel takes turns with the fastest spelling of the same that the library has, without new
arrays, and with a copy of as many bytes as it reads and writes; on one core, or on one GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from spotmpi.bench.measuring import figures, turns
from spotmpi.bench.measuring import gpu_cases as gpu
from spotmpi.bench.measuring.copies import copying
from spotmpi.bench.measuring.gpu_cases import Case
from spotmpi.bench.measuring.report import Report
from spotmpi.errors import UsageError
from spotmpi.kernels import cpu, reference

__all__ = ["Measured", "add_arguments", "cpu_cases", "main"]

_PARAMS, _TURNS, _BLOCK, _MOST = (1_000_000, 25_600_000), 9, 0.02, 1000
_SUMS = (2, 4, 8)
_ARRAYS = 10
"""Of the parameters' size, that cases share."""

Flat = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Measured:
    """One kernel at one size: seconds of a call of each side, turn by turn."""

    name: str
    params: int
    moved: int
    library: str
    sides: Mapping[str, Sequence[float]]


def cpu_cases(params: int) -> Iterator[Case]:
    """The kernels of this host, one after the other, on float32."""
    arrays = [np.full(params, 1e-3, np.float32) for _ in range(_ARRAYS)]
    out, spare, x, y, z, scratch = arrays[:6]
    size = out.nbytes

    def add_scaled(inputs: Sequence[Flat]) -> None:
        np.multiply(inputs[0], 0.5, out=out)
        for one in inputs[1:]:
            np.multiply(one, 0.5, out=spare)
            np.add(out, spare, out=out)

    def momentum() -> None:
        np.multiply(y, 0.9, out=y)
        np.multiply(x, 0.5, out=spare)
        np.add(y, spare, out=y)
        np.multiply(y, 0.1, out=spare)
        np.subtract(out, spare, out=out)

    def sgd() -> None:
        np.multiply(x, 0.05, out=spare)
        np.subtract(out, spare, out=out)

    add = partial(np.add, out, x, out=out)
    yield Case("accumulate", partial(cpu.accumulate, out, x), add, 3 * size)

    def blend() -> None:
        np.multiply(out, 0.7, out=out)
        np.multiply(x, 0.3, out=spare)
        np.add(out, spare, out=out)

    yield Case("blend", partial(cpu.blend, out, x, 0.3, 0.7), blend, 3 * size)

    def exchange() -> None:
        np.subtract(x, y, out=spare)
        np.add(out, spare, out=out)
        np.copyto(y, x)

    yield Case("exchange", partial(cpu.exchange, out, y, x), exchange, 5 * size)
    for count in _SUMS:
        inputs = arrays[-count:]
        ours = partial(cpu.scaled_sum, out, inputs, [0.5] * count)
        yield Case(f"scaled_sum of {count}", ours, partial(add_scaled, inputs), (count + 1) * size)
    yield Case("sgd", partial(cpu.sgd, out, x, 0.1, 0.5), sgd, 3 * size)
    yield Case("momentum", partial(cpu.momentum, out, y, x, 0.1, 0.9, 0.5), momentum, 5 * size)
    scalars = 1e-3, 0.9, 0.999, 10.0, 31.6, 1e-8, 0.01, 0.5

    def adam() -> None:
        np.multiply(x, 0.5, out=spare)
        np.multiply(y, 0.9, out=y)
        np.multiply(spare, 0.1, out=scratch)
        np.add(y, scratch, out=y)
        np.square(spare, out=spare)
        np.multiply(z, 0.999, out=z)
        np.multiply(spare, 0.001, out=spare)
        np.add(z, spare, out=z)
        np.sqrt(z, out=spare)
        np.multiply(spare, 31.6, out=spare)
        np.add(spare, 1e-8, out=spare)
        np.multiply(y, 10.0, out=scratch)
        np.divide(scratch, spare, out=spare)
        np.multiply(out, 0.01, out=scratch)
        np.add(spare, scratch, out=spare)
        np.multiply(spare, 1e-3, out=spare)
        np.subtract(out, spare, out=out)

    yield Case("adam", partial(cpu.adam, out, y, z, x, *scalars), adam, 7 * size)
    norms = partial(cpu.lamb_norms, out, y, z, x, *scalars[1:])
    slow = partial(reference.lamb_norms, out, y, z, x, *scalars[1:])
    yield Case("lamb_norms", norms, slow, 6 * size)
    yield Case("lamb", partial(cpu.lamb, out, y, z, 1e-3, *scalars[3:7]),
               partial(reference.lamb, out, y, z, 1e-3, *scalars[3:7]), 4 * size)  # fmt: skip
    yield Case("sum_of_squares", partial(cpu.sum_of_squares, x), partial(np.dot, x, x), size)
    yield Case("pack", partial(cpu.pack, out, [x], 1.0), partial(np.copyto, out, x), 2 * size)
    yield Case("unpack", partial(cpu.unpack, x, [out]), partial(np.copyto, out, x), 2 * size)
    yield Case("digest", partial(cpu.digest, x), partial(reference.digest, x), size)
    yield Case("finite", partial(cpu.finite, x), lambda: np.isfinite(x).all(), size)
    for form in reference.FORMATS:
        wire = np.zeros(reference.narrowed_bytes(params, form), np.uint8)
        given = (wire, out, y, spare, None, [x], [1.0], form)
        moved = 4 * size + wire.nbytes
        ours, theirs = partial(cpu.narrow_sum, *given), partial(reference.narrow_sum, *given)
        yield Case(f"narrow_sum, {form}", ours, theirs, moved)
        widen = cpu.widen, reference.widen
        ours, theirs = (partial(one, out, wire, form) for one in widen)
        yield Case(f"widen, {form}", ours, theirs, size + wire.nbytes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how fast the kernels of spotmpi are on one core, beside the fastest that NumPy "
        "has for the same and a copy of as many bytes; or, with --gpu, on one GPU beside CuPy."
    )
    parser.epilog = "example: spotmpi bench kernels --params 1000000\n\nAbout 2 minutes."
    add = parser.add_argument
    add("--params", type=int, nargs="+", metavar="N", default=_PARAMS,
        help="sizes of the arrays, in float32 (1 M, 25.6 M)")  # fmt: skip
    add("--turns", type=int, metavar="T", default=_TURNS, help=f"blocks of each side ({_TURNS})")
    add("--gpu", action="store_true", help="on CuPy's current device, beside CuPy")
    add("--json", type=Path, metavar="FILE", help="write all times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for. Blocking, minutes."""
    if min(*options.params, options.turns) < 1:
        raise UsageError("--params and --turns take numbers of at least 1")
    library = "CuPy" if options.gpu else "NumPy"
    report = Report("kernels", options.json, gpu=options.gpu)
    print(
        f"{'kernel':<18} {'floats':>7} | {'spotmpi':>9} {library:>9}  ms | times faster, of a copy"
    )
    for params in options.params:
        if options.gpu or report.has_room(4 * params * (_ARRAYS + 4), figures.size(params)):
            for case in gpu.kernel_cases(params) if options.gpu else cpu_cases(params):
                found = _measure(case, params, options.turns, options.gpu)
                report.add(to_json(found), [line(found)])
    return report.close()


def line(found: Measured) -> str:
    """A row: the library's time over ours, and a copy's of as many bytes."""
    ours, theirs = (1e3 * median(found.sides[side]) for side in ("spotmpi", found.library))
    faster = figures.times(found.sides, found.library, "spotmpi")
    share = figures.times(found.sides, "copy", "spotmpi").middle
    return (
        f"{found.name:<18} {figures.size(found.params):>7} | {ours:9.3f} {theirs:9.3f}     | "
        f"{faster.say()}, {share:.0%}"
    )


def to_json(found: Measured) -> dict[str, Any]:
    """All times, in the values of JSON."""
    seconds = {f"{side}_s": [round(s, 9) for s in times] for side, times in found.sides.items()}
    return {"kernel": found.name, "params": found.params, "bytes": found.moved, **seconds}


def _measure(case: Case, params: int, count: int, on_gpu: bool) -> Measured:
    copy, clock = (gpu.copying, gpu.clock) if on_gpu else (copying, turns.alone)
    library = "cupy" if on_gpu else "numpy"
    # The copy reads and writes as much.
    sides = {"spotmpi": case.ours, library: case.theirs, "copy": copy(case.moved // 2)}
    for step in sides.values():
        clock(step, 1)  # which may compile it
    found = turns.compare(clock, count, sides, _BLOCK, _MOST)
    return Measured(case.name, params, case.moved, library, found)
