"""Workers die, join, leave and stop in the very round in which all change the strategy.

Where a death fell is said by the trace: its recovery is of the first step of that round, or of the
first step with the new strategy if the others had completed the round before they met the loss.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from spotmpi.optimizers import Momentum
from spotmpi.replay import replay
from spotmpi.strategies import named
from spotmpi.trace import records as trace
from tests import learning
from tests.chaos import model
from tests.chaos.test_revocations import between_hosts, run  # noqa: F401 - a fixture
from tests.launch.asking import folder_of
from tests.launch.conftest import start  # noqa: F401 - a fixture
from tests.running import Running, unnamed

SCRIPT = Path(__file__).with_name("changing.py")
Records = list[trace.Record]


def last_round(records: Records) -> Records:
    """The lines of the steps of the last round in the trace."""
    steps = [one for one in records if one["event"] == "step"]
    same = takewhile(lambda one: one["round"] == steps[-1]["round"], reversed(steps))
    return [*same][::-1]


def round_before(records: Records, changed: trace.Record) -> range:
    """The steps of the round after which all changed, and the step that follows it."""
    before = last_round(records[: records.index(changed)])
    assert before[-1]["step"] == changed["step"] - 1
    return range(before[0]["step"], changed["step"] + 1)


def steps_of_losses(records: Records) -> dict[int, int]:
    """The step whose line follows the recovery from its loss, for each lost worker."""
    return {
        lost: one["step"] for one in records if one["event"] == "recovery" for lost in one["lost"]
    }


def first_change(records: Records) -> trace.Record:
    return next(one for one in records if one["event"] == "strategy")


def changes(records: Records) -> list[tuple[str, str]]:
    """From what to what, in turn. A leader may write a line again, if the one before died."""
    told = {
        one["step"]: (one["before"], one["strategy_name"])
        for one in records
        if one["event"] == "strategy"
    }
    return [*told.values()]


# Deaths.


def check_deaths(job: Any, chaos: str) -> None:
    """Each death fell into the round of the first change, or between this one and the next."""
    changed = first_change(job.records)
    about, lost = round_before(job.records, changed), steps_of_losses(job.records)
    deaths = [one.split(":") for one in chaos.split(",")]
    assert lost.keys() == {int(worker) for worker, *_ in deaths}
    for worker, moment, _ in deaths:
        # Without the word of a worker that wishes nobody completes the round.
        within = [about[0]] if moment == "wishes" else [about[0], about[-1]]
        assert lost[int(worker)] in within, (worker, moment, about, lost)


@pytest.mark.promise("deaths in the round of a change of strategy")
def test_the_leader_dies_with_its_wish_and_the_next_one_before_it_changes(run) -> None:  # noqa: F811
    """The wish is in the leader's word, which nobody gets. The next leader says it again in the
    same round, and dies when that is complete."""
    chaos = "0:wishes:1,1:change:1"
    job = run(4, chaos=chaos, script_args=["--change", "localsgd:h=4", "ssgd"])
    job.check(others_too=[named("localsgd:h=4")])
    assert job.survivors == {2, 3}
    assert changes(job.records)[:2] == [("ssgd", "localsgd:h=4"), ("localsgd:h=4", "ssgd")]
    check_deaths(job, chaos)


DEATHS = [
    "0:wishes:1",
    "2:wishes:1",
    "0:change:1",
    "2:change:1",
    "0:changed:1",
    "2:changed:1",
    "0:wishes:1,1:wishes:2",
    "0:change:1,1:change:1,2:change:1",
]
"""Of the leader, of another worker, of several: one after the other, and of those that have
completed the round, so that the others may have missed it."""

CHANGES = [
    ("localsgd:h=4", "ssgd"),
    ("diloco:h=8,outer=0.5,momentum=0.5,fragments=2,delay=2,mix=0.5", "ssgd"),
    ("ssgd", "adpsgd:control=5"),
    ("adpsgd:control=5", "hogwild:control=5"),
    ("hogwild:control=5", "parameterserver:shards=2,control=5"),
    ("parameterserver:shards=2,control=5", "gossip:control=5"),
    ("gossip:control=5", "ssgd"),
]


@pytest.mark.parametrize(
    ("before", "after", "chaos"),
    [
        *(("ssgd", "localsgd:h=4", chaos) for chaos in DEATHS),
        *((*change, "0:wishes:1,2:changed:1") for change in CHANGES),
        *((*change, "0:change:1,2:wishes:1") for change in CHANGES),
    ],
)
def test_workers_die_in_the_round_of_a_change(run, before: str, after: str, chaos: str) -> None:  # noqa: F811
    args = ["--change", after]
    job = run(5, "--strategy", before, chaos=chaos, script_args=args)
    job.check_promises()
    assert changes(job.records) == [(before, after)]
    assert job.survivors == {*range(5)} - {int(one[0]) for one in chaos.split(",")}
    check_deaths(job, chaos)


@between_hosts
@pytest.mark.parametrize("chaos", ["0:wishes:1,2:changed:1", "0:change:1,1:change:1"])
def test_workers_of_several_hosts_die_in_the_round_of_a_change(run, chaos: str) -> None:  # noqa: F811
    job = run(5, chaos=chaos, script_args=["--change", "localsgd:h=4"])
    job.check(others_too=[named("localsgd:h=4")])
    check_deaths(job, chaos)


# Joins, leaves and stops.

Start = Callable[..., Running]
PAIRS = [("ssgd", "localsgd:h=4"), ("localsgd:h=4", "ssgd"), ("adpsgd:control=5", "ssgd")]
pairs = pytest.mark.parametrize(("before", "after"), PAIRS)
somebody_dies = pytest.mark.parametrize("dies", [[], [1]], ids=["calm", "and-one-dies"])


def check(job: Running, file: Path, before: str, after: str, survivors: set[int]) -> Records:
    """It has finished, and all that is promised of it holds."""
    assert job.wait() == 0, job.output
    records = learning.check(job.output, file, survivors)
    if "control" not in before:  # else there is no replay
        params = replay(
            records,
            model.params(),
            lambda p, samples: model.gradient(p, samples)[1],
            Momentum(lr=0.02),
            named(before),
            [named(after)],
        )
        assert model.fingerprint(params) in unnamed(job.output)
    return records


@pairs
@somebody_dies
def test_a_newcomer_is_admitted_after_the_round_of_a_change(
    start: Start,  # noqa: F811
    tmp_path: Path,
    before: str,
    after: str,
    dies: list[int],
) -> None:
    """It learns the new strategy. Another worker is killed in that very round, or nobody."""
    file, options = tmp_path / "trace.jsonl", ["--strategy", before, "--revoke", "2@5"]
    job = start(
        "run", "-n", 3, "--replace", "--trace", file, *options, SCRIPT, before, after, 3, *dies
    )
    survivors = {0, 3, 4} if dies else {0, 1, 3}  # worker 1 is replaced as well
    records = check(job, file, before, after, survivors)
    changed = first_change(records)
    joins = [one for one in records if one["event"] == "change" and 3 in one["joined"]]
    assert [one["step"] for one in joins] == [changed["step"]]
    for worker in dies:
        assert steps_of_losses(records)[worker] == round_before(records, changed)[0]


@pairs
@somebody_dies
@pytest.mark.parametrize("leaves", [0, 2])
def test_a_worker_leaves_after_the_round_of_a_change(
    start: Start,  # noqa: F811
    tmp_path: Path,
    before: str,
    after: str,
    leaves: int,
    dies: list[int],
) -> None:
    """The leader, whose wish it was, or another one."""
    file, options = tmp_path / "trace.jsonl", ["--strategy", before]
    remain = {0, 1, 2, 3} - {leaves, *dies}
    job = start(
        "run", "-n", 4, "--trace", file, *options, SCRIPT, before, after, len(remain), *dies
    )
    until_step(job, file, 10)
    asked = start("shrink", "--worker", leaves, "--job", folder_of(job).name)
    assert asked.wait() == 0, asked.output
    records = check(job, file, before, after, remain)
    changed = first_change(records)
    (left,) = (one for one in records if one["event"] == "change")
    assert (left["step"], left["left"]) == (changed["step"], [leaves])
    for worker in dies:
        assert steps_of_losses(records)[worker] == round_before(records, changed)[0]


@pairs
@somebody_dies
def test_all_stop_after_the_round_of_a_change_and_change_when_they_go_on(
    start: Start,  # noqa: F811
    tmp_path: Path,
    before: str,
    after: str,
    dies: list[int],
) -> None:
    """They stop before they carry the change out. The checkpoint is of the old strategy, and the
    script's wish is heard in the first round of the job that resumes."""
    file, kept = tmp_path / "trace.jsonl", ["--checkpoint", tmp_path / "kept"]
    options = ["--trace", file, "--strategy", before, *kept]
    job = start("run", "-n", 3, *options, SCRIPT, before, after, 3, *dies)
    until_step(job, file, 10)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait() == 75, job.output
    stopped = list(trace.read(file))
    assert not [one for one in stopped if one["event"] == "strategy"]
    assert stopped[-1]["outcome"] == "stopped"
    wished = last_round(stopped)
    due = int((tmp_path / "due").read_text())
    (before_that, *_) = last_round(stopped[: stopped.index(wished[0])])
    assert before_that["round"] < due <= wished[0]["round"]
    assert stopped[-1]["step"] == wished[-1]["step"] + 1
    for worker in dies:
        assert steps_of_losses(stopped)[worker] == wished[0]["step"]
    (tmp_path / "due").write_text("0")
    again = start("run", "-n", 2, *options, "--resume", SCRIPT, before, after, 2)
    records = check(again, file, before, after, {0, 1})
    changed = first_change(records)
    resumed = next(one for one in records if one["event"] == "resume")
    assert resumed["step"] == stopped[-1]["step"] == round_before(records, changed)[0]


def until_step(job: Running, file: Path, step: int) -> None:
    """Wait until the trace has so many lines of steps."""
    while learning.steps(file) < step:
        assert job.alive, job.wait()
