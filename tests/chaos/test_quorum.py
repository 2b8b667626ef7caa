"""Workers that are late, and die while the others wait for them or not, under a real mpirun."""

from __future__ import annotations

from collections import Counter

import pytest

from spotmpi.optimizers import Momentum
from spotmpi.replay import replay, steps
from spotmpi.strategies import named
from tests.chaos import model
from tests.chaos.test_revocations import between_hosts, run  # noqa: F401 - a fixture

QUORUM = "diloco:h=5,momentum=0.5,quorum=0.5,grace=0.01"
NAME = "diloco:h=5,outer=0.7,momentum=0.5,quorum=0.5,grace=0.01"


def check(job, survivors) -> None:
    job.check_promises()
    assert job.survivors == survivors
    assert job.of("start")[0]["strategy_name"] == NAME
    again = replay(
        job.records,
        model.params(job.wide),
        lambda params, samples: model.gradient(params, samples)[1],
        Momentum(lr=0.02),
        named(QUORUM),
    )
    assert model.fingerprint(again) == job.finals[0][1], "the order of summation is ours"


DIES_LATE = pytest.mark.parametrize(
    ("dies", "lost"),
    [
        ("1:evaluate:1", {1}),
        ("1:Signals:1", {1}),
        ("1:Signal:2", {1}),
        ("1:evaluate:1,0:Signal:1", {0, 1}),
        pytest.param(
            "1:Signals:1,2:Wait:6,3:Rebuild:1",
            {1, 2, 3},
            marks=pytest.mark.promise("diloco with a quorum and deaths"),
        ),
    ],
    ids=[
        "in-the-middle-of-a-step",
        "after-a-step",
        "before-it-tells-that-it-has-come",
        "with-one-that-has-come",
        "and-others-in-a-round-and-a-recovery",
    ],
)


@DIES_LATE
def test_a_late_worker_dies(run, dies, lost) -> None:  # noqa: F811
    """It is ten times slower, and takes two seconds for its first step."""
    args = ["--slow", "1", "--evaluate", "1@0"]
    job = run(5, "--strategy", QUORUM, chaos=dies, script_args=args)
    check(job, {0, 1, 2, 3, 4} - lost)


@pytest.mark.matrix
@between_hosts
@DIES_LATE
def test_a_late_worker_of_several_hosts_dies(run, dies, lost) -> None:  # noqa: F811
    args = ["--slow", "1", "--evaluate", "1@0"]
    job = run(5, "--strategy", QUORUM, chaos=dies, script_args=args)
    check(job, {0, 1, 2, 3, 4} - lost)


def of_the_first_round(job) -> Counter[int]:
    """What each worker has brought to it."""
    found: Counter[int] = Counter()
    for record in steps(job.records):
        if record["round"] == steps(job.records)[0]["round"]:
            for one in record["contributions"]:
                found[one["worker"]] += one["weight"]
    return found


@pytest.mark.parametrize("strategy", [QUORUM, QUORUM.replace("quorum=0.5", "quorum=1")])
def test_a_late_worker_is_cut_short_and_a_count_of_steps_ends_all_loops(run, strategy) -> None:  # noqa: F811
    args = ["--slow", "1", "--evaluate", "1@0", "--most", "23"]
    job = run(4, "--strategy", strategy, script_args=args, passes=9)
    assert job.code == 0, job.out + job.err
    assert job.survivors == {0, 1, 2, 3}
    assert len({final[1] for final in job.finals}) == 1, job.out
    assert 23 <= len(steps(job.records)) < 28
    brought = of_the_first_round(job)
    assert set(brought) == {0, 1, 2, 3}
    whole = 5 * 4
    if strategy != QUORUM:
        assert set(brought.values()) == {whole}
        return
    assert 4 <= brought[1] < whole
    # Two of four are the quorum. The third one may be late as well, on busy cores.
    assert list(brought.values()).count(whole) >= 2
    assert all(one % 4 == 0 for one in brought.values())
