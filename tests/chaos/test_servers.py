"""Workers die that hold a part of the model for the others, or its mirror, under a real mpirun."""

from __future__ import annotations

import pytest

from tests.chaos import model
from tests.chaos.test_revocations import check_exactly_once, run  # noqa: F401 - a fixture

SERVER = "parameterserver:shards=2,control=5"
"""With a bucket for each array, of which there are two: workers 0 and 1 hold and mirror one of
them, 1 and 2 the other one."""


@pytest.mark.parametrize(
    ("dies", "survivors"),
    [
        ("0:Fetch:9", {1, 2, 3, 4}),
        ("1:Publish:12", {0, 2, 3, 4}),
        ("0:Publish:9,1:Fetch:9", {2, 3, 4}),
        pytest.param(
            "0:Fetch:8,1:Publish:9,2:Wait:9,3:Poll:4",
            {4},
            marks=pytest.mark.promise("parameterserver with deaths"),
        ),
    ],
    ids=["who-holds", "who-mirrors", "both", "both-and-in-a-recovery"],
)
def test_what_a_lost_worker_held_is_not_lost(run, dies, survivors) -> None:  # noqa: F811
    """With a push half taken, half shown, in a round, and in a recovery."""
    job = run(5, "--strategy", SERVER, chaos=dies, script_args=["--pieces"])
    job.check_promises()
    assert job.survivors == survivors
    assert job.of("start")[0]["strategy_name"] == SERVER
    job.check_learnt()


def test_a_job_with_a_server_stops_and_goes_on(run, tmp_path) -> None:  # noqa: F811
    folder = tmp_path / "checkpoints"
    options = ["--strategy", SERVER, "--checkpoint", folder]
    first = run(4, *options, "--min-workers", "3", "--revoke", "0,2@12")
    assert first.code == 75, first.out + first.err
    second = run(2, *options, "--resume")
    shown = second.out + second.err
    assert second.code == 0, shown
    check_exactly_once(second.records, model.SAMPLES, second.passes)
    assert len({final[1] for final in second.finals}) == 1, shown
