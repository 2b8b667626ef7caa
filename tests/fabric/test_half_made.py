"""A process that dies while a communicator is being made crashes no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fabric.test_mpi import over_mpi

DYING = str(Path(__file__).with_name("dying.py"))


@pytest.mark.parametrize("lacks", ["collectives", "messages"])
def test_a_communicator_that_is_being_made_may_be_revoked(tmp_path: Path, lacks: str) -> None:
    assert "SURVIVED" in over_mpi(tmp_path, 1, DYING, lacks, "guarded")


@pytest.mark.parametrize("lacks", ["collectives", "messages"])
def test_this_mpi_crashes_if_it_is_not_guarded(tmp_path: Path, lacks: str) -> None:
    """Once it does not any more, `spotmpi.fabric.mpi.half_made` has had its time."""
    said = over_mpi(tmp_path, 1, DYING, lacks, "bare", code=None)
    assert "SURVIVED" not in said
    assert "Signal: Segmentation fault" in said


@pytest.mark.campaign
def test_workers_die_while_others_shrink(tmp_path: Path) -> None:
    """Unguarded, the others crashed in 16 of 150 such runs."""
    for seed in range(200):
        said = over_mpi(tmp_path, 4, DYING, "together", "guarded", str(seed), code=None)
        assert said.count("SURVIVED") == 2, said
