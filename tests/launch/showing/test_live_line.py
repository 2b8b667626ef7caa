"""How a job stands in one line: all of it where there is room, what matters most where not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotmpi.launch.control_messages import SavedAt
from spotmpi.launch.head.fates import WorkerState
from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.head.status_report import StatusReport
from spotmpi.launch.showing.live_line import banner, line, pace
from spotmpi.launcher_channel import IN_ROUND, IN_SCRIPT
from tests.launch.commands.test_status_table import status

ALL = {
    "step": 1240,
    "steps_in_all": 5000,
    "loss": 0.31274,
    "steps_per_second": 12.345,
    "samples_per_second": 3150.4,
    "seconds_to_go": 304.6,
    "checkpoint": SavedAt(1200, "/runs/a/step-1200"),
}
TRAINING = [WorkerState("h1", "training", "")] * 8
WHOLE = (
    "step 1240 of 5000, loss 0.3127, 12.35 steps/s, 3150 samples/s, 8 workers, 5 min 4 s to go, "
    "checkpoint 1200"
)


def test_everything_is_in_it() -> None:
    assert line(status(TRAINING, **ALL)) == WHOLE
    assert line(status(TRAINING, **ALL), len(WHOLE)) == WHOLE


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (79, "step 1240 of 5000, loss 0.3127, 12.35 steps/s, 8 workers, 5 min 4 s to go"),
        (60, "step 1240 of 5000, loss 0.3127, 8 workers, 5 min 4 s to go"),
        (34, "step 1240 of 5000, loss 0.3127"),
        (20, "step 1240 of 5000"),
        (7, "step 12"),
    ],
)
def test_what_matters_least_goes_first_where_it_is_narrow(width: int, said: str) -> None:
    assert line(status(TRAINING, **ALL), width) == said


def test_what_is_not_known_is_not_said() -> None:
    lost = WorkerState("h2", "revoked", "SIGKILL")
    assert line(status([*TRAINING, lost], step=3)) == "step 3, 8 workers"


def test_before_the_training_it_says_who_is_ready() -> None:
    fates = [*TRAINING[:3], WorkerState("h1", "starting", "")]
    assert line(status(fates, seconds=7.0)) == "3 of 4 workers ready after 7 s"
    starting = status([WorkerState("h1", "starting", "")] * 3, seconds=4.0)
    some = tuple(replace(one, pid=40 + one.worker or None) for one in starting.workers[:2])
    said = line(replace(starting, workers=(*some, *starting.workers[2:])))
    assert said == "0 of 3 workers ready (2 have started) after 4 s"


def test_a_worker_that_others_wait_for_is_named() -> None:
    standing = StatusReport("train.py")
    workers = {0: Standing(5, 5, IN_ROUND, -1e6), 1: Standing(4, 4, IN_SCRIPT, -1e6)}
    said = line(standing.report("spotmpi-00", TRAINING[:2], workers, {}))
    assert said.startswith("step 5, 2 workers, worker 1 awaited for 1")


@pytest.mark.parametrize(
    ("hosts", "resumed", "said"),
    [
        (["a"], None, "job spotmpi-x: 1 worker on 1 host trains"),
        (["a", "a"], None, "job spotmpi-x: 2 workers on 1 host train"),
        (
            ["a", "a", "b", "c"],
            70,
            "job spotmpi-x: 4 workers on 3 hosts train; resumed from step 70",
        ),
    ],
)
def test_the_banner(hosts: list[str], resumed: int | None, said: str) -> None:
    assert banner("spotmpi-x", hosts, resumed) == said


def test_the_pace_is_empty_where_nothing_is_known() -> None:
    def of(**more: Any) -> str:
        return pace(status(TRAINING, **more))

    assert of() == ""
    assert of(steps_per_second=0.5) == "0.5 steps/s"
    assert of(**ALL) == "12.35 steps/s, 3150 samples/s, 5 min 4 s to go"
