"""Operators: what each does in a step, and how they become a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.layout import Layout
from spotmpi.errors import UsageError
from spotmpi.operators import (
    Apply,
    Broadcast,
    Chain,
    Clip,
    Every,
    GradientAverage,
    GradientSum,
    ModelAverage,
    Operator,
    OuterUpdate,
    Scope,
    Stage,
    State,
    Step,
    StepPosition,
    Weighted,
)
from spotmpi.optimizers import SGD
from spotmpi.strategies import Strategy


def step(**known: Any) -> Step:
    """A step of a model of two arrays."""
    layout = Layout.of([np.zeros(2), np.zeros(1)])
    params = layout.allocate()
    params[0][:] = 1.0
    return Step(layout, SGD(lr=1.0), params, **known)


class Diary(Stage):
    """Notes that it ran."""

    moves = True

    def __init__(self, pages: list[str], name: str) -> None:
        self.pages, self.name = pages, name

    def run(self, step: Step) -> None:
        """A line."""
        self.pages.append(self.name)

    def __str__(self) -> str:
        return f"Diary({self.name})"


class Remembers(Stage):
    """Something, by a name."""

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Zeros."""
        return {"it": State(layout.allocate())}

    def run(self, step: Step) -> None:
        """Nothing."""


def test_the_average_contributes_what_was_made_of_the_gradient_and_leaves_the_division() -> None:
    def bring(flats: Sequence[Any]) -> None:
        flats[0][...] = 4.0

    now = step(bring=bring, weight=8.0)
    (out,) = now.layout.allocate()
    GradientAverage().contribute(now)([out])
    assert (out == 4.0).all()
    GradientAverage().apply(now, [np.full(3, 16.0)])
    assert now.scale == 1 / 8
    assert (now.update[0] == 16.0).all()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("share", "each"), [(8.0, 0.5), (0.0, 0.0)])
def test_the_sum_contributes_the_mean_gradient_and_is_not_divided(
    weighted: bool, share: float, each: float
) -> None:
    """Of the steps of a round, for whose samples ``share`` stands."""
    whole = brings([share / 2] * 3, 1.0)
    bring = brings([0.5, 0.5, 0.5], share) if weighted else lambda flats: whole(flats)
    now = step(bring=bring, weight=24.0, now=StepPosition(samples=4.0, share=share))
    brought = GradientSum().contribute(now)
    (out,) = now.layout.allocate()
    for _ in range(2):  # once more, for a retry
        brought([out])
        np.testing.assert_array_equal(out, [each] * 3)
    GradientSum().apply(now, [np.full(3, 16.0)])
    assert now.scale == 1.0
    assert (now.update[0] == 16.0).all()


def test_a_sum_is_cut_as_an_average_is() -> None:
    strategy = Strategy(Clip(1.0) >> GradientSum() >> Clip(2.0))
    now = step(bring=brings([3.0, 0.0, 4.0], 8.0), room=lambda: [np.zeros(3)])
    now.now = StepPosition(samples=8.0, share=8.0)
    assert list(strategy.prepare(now)) == []
    (out,) = now.layout.allocate()
    strategy.contribute(now)([out])
    np.testing.assert_allclose(out, [0.6, 0.0, 0.8])
    strategy.apply(now, [np.array([0.0, 4.0, 0.0])])
    assert now.scale == 0.5


def test_a_sum_has_a_round_that_can_begin_before_all_of_the_gradient_is_there() -> None:
    strategy = Strategy(GradientSum() >> Apply())
    assert strategy.piecewise
    assert not strategy.fusable  # which is for averages
    assert not strategy.local_models


def test_one_model_goes_to_all_with_the_same_bits_whoever_s_it_is() -> None:
    """Zero as well, whose sign is lost where others' zeros are added to it."""
    now = step()
    now.params[0][:] = [1.5, -0.0, 3.0]
    assert Broadcast().alone
    (out,) = now.layout.allocate()
    Broadcast().contribute(now)([out])
    np.testing.assert_array_equal(out, [1.5, 0.0, 3.0])
    Broadcast().apply(now, [np.array([4.0, -0.0, np.inf])])
    np.testing.assert_array_equal(now.params[0], [4.0, 0.0, np.inf])
    assert not np.signbit(now.params[0]).any()


def test_who_broadcasts_trains_a_model_of_its_own() -> None:
    strategy = Strategy(Apply() >> Every(4, Broadcast()))
    assert (strategy.every, strategy.local_models, strategy.piecewise) == (4, True, False)


