"""What is collected of how a job stands, from news that do not come together."""

from __future__ import annotations

from spotmpi.launch.control_messages import Report
from spotmpi.launch.head.fates import WorkerState
from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.head.status_report import StatusReport
from spotmpi.launcher_channel import IN_ROUND, IN_SCRIPT, Measured
from tests.saying import said


def report(standing: StatusReport, steps: int) -> Report:
    """With one worker, as its host has said last."""
    worker = Standing(steps, steps, IN_ROUND, 0.0, measured=Measured(whole=100))
    return standing.report("spotmpi-00", [WorkerState("h1", "training", "")], {0: worker}, {})


def test_no_checkpoint_is_ahead_of_the_step_that_is_shown() -> None:
    """Agents say once a second how far workers are, a worker at once what it has kept."""
    standing = StatusReport("train.py")
    standing.told(0, said("begin", training=1))
    assert report(standing, 57).step == 57
    standing.told(0, said("checkpoint", step=60, path="kept/60"))
    assert report(standing, 57).step == 60
    assert report(standing, 61).step == 61


def test_the_next_training_begins_before_the_checkpoint_of_the_one_before() -> None:
    standing = StatusReport("train.py")
    standing.told(0, said("begin", training=1))
    standing.told(0, said("checkpoint", step=60, path="kept/60"))
    standing.told(0, said("begin", training=2))
    found = report(standing, 3)
    assert found.step == 3
    assert found.checkpoint is not None
    assert found.checkpoint.step == 60


def test_who_starts_and_does_nothing_is_seen_and_counts_for_no_step() -> None:
    standing = StatusReport("train.py", resumed=40)
    idle = Standing(0, 0, IN_SCRIPT, 0.0, quiet=61.0)
    fates = [WorkerState("h1", state, "") for state in ("starting", "waiting")]
    for _ in range(2):
        standing.look(fates, {0: idle, 1: idle._replace(doing=IN_ROUND)})
        found = standing.report(
            "spotmpi-00", fates, {0: idle, 1: idle._replace(doing=IN_ROUND)}, {}
        )
    assert (found.step, found.steps_per_second) == (40, None)
    assert [one.quiet_seconds for one in found.workers] == [61.0, None]
    assert [(one.doing, one.step) for one in found.workers] == [(None, None)] * 2
