"""Operators: what each does in a step, and how they chain."""

from __future__ import annotations

import itertools
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
    Contribute,
    Every,
    GradientAverage,
    GradientSum,
    Operator,
    Run,
    Scope,
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


class Diary(Operator):
    """Notes that it ran."""

    def __init__(self, pages: list[str], name: str) -> None:
        self.pages, self.name = pages, name

    def run(self, step: Step) -> Run:
        """A line."""
        self.pages.append(self.name)
        yield from ()


class Remembers(Operator):
    """Something, by a name."""

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Zeros."""
        return {"it": State(layout.allocate())}


def test_the_average_contributes_what_was_made_of_the_gradient_and_leaves_the_division() -> None:
    def bring(flats: Sequence[Any]) -> None:
        flats[0][...] = 4.0

    now = step(bring=bring, weight=8.0)
    run = GradientAverage().run(now)
    request = next(run)
    assert isinstance(request, Contribute)
    (out,) = now.layout.allocate()
    request.bring([out])
    assert (out == 4.0).all()
    with pytest.raises(StopIteration):
        run.send([np.full(3, 16.0)])
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
    run = GradientSum().run(now)
    request = next(run)
    (out,) = now.layout.allocate()
    for _ in range(2):  # once more, for a retry
        request.bring([out])
        np.testing.assert_array_equal(out, [each] * 3)
    with pytest.raises(StopIteration):
        run.send([np.full(3, 16.0)])
    assert now.scale == 1.0
    assert (now.update[0] == 16.0).all()


def test_a_sum_is_cut_as_an_average_is() -> None:
    chain = Clip(1.0) >> GradientSum() >> Clip(2.0)
    now = step(bring=brings([3.0, 0.0, 4.0], 8.0), room=lambda: [np.zeros(3)])
    now.now = StepPosition(samples=8.0, share=8.0)
    run = chain.run(now)
    request = next(run)
    (out,) = now.layout.allocate()
    request.bring([out])
    np.testing.assert_allclose(out, [0.6, 0.0, 0.8])
    with pytest.raises(StopIteration):
        run.send([np.array([0.0, 4.0, 0.0])])
    assert now.scale == 0.5


def test_a_sum_has_a_round_that_can_begin_before_all_of_the_gradient_is_there() -> None:
    strategy = Strategy(Every(3, GradientSum() >> Apply()))
    assert strategy.steps == 3
    assert Strategy(GradientSum() >> Apply()).piecewise
    assert not Strategy(GradientSum() >> Apply()).at_once  # which is for averages
    assert not strategy.apart


def test_one_model_goes_to_all_with_the_same_bits_whoever_s_it_is() -> None:
    """Zero as well, whose sign is lost where others' zeros are added to it."""
    now = step()
    now.params[0][:] = [1.5, -0.0, 3.0]
    run = Broadcast().run(now)
    request = next(run)
    assert request.alone
    (out,) = now.layout.allocate()
    request.bring([out])
    np.testing.assert_array_equal(out, [1.5, 0.0, 3.0])
    with pytest.raises(StopIteration):
        run.send([np.array([4.0, -0.0, np.inf])])
    np.testing.assert_array_equal(now.params[0], [4.0, 0.0, np.inf])
    assert not np.signbit(now.params[0]).any()


def test_who_broadcasts_trains_a_model_of_its_own() -> None:
    strategy = Strategy(Apply() >> Every(4, Broadcast()))
    assert (strategy.steps, strategy.apart, strategy.piecewise) == (4, True, False)


def test_apply_moves_the_parameters_by_rate_times_scale_times_sum() -> None:
    now = step(update=[np.array([4.0, 8.0, 12.0])], rate=0.5, scale=0.25)
    assert list(Apply().run(now)) == []
    np.testing.assert_array_equal(now.params[0], [0.5, 0.0, -0.5])


def test_apply_without_an_optimizer_says_so() -> None:
    now = step()
    now.optimizer = None
    with pytest.raises(UsageError, match="needs an optimizer, and a group has none"):
        list(Apply().run(now))


def test_only_an_operator_with_a_round_is_collective_also_now_and_then() -> None:
    assert GradientAverage().collective
    assert not Apply().collective
    assert Every(3, GradientAverage() >> Apply()).collective
    assert not Every(3, Apply()).collective
    assert Every(3, GradientAverage()).steps == 3
    assert Every(3, Apply()).steps == 1


def test_a_round_that_comes_now_and_then_comes_with_the_last_of_its_steps() -> None:
    pages: list[str] = []
    chain = Diary(pages, "each") >> Every(2, GradientAverage() >> Diary(pages, "every"))
    for last in (False, True, False):
        for _ in chain.run(step(now=StepPosition(last=last))):
            break
    assert pages == ["each"] * 3
    assert [bool([*chain.run(step(now=StepPosition(last=last)))]) for last in (False, True)] == [
        False,
        True,
    ]


@pytest.mark.parametrize(("many", "due"), [(1, [3, 6]), (2, [4, 6]), (4, [4, 8])])
def test_what_is_local_comes_when_so_many_steps_are_taken_or_passed(
    many: int, due: list[int]
) -> None:
    pages: list[str] = []
    chain = Every(3, Diary(pages, "it")) >> Apply()
    assert not chain.collective
    found = []
    for after in range(many, 9, many):
        pages.clear()
        now = step(now=StepPosition(samples=0.0, after=after), many=many)
        list(chain.run(now))
        found += [after] * len(pages)
    assert found == due