def test_apply_moves_the_parameters_by_rate_times_scale_times_sum() -> None:
    now = step(update=[np.array([4.0, 8.0, 12.0])], rate=0.5, scale=0.25)
    Apply().run(now)
    np.testing.assert_array_equal(now.params[0], [0.5, 0.0, -0.5])


def test_apply_without_an_optimizer_says_so() -> None:
    now = step()
    now.optimizer = None
    with pytest.raises(UsageError, match="needs an optimizer, and a group has none"):
        Apply().run(now)


def test_a_stage_before_the_round_runs_in_each_step_and_one_behind_it_with_the_round() -> None:
    pages: list[str] = []
    strategy = Strategy(Diary(pages, "each") >> Every(2, ModelAverage() >> Diary(pages, "round")))
    assert strategy.every == 2
    for last in (False, True):
        now = step(now=StepPosition(last=last))
        assert list(strategy.prepare(now)) == []
    assert pages == ["each"] * 2
    strategy.apply(now, now.layout.allocate())
    assert pages == ["each", "each", "round"]


@pytest.mark.parametrize(("many", "due"), [(1, [3, 6]), (2, [4, 6]), (4, [4, 8])])
def test_a_stage_comes_when_so_many_steps_are_taken_or_passed(many: int, due: list[int]) -> None:
    pages: list[str] = []
    strategy = Strategy(GradientAverage() >> Apply() >> Every(3, Diary(pages, "it")))
    found = []
    for after in range(many, 9, many):
        pages.clear()
        now = step(now=StepPosition(samples=0.0, after=after), many=many)
        strategy.apply(now, now.layout.allocate())
        found += [after] * len(pages)
    assert found == due


def test_a_worker_that_learns_runs_nothing_that_comes_before_the_round() -> None:
    pages: list[str] = []
    one, two, three = (Diary(pages, name) for name in "abc")
    strategy = Strategy(one >> two >> Every(2, ModelAverage() >> three))
    now = step(now=StepPosition(samples=0.0, share=0.0))
    strategy.apply(now, now.layout.allocate())
    assert pages == ["c"]


def test_two_operators_may_not_remember_under_one_name() -> None:
    layout = Layout.of([np.zeros(2)])
    average = GradientAverage() >> Apply()
    assert set(Strategy(Remembers() >> average).init(layout)) == {"it"}
    assert set(Strategy(average >> Every(2, Remembers())).init(layout)) == {"it"}
    twice = Strategy(Remembers() >> average >> Remembers())
    with pytest.raises(UsageError, match=r"two operators of .* call what they remember it: leave"):
        twice.init(layout)


def test_chains_are_written_in_the_order_in_which_they_run_however_they_are_grouped() -> None:
    a, b, c = GradientAverage(), Apply(), Operator()
    assert (a >> b >> c).operators == (a, b, c)
    assert (a >> (b >> c)).operators == (a, b, c)
    assert str(a >> b) == "GradientAverage() >> Apply()"
    assert str(a >> Every(3, b)) == "GradientAverage() >> Every(3, Apply())"
    assert isinstance(a >> b, Chain)


def brings(gradient: Sequence[float], weight: float) -> Weighted:
    """So many times that."""

    def pack(flats: Sequence[Any], times: float) -> None:
        flats[0][...] = np.multiply(gradient, times)

    return Weighted(pack, weight)


@pytest.mark.parametrize(
    ("gradient", "norm", "left"),
    [
        ([3.0, 0.0, 4.0], 1.0, [0.6, 0.0, 0.8]),
        ([3.0, 0.0, 4.0], 5.0, [3.0, 0.0, 4.0]),
        ([0.0, 0.0, 0.0], 1.0, [0.0, 0.0, 0.0]),
        ([1e200, 0.0, 0.0], 1.0, [0.0, 0.0, 0.0]),
    ],
)
def test_a_gradient_that_is_too_long_is_cut_before_the_round_and_after(
    gradient: list[float], norm: float, left: list[float]
) -> None:
    room = [np.full(3, 77.0)]
    now = step(bring=brings(gradient, 8.0), room=lambda: room)
    Clip(norm).run(now)
    (out,) = now.layout.allocate()
    now.bring([out])
    np.testing.assert_allclose(out, np.multiply(left, 8))
    now.bring([out])  # once more, for a retry
    np.testing.assert_allclose(out, np.multiply(left, 8))
    sums = np.multiply(gradient, 4.0)
    after = step(update=[sums], scale=0.25)
    Clip(norm).run(after)
    np.testing.assert_allclose(sums * after.scale, left)
    np.testing.assert_array_equal(sums, np.multiply(gradient, 4.0))


