"""Workers that die while what they have trained is kept: the one that writes it, and others."""

import numpy as np
import pytest

import spotmpi
from tests.chaos import model
from tests.chaos.test_revocations import (
    in_shared_memory,
    run,  # noqa: F401 - a fixture
)

pytestmark = in_shared_memory  # what is written is a copy of that; a plane has no part in the rest


def values(params) -> list[float]:
    """As the script prints them."""
    return [float(value) for value in model.values(params)]


@pytest.mark.parametrize(
    ("chaos", "survivors"),
    [
        ("", {0, 1, 2, 3}),
        ("0:save:1", {1, 2, 3}),
        ("0:piece:2", {1, 2, 3}),
        pytest.param("0:piece:2,1:piece:1", {2, 3}, marks=pytest.mark.promise("the end is kept")),
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
    left = {path.name for path in (tmp_path / "kept").iterdir()}
    assert left == {found.path.name, "finished.json"}


@pytest.mark.parametrize("chaos", ["", "0:save:2", "1:piece:1,0:piece:3", "0:save:3:2"])
def test_a_disk_that_is_full_at_the_end_is_waited_for_whoever_dies(
    run,  # noqa: F811
    tmp_path,
    chaos,
) -> None:
    """Each worker that comes to write finds it full at first."""
    job = run(4, "--checkpoint", tmp_path / "kept", chaos=chaos, script_args=["--refuse", "1"])
    job.check()
    assert spotmpi.load(tmp_path / "kept").complete
    assert "No space left on device; those that were there are untouched; make room" in job.err


@pytest.mark.parametrize(
    ("chaos", "args"),
    [
        ("", []),
        ("0:save:1", []),
        ("0:piece:2,1:piece:1", []),
        ("0:piece:1:3", []),
        ("2:Wait:20", []),
        ("0:save:2", ["--refuse", "1"]),
    ],
)
def test_a_job_that_is_to_end_keeps_its_steps_whoever_dies_then(
    run,  # noqa: F811
    tmp_path,
    chaos,
    args,
) -> None:
    """SIGTERM at the launcher. With a full disk it goes on, and tries again after each step."""
    folder = tmp_path / "kept"
    first = run(4, "--checkpoint", folder, chaos=chaos, script_args=["--terminate", "12", *args])
    assert first.code == 75, first.out + first.err
    assert "SIGTERM (once more ends the job at once, without a checkpoint): the" in first.err
    found = spotmpi.load(folder)
    assert not found.complete
    assert found.step == first.of("end")[0]["step"]
    second = run(3, "--checkpoint", folder, "--resume")
    second.check()
    assert second.of("resume")[0]["step"] == found.step
    assert spotmpi.load(folder).complete
