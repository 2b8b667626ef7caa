"""`spotmpi.training.state.meter`: what a worker measures of itself."""

from __future__ import annotations

from spotmpi.launcher_channel import Measured
from spotmpi.training.state.meter import Meter


def test_a_meter_tells_computing_from_waiting_and_stalls_from_both() -> None:
    meter = Meter()
    meter.waits(1.0)
    meter.computes(3.0)
    meter.waits(7.0)
    assert meter.measured(None) == Measured(0, 0, 4.0, 2.0, 0.0), "the wait is not over"
    meter.stalls(0.5)
    assert meter.measured(None).stalled == 0.0, "nor is what it was for"
    meter.used(64)
    meter.computes(8.0)
    assert meter.measured(90) == Measured(90, 64, 4.0, 3.0, 0.5)


def test_a_survey_does_not_begin_the_launcher_s_sums_anew() -> None:
    meter = Meter()
    meter.computes(0.0)
    meter.waits(1.0)
    meter.reset()
    meter.computes(2.0)
    meter.waits(4.0)
    assert meter.measured(None).computing == 3.0
    assert meter.pace(0).seconds == 2.0
