"""Learning rates that follow from the step: against their equations, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from spotmpi.errors import UsageError
from spotmpi.optimizers import LAMB, SGD, Adam, Cosine, Momentum, Schedule, StepDecay, Warmup
from spotmpi.optimizers.schedules import pack, rate_at, unpack


def rates(schedule: Schedule, steps: int) -> list[float]:
    """Of the first steps."""
    return [schedule.rate(step) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0, 1, 10])
@pytest.mark.parametrize("least", [0.0, 0.01, 0.5])
def test_a_cosine_goes_up_in_a_line_and_down_along_half_a_cosine(warmup: int, least: float) -> None:
    found = rates(Cosine(0.5, 1000, warmup, least), 1200)
    for step, rate in enumerate(found):
        expected = least
        if step < 1000:
            angle = math.pi * (step - warmup) / (1000 - warmup)
            expected = least + (0.5 - least) * (1 + math.cos(angle)) / 2
        if step < warmup:
            expected = 0.5 * (step + 1) / warmup
        assert rate == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert found[warmup] == max(found) == 0.5
    assert found[-200:] == [least] * 200
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert min(found) >= min(least, 0.5 / (warmup or 1))


def test_a_decay_by_steps_and_a_warm_up_are_what_the_equations_say() -> None:
    assert rates(StepDecay(0.8, 3, 0.5), 9) == [0.8] * 3 + [0.4] * 3 + [0.2] * 3
    assert StepDecay(1.0, 1, 0.1).rate(300) == pytest.approx(1e-300)
    assert rates(Warmup(4, 0.8), 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    both = Warmup(2, then=StepDecay(0.8, 2, 0.5))
    assert rates(both, 7) == pytest.approx([0.4, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2])


def test_they_are_equal_on_workers_whose_libraries_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [Cosine(0.3, 777, 10, 0.001), StepDecay(0.3, 7, 0.3), Warmup(9, Cosine(0.1, 100))]
    before = [rates(schedule, 800) for schedule in every]
    for name in ("cos", "sin", "pow", "exp"):
        monkeypatch.setattr(math, name, lambda *given: 1 / 0)
    assert [rates(schedule, 800) for schedule in every] == before


@pytest.mark.parametrize(
    "lr", [0.1, Cosine(0.1, 9, 3, 0.01), StepDecay(1.0, 3, 0.1), Warmup(3, Warmup(2, Cosine(1, 9)))]
)
def test_another_worker_is_told_them_whole(lr: Any) -> None:
    assert unpack(json.loads(json.dumps(pack(lr)))) == lr


class Mine(Schedule):
    """One that is not ours."""

    def __init__(self, rate: Any) -> None:
        self._rate = rate

    def rate(self, step: int) -> float:
        """Always the same."""
        found: float = self._rate
        return found

    def __str__(self) -> str:
        return "Mine()"


def test_one_of_ones_own_is_taken_and_not_told() -> None:
    assert rate_at(Warmup(2, Mine(4.0)), 0) == 2.0
    assert pack(Mine(4.0)) is None
    for wrong in (-1.0, float("nan"), None):
        with pytest.raises(UsageError, match=r"^the rate that Mine\(\) has for step 3 is .*expect"):
            rate_at(Mine(wrong), 3)


@pytest.mark.parametrize("kind", [SGD, Momentum, Adam, LAMB])
def test_every_optimizer_takes_them(kind: Any) -> None:
    schedule = Cosine(0.1, 100)
    assert kind(schedule).lr is schedule
    assert "lr=Cosine(peak=0.1, steps=100, warmup=0, least=0.0)" in repr(kind(schedule))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cosine(-0.1, 9), "Cosine: peak is -0.1, expected at least 0, as 0.1"),
        (lambda: Cosine(0.1, 0), "Cosine: steps is 0, expected a whole number of at least 1"),
        (lambda: Cosine(0.1, 9.5), "Cosine: steps is 9.5, expected a whole number of at least 1"),  # type: ignore[arg-type]
        (lambda: Cosine(0.1, 9, 9), "Cosine: warmup is 9, expected fewer than all 9 steps"),
        (lambda: Cosine(0.1, 9, -1), "Cosine: warmup is -1, expected a whole number of at least 0"),
        (lambda: Cosine(0.1, 9, 0, 0.2), "Cosine: least is 0.2, expected at most the peak, 0.1"),
        (lambda: StepDecay(0.1, 0, 0.5), "StepDecay: every is 0, expected a whole .* at least 1"),
        (lambda: StepDecay(0.1, 3, 1.5), "StepDecay: factor is 1.5, expected .* at most 1, as 0.1"),
        (lambda: StepDecay("x", 3, 1), "StepDecay: first is 'x', expected a finite number"),  # type: ignore[arg-type]
        (lambda: Warmup(0, 0.1), "Warmup: steps is 0, expected a whole number of at least 1"),
        (lambda: Warmup(3, -0.1), "Warmup: then is -0.1, expected at least 0, as 0.1"),
        (lambda: Warmup(3, None), "Warmup: then is None, expected a finite number"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}$"):
        make()
