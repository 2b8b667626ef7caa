"""Workers die over sums of arrays of the script's own, under a real mpirun."""

from __future__ import annotations

import pytest

from tests.chaos.test_revocations import run  # noqa: F401 - a fixture


@pytest.mark.parametrize("run", ["Plain", "Node", "Hosts"], indirect=True)
@pytest.mark.parametrize("size", [3, 3000, 300_000])
@pytest.mark.parametrize(
    ("dies", "survivors"),
    [
        *((f"2:Wait:{count}", {0, 1, 3}) for count in range(12, 16)),
        pytest.param(
            "0:Wait:17,3:Send:1,2:Wait:31",
            {1},
            marks=pytest.mark.promise("sums of any arrays with deaths"),
        ),
        ("1:Start:21,0:Rebuild:1", {2, 3}),
    ],
)
@pytest.mark.first("0:Wait:17,3:Send:1,2:Wait:31-survivors4-3000-Node")
def test_a_worker_dies_while_others_sum(run, size, dies, survivors) -> None:  # noqa: F811
    """When all ask, when the arrays are summed, and in a recovery; in a sum by MPI, in memory that
    workers share, and between hosts."""
    job = run(4, chaos=dies, script_args=["--sums", f"{size}", "--late"], passes=1)
    job.check()
    assert job.survivors == survivors
