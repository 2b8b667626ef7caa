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


def _round(survey: StrategySurvey, seconds: float, workers: int, steps: int = 1) -> None:
    """A round in which each worker uses four samples a step."""
    assert isinstance(survey._clock, Clock)
    survey._clock.now += seconds
    survey._training.progress.steps += steps
    survey.committed(4 * workers * steps, workers)


def _rounds(survey: StrategySurvey, first: float, others: int) -> Metrics | None:
    """So many rounds of a second each, after one that took longer, with a survey in the last."""
    for seconds in [first] + [1.0] * others:
        _round(survey, seconds, WORKERS)
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
    for workers in [1] * 12 + [4] * 4:
        _round(survey, 1.0, workers)
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
    for _ in range(9):
        _round(survey, 0.25, WORKERS)
    found = survey.metrics([Pace(0, 8, 8, 32, 1.0)], (), range(WORKERS))
    assert found is not None
    assert (found.tried["ssgd"].behind, found.tried["localsgd:h=2"].behind) == (0.75, 0.0)
    for _ in range(9):
        _round(survey, 0.125, 3)
    found = survey.metrics([Pace(0, 8, 8, 32, 1.0)], (), range(3))
    assert found is not None
    assert found.tried["ssgd"].behind == 0.75, "of two workers, as it was measured"


def test_a_round_of_few_steps_is_not_taken_for_a_slow_strategy(survey: StrategySurvey) -> None:
    """Rounds take a second, and as much for each step. A pass ends after two steps of eight."""
    survey._training.sync.strategy = LocalSGD(h=8)
    survey.reset()
    told = [Pace(one, 8, 8, 32, 8.0) for one in range(WORKERS)]
    for steps in (8, 8):
        _round(survey, 1.0 + steps, WORKERS, steps)
    usual = survey.metrics(told, (), range(WORKERS))
    assert usual is not None
    assert usual.share == pytest.approx(8 / 9)
    _round(survey, 3.0, WORKERS, 2)
    assert survey.metrics(told, (), range(WORKERS)) is None
    _round(survey, 9.0, WORKERS, 8)
    both = survey.metrics(told, (), range(WORKERS))
    assert both is not None
    assert both.share == pytest.approx(10 / 12)
    assert both.tried["localsgd:h=8"].period == 12.0


def test_the_share_is_of_what_all_would_do_together(survey: StrategySurvey) -> None:
    """One worker computes four times as fast as three others, and waits for them."""
    told = [Pace(one, 8, 8, 32, 8.0) for one in range(3)] + [Pace(3, 8, 8, 32, 2.0)]
    for _ in range(9):
        _round(survey, 1.0, 4)
    found = survey.metrics(told, (), range(4))
    assert found is not None
    assert found.share == pytest.approx(4 / 7)
