"""Which crashes are MPI's: the stacks that a worker leaves behind say it."""

from __future__ import annotations

from pathlib import Path

import pytest

import spotmpi
from spotmpi.launch.host import crashes

STACKS = """\
Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "{other}", line 7 in other

Current thread 0x00007f0000000002 (most recent call first):
  File "{innermost}", line 42 in innermost
  File "{other}", line 8 in outer
"""
CALLS, OTHER = "fabric/mpi/calls.py", "fabric/planes/rings.py"


@pytest.mark.parametrize(
    ("innermost", "other", "in_mpi"),
    [
        (CALLS, OTHER, True),
        ("fabric/mpi/line.py", OTHER, True),
        ("fabric/mpi/half_made.py", CALLS, False),
        (OTHER, CALLS, False),
    ],
)
def test_mpi_crashed_if_the_innermost_frame_called_it(
    innermost: str, other: str, in_mpi: bool
) -> None:
    """`half_made` writes to memory itself: if that is wrong, it is a bug of spotmpi."""
    package = Path(spotmpi.__file__).parent
    assert all((package / one).exists() for one in (innermost, other))
    stacks = STACKS.format(innermost=package / innermost, other=package / other)
    assert crashes.in_mpi(stacks) == in_mpi
