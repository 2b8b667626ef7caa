"""Gradients of DDP that travel between hosts while the backward pass goes on, and workers that die
in the middle of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.bench.measuring.network import Network
from tests.patience import NEVER_SILENT
from tests.running import Running
from tests.torch import early


def finals(there: Network, begin: str, deaths: str) -> dict[str, str]:
    """Return what the workers that live to the end hold, by rank."""
    hosts = there.hosts_file("h1 slots=2", "h2 slots=1", "h3 slots=1")
    start = sys.executable, "-m", "spotmpi", "run", "--hosts", hosts, *NEVER_SILENT
    command = there.in_head(*start, Path(early.__file__), begin, deaths)
    job = Running(command, there.folder, environ=there.environ)
    try:
        assert job.wait() == 0, job.output
    finally:
        job.close()
    said = [one.split("FINAL ")[1].split() for one in job.output.splitlines() if "FINAL" in one]
    assert all((given != "0") == (begin == "early") for _, _, given in said)
    return {rank: held for rank, held, _ in said}


@pytest.mark.parametrize(
    "deaths",
    [
        "0@6.3,2@9.0",
        pytest.param("3@5.5,1@5.1", marks=pytest.mark.matrix),
        pytest.param("2@4.4,3@4.3,0@9.2", marks=pytest.mark.matrix),
    ],
)
def test_the_others_hold_what_they_do_if_sums_begin_late(
    network: Callable[[int], Network], deaths: str
) -> None:
    """To the bit, with sums under way for most of a pass when workers die."""
    there = network(3)
    there.limit("50mbit", "64kb")
    late, soon = (finals(there, how, deaths) for how in ("late", "early"))
    assert late == soon
    assert len({*soon.values()}) == 1
    assert soon.keys() == {*"0123"} - {one[0] for one in deaths.split(",")}
