"""Workers die that share a model with others of their host, also over it, under a real mpirun."""

from __future__ import annotations

import pytest

from tests.chaos import model
from tests.chaos.test_revocations import check_exactly_once, run  # noqa: F401 - a fixture

HOGWILD = "hogwild:control=5"

on_a_host_or_several = pytest.mark.parametrize(
    "run", ["Node", pytest.param("Hosts", marks=pytest.mark.matrix)], indirect=True
)
"""Of the latter, workers 1, 2 and 4 are on one."""


@on_a_host_or_several
@pytest.mark.parametrize(
    ("dies", "survivors"),
    [
        ("1:AddUp:9", {0, 2, 3, 4}),
        ("1:array:12", {0, 2, 3, 4}),
        ("2:array:8,4:array:12", {0, 1, 3}),
        pytest.param(
            "0:AddUp:7,1:array:6,2:Wait:9,3:Poll:4",
            {4},
            marks=pytest.mark.promise("hogwild with deaths"),
        ),
    ],
    ids=["before", "in-the-middle", "two", "all-but-one"],
)
def test_others_go_on_with_the_model_that_they_share(run, dies, survivors) -> None:  # noqa: F811
    """With one of two arrays added, in a round, and in a recovery."""
    job = run(5, "--strategy", HOGWILD, chaos=dies)
    job.check_promises()
    assert job.survivors == survivors
    assert job.of("start")[0]["strategy_name"] == HOGWILD
    job.check_learnt()


@pytest.mark.parametrize("run", ["Plain"], indirect=True)
def test_workers_that_cannot_share_memory_meet_in_rounds(run) -> None:  # noqa: F811
    job = run(4, "--strategy", HOGWILD, "--revoke", "1@9", chaos="2:AddUp:9")
    job.check_promises()
    assert job.survivors == {0, 3}
    job.check_learnt()


@on_a_host_or_several
def test_they_begin_to_share_and_leave_it_whoever_dies(run) -> None:  # noqa: F811
    args = ["--change", HOGWILD, "ssgd", HOGWILD, "adpsgd:control=5"]
    options = ["--strategy", "ssgd", "--revoke", "0@8"]
    job = run(5, *options, chaos="2:array:9", script_args=args, passes=6)
    job.check_promises()
    assert job.survivors == {1, 3, 4}
    assert {one["strategy_name"] for one in job.of("strategy")} == {*args[1:]}


@on_a_host_or_several
def test_a_job_that_shares_a_model_stops_and_goes_on(run, tmp_path) -> None:  # noqa: F811
    folder = tmp_path / "checkpoints"
    options = ["--strategy", HOGWILD, "--checkpoint", folder]
    first = run(4, *options, "--min-workers", "3", "--revoke", "0,2@12")
    assert first.code == 75, first.out + first.err
    second = run(2, *options, "--resume")
    shown = second.out + second.err
    assert second.code == 0, shown
    check_exactly_once(second.records, model.SAMPLES, second.passes)
    assert len({final[1] for final in second.finals}) == 1, shown


def test_a_slow_worker_holds_nobody_up(run) -> None:  # noqa: F811
    job = run(4, "--strategy", HOGWILD, script_args=["--slow", "1"], passes=9)
    job.check_promises()
    used = dict.fromkeys(range(4), 0)
    for record in job.of("step")[10:]:
        for one in record["contributions"]:
            used[one["worker"]] += one["weight"]
    assert used[1] < 0.7 * min(used[0], used[2], used[3])
