"""Workers that die while what they have trained is kept: the one that writes it, and others."""

import numpy as np
import pytest

import spotmpi
from tests.chaos import model
from tests.chaos.test_revocations import run  # noqa: F401 - a fixture


def values(params) -> list[float]:
    """As the script prints them."""
    return [float(value) for value in model.values(params)]


@pytest.mark.parametrize(
    ("chaos", "survivors"),
    [
        ("", {0, 1, 2, 3}),
        ("0:save:1", {1, 2, 3}),
        ("0:piece:2", {1, 2, 3}),
        ("0:piece:2,1:piece:1", {2, 3}),
        ("0:piece:1,1:piece:2,2:save:1", {3}),
        ("0:piece:2:2", {0, 1, 3}),
    ],
)
def test_the_end_is_kept_whoever_dies_while_it_is_written(
    run,  # noqa: F811
    tmp_path,
    chaos,
    survivors,
) -> None:
    """Nobody goes before it is on the disk, so that all but one may die."""
    job = run(4, "--checkpoint", tmp_path / "kept", chaos=chaos)
    job.check()
    assert job.survivors == survivors
    found = spotmpi.load(tmp_path / "kept")
    assert found.complete
    assert found.step == int(job.finals[0][3])
    np.testing.assert_array_equal(values(found.params), [float(x) for x in job.finals[0][4:]])
    assert sum(1 for _ in (tmp_path / "kept").iterdir()) == 1, "something was left behind"
