"""FSDP: parts of the parameters on each worker, with and without a second replica."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from tests.launch.conftest import start  # noqa: E402, F401
from tests.torch.test_newcomers import installed  # noqa: E402

SCRIPT = Path(__file__).parent / "sharded.py"

BY_GLOO = -7.7275386
"""What the same script came to with torchrun and gloo."""


@pytest.mark.parametrize(
    ("death", "left"), [("3@5", "01"), ("0@5", "23"), ("1~5", "23"), ("", "0123")]
)
@pytest.mark.first("3@5-01")
@pytest.mark.promise("a replica of an FSDP script that loses one of its parts")
def test_the_other_replica_goes_on(start: Any, death: str, left: str) -> None:  # noqa: F811
    check_replicas(start, "cpu", death, left)


def check_replicas(start: Any, device: str, death: str, left: str) -> None:  # noqa: F811
    """Have a worker of two replicas die. Those that are left hold the same."""
    installed()
    running = start("run", "-n", 4, SCRIPT, device, 2, death or "none")
    assert running.wait() == 0, running.output
    finals = dict(re.findall(r"FINAL (\d) (\S+)", running.output))
    assert "".join(sorted(finals)) == left, running.output
    assert len({*finals.values()}) == 1, running.output
    if death:
        mate = {"3": 2, "0": 1, "1": 0}[death[0]]
        said = f"that only rank {death[0]} had is lost: rank {mate} ends, too; others have all"
        assert said in running.output
        assert "2 workers finished, 2 were revoked" in running.output
    else:
        assert float(finals["0"]) == pytest.approx(BY_GLOO, abs=1e-5 if device == "cpu" else 1e-3)


@pytest.mark.parametrize(
    ("dimensions", "deaths", "lost"),
    [(1, "1@5", 1), (1, "0~5", 0), (1, "1~11", 1), (2, "1@5,2@5", "[12]")],
)
@pytest.mark.first("1-1~11-1")
def test_a_part_that_nobody_else_has_is_named(
    start: Any,  # noqa: F811
    dimensions: int,
    deaths: str,
    lost: object,
) -> None:
    check_lost_part(start, "cpu", dimensions, deaths, lost)


def check_lost_part(start: Any, device: str, dimensions: int, deaths: str, lost: object) -> None:  # noqa: F811
    """In place of it there would be another one's, and the model would be rubbish. After the last
    step, too, when the script asks for the whole parameters."""
    installed()
    workers = 2 + 2 * (dimensions == 2)
    running = start("run", "-n", workers, SCRIPT, device, dimensions, deaths)
    assert running.wait() == 1, running.output
    why = f"PeersLost: the part of the parameters that only rank {lost} had is lost"
    assert re.search(why, running.output), running.output
    assert "FINAL" not in running.output


@pytest.mark.matrix
def test_sharded_parameters_are_not_kept(start: Any) -> None:  # noqa: F811
    installed()
    running = start("run", "-n", 2, "--checkpoint", "kept", SCRIPT, "cpu", 1, "none")
    assert running.wait() == 1, running.output
    assert "gradients were summed outside of a pass:" in running.output