def test_what_a_worker_applies_for_itself_is_cut_as_well() -> None:
    room = [np.full(3, 77.0)]
    moment = StepPosition(samples=8.0, last=False)
    now = step(bring=brings([3.0, 0.0, 4.0], 8.0), room=lambda: room, now=moment, rate=0.5)
    Clip(1.0).run(now)
    Apply().run(now)
    np.testing.assert_allclose(now.params[0], [0.7, 1.0, 0.6])


def test_what_does_not_count_is_not_looked_at() -> None:
    now = step(bring=brings([9.0, 9.0, 9.0], 0.0))
    Clip(1.0).run(now)
    (out,) = now.layout.allocate()
    now.bring([out])
    assert not out.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    now = step(update=[np.array([1.0, bad, 2.0])])
    with np.errstate(invalid="ignore"):
        Clip(1.0).run(now)
        assert not np.isfinite(now.update[0] * now.scale).all()


def test_clipping_needs_a_gradient_of_ones_own() -> None:
    now = step(bring=lambda _flats: None)
    with pytest.raises(
        UsageError, match=r"^Clip\(1.0\) finds no gradient .*: put it first, or beh"
    ):
        Clip(1.0).run(now)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), float("inf"), "1", None])
def test_a_length_that_cannot_be_meant_is_refused(norm: Any) -> None:
    with pytest.raises(UsageError, match=r"^Clip: norm is .*, expected"):
        Clip(norm)


def test_clipping_needs_the_whole_gradient_before_the_round_and_the_whole_sum_behind_it() -> None:
    before = Strategy(Clip(1.0) >> GradientAverage() >> Apply())
    after = Strategy(GradientAverage() >> Clip(2) >> Apply())
    assert (before.piecewise, before.fusable) == (False, True)
    assert (after.piecewise, after.fusable) == (True, False)
    assert str(after) == "GradientAverage() >> Clip(2) >> Apply()"


class Doubled(GradientAverage):
    """It does something of its own with the sums."""

    def apply(self, step: Step, sums: Sequence[Any]) -> None:
        super().apply(step, sums)
        step.scale *= 2


class Halved(GradientAverage):
    """It brings something of its own."""

    def contribute(self, step: Step) -> Any:
        return step.bring


def test_an_average_of_ones_own_is_fused_only_if_it_does_nothing_of_its_own_with_the_sums() -> None:
    assert Strategy(GradientAverage() >> Apply()).fusable
    assert Strategy(Halved() >> Apply()).fusable
    assert not Strategy(Doubled() >> Apply()).fusable
    assert not Strategy(GradientAverage() >> Apply() >> Clear()).fusable


class Clear(Stage):
    """It comes behind."""

    def run(self, step: Step) -> None:
        """Nothing."""


class Mistaken(Stage):
    """It hands out what it would have to ask for."""

    def run(self, step: Step) -> Any:
        return step.params


class Handing(Stage):
    """It leaves its part to another one, which is right."""

    def run(self, step: Step) -> Any:
        return Apply().run(step)


def test_a_stage_that_returns_something_else_is_told_so() -> None:
    strategy = Strategy(GradientAverage() >> Apply() >> Mistaken())
    with pytest.raises(UsageError, match=r"^Mistaken\(\): its run returns .* or a generator of"):
        strategy.apply(step(), step().layout.allocate())
    strategy = Strategy(Mistaken() >> GradientAverage() >> Apply())
    with pytest.raises(UsageError, match=r"^Mistaken\(\): its run returns"):
        list(strategy.prepare(step()))


def test_a_stage_may_leave_its_part_to_another_one() -> None:
    now = step(rate=1.0)
    Strategy(GradientAverage() >> Handing()).apply(now, [np.ones(3)])
    np.testing.assert_array_equal(now.params[0], [0.0, 0.0, 0.0])


def test_fragments_and_a_delay_are_those_of_the_meeting() -> None:
    strategy = Strategy(Apply() >> Every(8, OuterUpdate(fragments=3, delay=2)))
    assert (strategy.every, strategy.fragments, strategy.delay) == (8, 3, 2)
    assert not strategy.meeting.equalises
    assert (ModelAverage().fragments, ModelAverage().delay) == (1, 0)


def test_what_an_operator_of_one_s_own_remembers_is_declared_with_public_names() -> None:
    class Counting(Stage):
        """It remembers how long it has been there."""

        def init(self, layout: Layout) -> Mapping[str, State]:
            return {"mine": State(layout.allocate(), Scope.LOCAL), "all": State(layout.allocate())}

        def run(self, step: Step) -> None:
            """Nothing."""

    found = Strategy(GradientAverage() >> Apply() >> Counting()).init(step().layout)
    assert [found[name].scope for name in ("mine", "all")] == [Scope.LOCAL, Scope.REPLICATED]
