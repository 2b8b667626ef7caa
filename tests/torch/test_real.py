"""A torch script with real processes, two of which are killed in the backward pass."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from tests.running import Running

SCRIPT = Path(__file__).parent / "killed.py"


@pytest.mark.promise("a torch script with deaths in the backward pass, the first worker among them")
@pytest.mark.parametrize("strategy", ["ssgd", "diloco:h=8", "sma", "adpsgd:control=16"])
@pytest.mark.first("ssgd")
def test_a_torch_script_goes_on_without_those_killed(tmp_path: Path, strategy: str) -> None:
    check_killed(tmp_path, strategy, "cpu")


def check_killed(folder: Path, strategy: str, device: str) -> None:
    """Run the script and check what its survivors say."""
    run = "-m", "spotmpi", "run", "-n", "4", "--strategy", strategy
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    running = Running([sys.executable, *run, SCRIPT, device], folder, environ=environ)
    try:
        assert running.wait() == 0, running.output
    finally:
        running.close()
    finals = [
        line.split("FINAL ")[1].split() for line in running.output.splitlines() if "FINAL " in line
    ]
    assert {worker for worker, *_ in finals} == {"1", "3"}, running.output
    assert len({model for _, model, _ in finals}) == 1, running.output
    assert all(float(accuracy) > 0.8 for *_, accuracy in finals), running.output
