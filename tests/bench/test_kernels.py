"""``bench kernels``: that both sides compute the same, and that it runs. Never a timing."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi import cli
from spotmpi.bench import kernels
from spotmpi.bench.kernels import Measured
from spotmpi.bench.measuring import gpu_cases
from spotmpi.kernels import cpu, gpu
from tests import fake_cupy


def test_every_kernel_of_this_host_is_measured() -> None:
    measured = {case.name.split(",")[0].split()[0] for case in kernels.cpu_cases(2048)}
    assert measured == {*cpu.__all__} - {"warm"}
    assert all(inspect.isfunction(getattr(cpu, name)) for name in measured)


class Elementwise:
    """As much of CuPy's as the bench uses, on float32; it runs on the CPU."""

    def __init__(self, given: str, changed: str, code: str, _: str) -> None:
        self._names = [one.split()[1] for one in f"{given}, {changed}".split(", ")]
        self._code = code

    def __call__(self, *values: Any) -> None:
        lies = [isinstance(value, fake_cupy.ndarray) for value in values]
        each = list(zip(self._names, lies, strict=True))
        taken = ", ".join(f"T* {name}_" if lie else f"T {name}" for name, lie in each)
        seen = " ".join(f"T& {name} = {name}_[i_];" for name, lie in each if lie)
        source = (
            "#include <cmath>\nusing std::sqrt;\ntypedef float T;\n"
            f'extern "C" __global__ void theirs({taken}, unsigned long long n_) {{\n'
            f"for (unsigned long long i_ = 0; i_ < n_; ++i_) {{ {seen} {self._code}; }} }}"
        )
        module = fake_cupy.Module()
        module.load(source.encode())
        given = [
            value if lie else np.float32(value) for value, lie in zip(values, lies, strict=True)
        ]
        module.get_function("theirs")((1,), (1,), (*given, np.uint64(values[-1].size)))


def arrays_in(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, fake_cupy.ndarray):
            yield value
        elif isinstance(value, list):
            yield from arrays_in(value)


@pytest.mark.matrix
def test_kernels_are_measured_beside_the_same_in_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_cupy, "ElementwiseKernel", Elementwise, raising=False)
    for name in ("add", "copyto", "dot", "isfinite", "sum"):
        monkeypatch.setattr(fake_cupy, name, nothing, raising=False)
    compared = set()
    with fake_cupy.installed():
        for case in gpu_cases.kernel_cases(256):
            if not isinstance(getattr(case.theirs, "func", None), Elementwise):
                continue
            found, chance = [], np.random.default_rng(1)
            arrays = {id(one): one for one in arrays_in([*case.ours.args, *case.theirs.args])}
            before = [chance.uniform(0.5, 2, one.size).astype("float32") for one in arrays.values()]
            for step in (case.ours, case.theirs):
                for array, values in zip(arrays.values(), before, strict=True):
                    array.set(values)
                step()
                found.append([array.get() for array in arrays.values()])
            assert any((a != b).any() for a, b in zip(found[0], before, strict=True)), case.name
            for a, b in zip(*found, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, err_msg=case.name)
            compared.add(case.name.split()[0])
    assert compared == {"blend", "exchange", "scaled_sum", "sgd", "momentum", "adam", "lamb"}


def nothing(*_: object, **__: object) -> int:
    """What CuPy does on a device that is none."""
    return 0


@pytest.mark.matrix
def test_every_kernel_of_a_gpu_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a device that is none: CuPy's side does nothing there."""
    theirs = {
        "ElementwiseKernel": Elementwise,
        "isfinite": lambda _: np.ones(1, bool),
        **dict.fromkeys(("add", "copyto", "dot", "sum"), nothing),
    }
    for name, does in theirs.items():
        monkeypatch.setattr(fake_cupy, name, does, raising=False)
    with fake_cupy.installed():
        measured = {case.name.split(",")[0].split()[0] for case in gpu_cases.kernel_cases(2048)}
        assert measured == {*gpu.__all__}
        assert cli.main(["bench", "kernels", "--gpu", "--params", "2048", "--turns", "2"]) == 0
    assert "CuPy" in capsys.readouterr().out


def test_a_gpu_that_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for bench in ("kernels", "step", "recovery"):
        assert cli.main(["bench", bench, "--gpu"]) == 2
        assert "CuPy finds no GPU" in capsys.readouterr().err


def test_a_row_says_how_many_times_faster_than_numpy_and_which_part_of_a_copy() -> None:
    sides = {"spotmpi": [0.002, 0.002], "numpy": [0.006, 0.006], "copy": [0.001, 0.001]}
    row = kernels.line(Measured("momentum", 1_000_000, 20_000_000, "numpy", sides))
    assert row.split() == [
        *("momentum", "1", "M", "|", "2.000", "6.000", "|"),
        *("3.00", "(3.00", "..", "3.00),", "50%"),
    ]


def test_kernels_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernels.json"
    arguments = ["--params", "2048", "--turns", "2", "--json", str(file)]
    assert cli.main(["bench", "kernels", *arguments]) == 0
    found = json.loads(file.read_text())
    assert found["failures"] == []
    cells = {cell["kernel"]: cell for cell in found["cells"]}
    for cell in cells.values():
        for side in ("spotmpi", "numpy", "copy"):
            assert len(cell[f"{side}_s"]) == 2
            assert min(cell[f"{side}_s"]) > 0
    assert cells["scaled_sum of 8"]["bytes"] == 9 * 4 * 2048
    assert "momentum" in capsys.readouterr().out


def test_wrong_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "kernels", "--params", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