def test_who_follows_runs_nothing_that_comes_before_the_round() -> None:
    pages: list[str] = []
    one, two, three, four = (Diary(pages, name) for name in "abcd")
    chain = one >> Every(2, two >> GradientAverage() >> three) >> four
    kept = list(chain.follow(step()))
    assert [str(operator) for operator in kept] == ["GradientAverage()", "Diary()", "Diary()"]
    assert kept[1:] == [three, four]


def test_two_operators_may_not_remember_under_one_name() -> None:
    layout = Layout.of([np.zeros(2)])
    assert set((Remembers() >> Apply()).init(layout)) == {"it"}
    assert set(Every(2, Remembers()).init(layout)) == {"it"}
    with pytest.raises(UsageError, match=r"two operators of .* call what they remember it: leave"):
        (Remembers() >> Remembers()).init(layout)


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
    assert list(Clip(norm).run(now)) == []
    (out,) = now.layout.allocate()
    now.bring([out])
    np.testing.assert_allclose(out, np.multiply(left, 8))
    now.bring([out])  # once more, for a retry
    np.testing.assert_allclose(out, np.multiply(left, 8))
    sums = np.multiply(gradient, 4.0)
    after = step(update=[sums], scale=0.25)
    assert list(Clip(norm).run(after)) == []
    np.testing.assert_allclose(sums * after.scale, left)
    np.testing.assert_array_equal(sums, np.multiply(gradient, 4.0))


def test_what_a_worker_applies_for_itself_is_cut_as_well() -> None:
    room = [np.full(3, 77.0)]
    moment = StepPosition(samples=8.0, last=False)
    now = step(bring=brings([3.0, 0.0, 4.0], 8.0), room=lambda: room, now=moment, rate=0.5)
    assert list((Clip(1.0) >> Apply()).run(now)) == []
    np.testing.assert_allclose(now.params[0], [0.7, 1.0, 0.6])


def test_what_does_not_count_is_not_looked_at() -> None:
    now = step(bring=brings([9.0, 9.0, 9.0], 0.0))
    assert list(Clip(1.0).run(now)) == []
    (out,) = now.layout.allocate()
    now.bring([out])
    assert not out.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    now = step(update=[np.array([1.0, bad, 2.0])])
    with np.errstate(invalid="ignore"):
        assert list(Clip(1.0).run(now)) == []
        assert not np.isfinite(now.update[0] * now.scale).all()


def test_clipping_needs_a_gradient_of_ones_own() -> None:
    now = step(bring=lambda _flats: None)
    with pytest.raises(
        UsageError, match=r"^Clip\(1.0\) finds no gradient .*: put it first, or beh"
    ):
        list(Clip(1.0).run(now))


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), float("inf"), "1", None])
def test_a_length_that_cannot_be_meant_is_refused(norm: Any) -> None:
    with pytest.raises(UsageError, match=r"^Clip: norm is .*, expected"):
        Clip(norm)


def test_clipping_is_no_round_and_needs_the_whole_gradient() -> None:
    before, after = Clip(1.0) >> GradientAverage(), GradientAverage() >> Clip(2)
    assert not Clip(1.0).collective
    assert not before.piecewise
    assert after.piecewise
    assert not (after >> Apply()).at_once
    assert str(after) == "GradientAverage() >> Clip(2)"
    assert [str(one) for one in (before >> after).follow(step())][1:2] == ["GradientAverage()"]


class Hasty(Operator):
    """As one might write it at first."""

    def run(self, step: Step) -> Run:  # type: ignore[return]
        for w in step.params:
            w *= 0.5


class Mistaken(Operator):
    """It hands out what it would have to ask for."""

    def run(self, step: Step) -> Run:
        return Contribute(step.bring)  # type: ignore[return-value]


class Handing(Operator):
    """It leaves its part to another one, which is right."""

    def run(self, step: Step) -> Run:
        return GradientAverage().run(step) if step.now.last else Operator().run(step)


@pytest.mark.parametrize("wrong", [Hasty(), Mistaken()])
def test_an_operator_that_forgets_to_yield_is_told_so(wrong: Operator) -> None:
    name = type(wrong).__name__
    for part in (Chain((wrong,)), Every(1, wrong)):
        with pytest.raises(UsageError, match=rf"^{name}\(\): its run returns .* `yield from \(\)`"):
            list(part.run(step()))


def test_an_operator_may_leave_its_part_to_another_one() -> None:
    asked = list(itertools.islice(Chain((Handing(),)).run(step()), 1))
    assert [type(one) for one in asked] == [Contribute]


def test_what_an_operator_of_one_s_own_remembers_is_declared_with_public_names() -> None:
    class Counting(Operator):
        """It remembers how long it has been there."""

        def init(self, layout: Layout) -> Mapping[str, State]:
            return {"mine": State(layout.allocate(), Scope.LOCAL), "all": State(layout.allocate())}

    found = Strategy(GradientAverage() >> Apply() >> Counting()).init(step().layout)
    assert [found[name].scope for name in ("mine", "all")] == [Scope.LOCAL, Scope.REPLICATED]
