"""How a training goes, as one worker knows it, on a clock of its own."""

from __future__ import annotations

import pytest

from spotmpi.optimizers import SGD
from spotmpi.policies import Fixed, Metrics, ThroughputBelow
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.paces import Pace
from spotmpi.strategies import ADPSGD, SSGD, LocalSGD
from spotmpi.training.model import Model
from spotmpi.training.state.rate import Rate
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps.strategy_survey import StrategySurvey
from tests.simulated import params

WORKERS = 2
COMPUTES = 0.8
"""Of each second that a step takes."""


@pytest.fixture
def survey() -> StrategySurvey:
    model = Model(params(0), SGD(lr=0.1))
    training = TrainingState(model, [SSGD()], 0, Rate(model.optimizer), False, Fixed())
    return StrategySurvey(training, lambda: Membership.first(["here"] * WORKERS), Clock())


class Clock:
    """It stands still, but for what it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _rounds(survey: StrategySurvey, first: float, others: int) -> Metrics | None:
    """So many rounds of a second each, after one that took longer, with a survey in the last."""
    assert isinstance(survey._clock, Clock)
    for seconds in [first] + [1.0] * others:
        survey._clock.now += seconds
        survey.committed(4 * WORKERS, WORKERS)
    told = [Pace(one, 1 + others, 1 + others, 4 * (1 + others), 0.0) for one in range(WORKERS)]
    told = [one._replace(seconds=COMPUTES * one.taken) for one in told]
    return survey.metrics(told, (), range(WORKERS))


@pytest.mark.parametrize("anew", [False, True])
def test_what_workers_need_to_begin_is_not_taken_for_slowness(
    survey: StrategySurvey, anew: bool
) -> None:
    if anew:
        _rounds(survey, 30.0, 15)
        survey.reset()
    found = _rounds(survey, 30.0, 15)
    assert found is not None
    assert found.share == pytest.approx(COMPUTES)
    assert (found.seconds, found.progress) == (15.0, 4.0 * WORKERS)
    assert ThroughputBelow(0.4, then=ADPSGD()).decide(found) is None
    found = _rounds(survey, 1.0, 15)
    assert found is not None
    assert (found.seconds, found.throughput) == (31.0, 4.0)


def test_one_round_alone_says_nothing(survey: StrategySurvey) -> None:
    assert _rounds(survey, 30.0, 0) is None


def test_workers_that_come_between_two_surveys_count_from_then_on(survey: StrategySurvey) -> None:
    assert isinstance(survey._clock, Clock)
    for workers in [1] * 12 + [4] * 4:
        survey._clock.now += 1.0
        survey.committed(4 * workers, workers)
    told = [Pace(one, 4, 4, 16, 4 * COMPUTES) for one in range(4)]
    found = survey.metrics(told, (), range(4))
    assert found is not None
    assert found.share == pytest.approx(COMPUTES)
    assert (found.workers, found.throughput, found.progress) == (4, 4.0, 16.0)


def test_how_far_a_strategy_is_behind_is_known_of_as_many_workers(survey: StrategySurvey) -> None:
    training = survey._training
    found = _rounds(survey, 1.0, 15)
    assert found is not None
    assert found.tried["ssgd"].behind == 0.0
    training.sync.strategy = LocalSGD(h=2)
    survey.reset()
    assert isinstance(survey._clock, Clock)
    for _ in range(9):
        survey._clock.now += 0.25
        survey.committed(4 * WORKERS, WORKERS)
    found = survey.metrics([Pace(0, 8, 8, 32, 1.0)], (), range(WORKERS))
    assert found is not None
    assert (found.tried["ssgd"].behind, found.tried["localsgd:h=2"].behind) == (0.75, 0.0)
    for _ in range(9):
        survey._clock.now += 0.125
        survey.committed(4 * 3, 3)
    found = survey.metrics([Pace(0, 8, 8, 32, 1.0)], (), range(3))
    assert found is not None
    assert found.tried["ssgd"].behind == 0.75, "of two workers, as it was measured"
