"""Deaths among workers whose arrays lie on a device that is none: real processes, a real mpirun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.on_devices import CASES, check
from tests.gpu.test_trainings import large
from tests.gpu_on_cpu import FOLDER


@pytest.fixture(autouse=True)
def _kernels_are_compiled_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path_factory.getbasetemp() / "kernels"
    kept.mkdir(exist_ok=True)
    monkeypatch.setenv(FOLDER, str(kept))


PROMISED = "some go on by the record of others"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(PROMISED, marks=pytest.mark.promise("sums of devices")),
        *sorted(CASES.keys() - {PROMISED}),
    ],
)
def test_whoever_dies_the_others_train_on(
    name: str, run_spotmpi: Callable[..., object], tmp_path: Path
) -> None:
    check(CASES[name], "fake", run_spotmpi, tmp_path / "trace.jsonl")


@pytest.mark.parametrize("deaths", [[], ["2@3:0"], ["0@2:5", "3@4:1"]], ids="+".join)
def test_what_is_to_be_run_on_a_gpu_runs_here(
    deaths: list[str], run_spotmpi: Callable[..., object], tmp_path: Path
) -> None:
    """With small arrays."""
    large(run_spotmpi, tmp_path, 4, "fake", 20_000, 8, deaths)
