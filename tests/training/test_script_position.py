"""Where scripts stand: a newcomer's gets to where the others' is, by itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from spotmpi.errors import CheckpointError
from spotmpi.protocol.dealer import evenly
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.sampler import Lease
from spotmpi.training.script.script_position import ScriptPosition

TWO = Membership.first(["h"] * 2)


def through(position: ScriptPosition, number: int, most: int = 100) -> int:
    """Go through batches as a worker that trains does; return the steps taken."""
    taken = 0
    while taken < most and position.draw(number, TWO) is not None:
        position.dealer.count(TWO.ids)
        taken += 1
    return taken


def loop(position: ScriptPosition, samples: int = 8, most: int = 100) -> int:
    """A loop of a script over batches, left in the end; return the steps taken in it."""
    number = position.open(samples, 2, 1, 7)
    position.enter()
    taken = through(position, number, most)
    position.leave(number)
    return taken


def arrived(other: ScriptPosition, contributors: tuple[int, ...] | None = None) -> ScriptPosition:
    """A newcomer's position, after all that it is told, over the wire."""
    position = ScriptPosition()
    position.restore(json.loads(json.dumps(other.snapshot(contributors))))
    return position


def test_batches_that_are_used_up_yield_nothing_to_a_newcomer() -> None:
    others = ScriptPosition()
    assert loop(others) == 2
    newcomer = arrived(others)
    number = newcomer.open(8, 2, 1, 7)
    assert newcomer.used_up(number)
    assert newcomer.draw(number, TWO) is None


def test_batches_that_were_left_in_the_middle_yield_nothing_either() -> None:
    others = ScriptPosition()
    assert loop(others, most=1) == 1
    newcomer = arrived(others)
    assert newcomer.used_up(newcomer.open(8, 2, 1, 7))


def same(one: Lease | None, other: Lease | None) -> bool:
    """Whether two deals are equal."""
    if one is None or other is None:
        return one is other
    head = one.number, one.pass_number, one.slots, one.delay
    return head == (other.number, other.pass_number, other.slots, other.delay) and bool(
        (one.samples == other.samples).all()
    )


@pytest.mark.parametrize("open_first", [True, False])
@pytest.mark.parametrize("contributors", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("delay", [0, 1])
def test_a_newcomer_draws_what_the_others_draw_next(
    open_first: bool, contributors: tuple[int, ...], delay: int
) -> None:
    """Told in the midst of a round, of which some of the others' slices may come back. With a
    ``delay`` so may samples of the round before, and of this one when worker 0 is lost after it."""
    how = 1 + 2 * delay, evenly, delay
    others, newcomer = ScriptPosition(), ScriptPosition()
    loop(others)
    number = others.open(40, 2, 2, 7)
    others.enter()
    others.draw(number, TWO, *how)
    others.dealer.count(TWO.ids)
    others.draw(number, TWO, *how)
    if open_first:
        newcomer.open(8, 2, 1, 7)
        newcomer.open(40, 2, 2, 7)
    newcomer.restore(json.loads(json.dumps(others.snapshot(contributors))))
    if not open_first:
        newcomer.open(8, 2, 1, 7)
        newcomer.open(40, 2, 2, 7)
    others.dealer.count(contributors)
    assert newcomer.dealer.dealt[0] == others.dealer.dealt[0] == 4
    three = Membership.first(["h"] * 3)
    for turn in range(100):
        mine, theirs = newcomer.draw(1, three, *how), others.draw(1, three, *how)
        assert same(mine, theirs)
        if mine is None:
            break
        newcomer.dealer.count(three.ids[turn == 0 :])
        others.dealer.count(three.ids[turn == 0 :])
    assert newcomer.used_up(1)


@pytest.mark.parametrize("open_first", [True, False])
@pytest.mark.parametrize("contributors", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("taken", [(3, 3), (3, 1), (1, 2)])
def test_a_newcomer_puts_back_what_late_workers_have_left(
    open_first: bool, contributors: tuple[int, ...], taken: tuple[int, ...]
) -> None:
    """How many steps they took is told by the round, after all else."""
    others, newcomer = ScriptPosition(), ScriptPosition()
    number = others.open(40, 2, 2, 7)
    others.enter()
    others.draw(number, TWO, 3, evenly, 1)
    others.dealer.count(TWO.ids)  # of the next round one of them may be no contributor
    others.draw(number, TWO, 3, lambda _workers: [3, 3])
    if open_first:
        newcomer.open(40, 2, 2, 7)
    newcomer.restore(json.loads(json.dumps(others.snapshot(contributors))))
    others.dealer.end(taken)
    others.dealer.count(contributors)
    newcomer.settle(dict(enumerate(taken)), contributors, 7)
    if not open_first:
        newcomer.open(40, 2, 2, 7)
    newcomer.settle({}, (), 7)  # once is enough
    three = Membership.first(["h"] * 3)
    for _ in range(100):
        mine, theirs = newcomer.draw(0, three), others.draw(0, three)
        assert same(mine, theirs)
        if mine is None:
            break
        newcomer.dealer.count(three.ids)
        others.dealer.count(three.ids)
    assert newcomer.used_up(0)


def test_a_position_that_is_told_without_a_step_does_not_count_the_one_that_is_drawn() -> None:
    others = ScriptPosition()
    number = others.open(8, 2, 1, 7)
    before = others.snapshot()
    others.draw(number, TWO)
    assert others.snapshot()["samplers"] == before["samplers"]
    assert others.snapshot((0, 1))["samplers"] != before["samplers"]


def test_answers_come_in_order_and_where_they_were_given() -> None:
    others = ScriptPosition()
    others.remember([1.0])
    loop(others)
    others.remember([2.0, 3.0])
    others.remember([4.0])
    assert others.recall(list) is None
    newcomer = arrived(others)
    assert newcomer.recall(list) == [1.0]
    assert newcomer.recall(list) is None  # the script asks where none of the others has
    newcomer.open(8, 2, 1, 7)
    assert newcomer.recall(list) == [2.0, 3.0]
    assert newcomer.recall(list) == [4.0]
    assert newcomer.recall(list) is None


def test_what_was_told_later_does_not_begin_anew_for_who_has_had_some() -> None:
    others = ScriptPosition()
    others.remember([1.0])
    newcomer = arrived(others)
    assert newcomer.recall(list) == [1.0]
    others.remember([2.0])
    newcomer.restore(json.loads(json.dumps(others.snapshot())))
    assert newcomer.recall(list) == [2.0]
    assert newcomer.recall(list) is None


def test_answers_in_loops_are_not_kept_and_none_is_given_there() -> None:
    others = ScriptPosition()
    others.open(8, 2, 1, 7)
    others.enter()
    others.remember([1.0])
    others.leave(0)
    others.remember([2.0])
    newcomer = arrived(others)
    newcomer.open(8, 2, 1, 7)
    newcomer.enter()
    assert newcomer.recall(list) is None
    newcomer.leave(0)
    assert newcomer.recall(list) == [2.0]


def test_answers_from_before_the_first_step_outside_of_batches_stay_and_later_ones_do_not() -> None:
    """Which of the later ones a script asks for depends on the steps that it takes."""
    others = ScriptPosition()
    others.remember([1.0])
    early = arrived(others)
    assert early.recall(list) == [1.0]
    others.loosen()
    others.remember([2.0])
    late = arrived(others)
    assert late.recall(list) == [1.0]
    assert late.recall(list) is None
    early.restore(json.loads(json.dumps(others.snapshot())))
    assert early.recall(list) is None
    early.remember([3.0])
    assert early.recall(list) is None


def test_more_answers_than_are_kept_are_none_and_nobody_can_follow() -> None:
    others = ScriptPosition()
    others.remember([0.5] * 1000)
    early = arrived(others)
    assert early.recall(list) == [0.5] * 1000
    assert not early.answers.lost
    others.remember([0.5] * 1100)
    assert others.answers.lost
    assert arrived(others).answers.lost
    early.restore(json.loads(json.dumps(others.snapshot())))
    assert early.answers.lost
    assert early.recall(list) is None


def test_a_checkpoint_s_samplers_are_those_of_the_batches_that_the_script_will_open() -> None:
    one = ScriptPosition()
    loop(one)
    number = one.open(20, 2, 1, 7)
    one.draw(number, TWO)
    one.dealer.count((0,))
    kept: dict[str, Any] = {"steps": 3, **one.kept()}
    other = ScriptPosition()
    other.resume(kept)
    assert loop(other) == 0
    assert other.open(20, 2, 1, 7) == number
    mine, theirs = other.draw(number, TWO), one.draw(number, TWO)
    assert mine is not None
    assert theirs is not None
    assert np.array_equal(mine.samples, theirs.samples)


def test_how_many_steps_are_to_come_is_known_in_the_only_loop_over_batches() -> None:
    position = ScriptPosition()
    assert position.left(2) is None
    number = position.open(8, 2, 3, 7)
    assert position.left(2) is None, "it is not in it yet"
    position.enter()
    assert position.left(2) == 6
    assert through(position, number, 2) == 2
    assert position.left(2) == 4
    assert position.left(1) == 8
    position.leave(number)
    position.open(8, 2, 3, 7)
    position.enter()
    assert position.left(2) is None, "there may be any number of such loops"


def test_how_many_steps_are_to_come_is_known_in_a_loop_over_passes() -> None:
    position = ScriptPosition()
    position.enter_passes(3)
    for to_come in (6, 4, 2):
        assert position.next_pass() is not None
        number = position.open(8, 2, 1, 7)
        position.enter()
        assert position.left(2) == to_come
        assert position.left(1) == 2 * to_come
        through(position, number)
        position.leave(number)
    position.open(8, 2, 1, 7)
    position.enter()
    assert position.left(2) is None, "there is more than one loop over batches in a pass"


def a_pass(position: ScriptPosition, answer: float, most: int = 100) -> int:
    """The inside of a loop over passes; return the steps taken in it."""
    taken = loop(position, most=most)
    known = position.recall(list, 1)
    if known is None:
        position.remember([answer], 1)
    assert known in (None, [answer])
    return taken


def test_who_comes_late_begins_with_the_pass_of_the_others_and_skips_what_they_do_meanwhile() -> (
    None
):
    others = ScriptPosition()
    others.remember([0.5], 1)
    others.enter_passes(9)
    for number in range(3):
        assert others.next_pass() == number
        a_pass(others, float(number))
    assert others.next_pass() == 3
    assert loop(others, most=1) == 1
    newcomer = arrived(others)
    assert newcomer.recall(list, 1) == [0.5]
    newcomer.enter_passes(9)
    assert newcomer.next_pass() == 3
    number = newcomer.open(8, 2, 1, 7)
    assert number == 3
    others.remember([3.0], 1)
    for further in range(4, 7):
        assert others.next_pass() == further
        a_pass(others, float(further))
    assert others.next_pass() == 7
    newcomer.restore(json.loads(json.dumps(others.snapshot())))
    assert newcomer.used_up(number)
    assert newcomer.recall(list, 1) == [3.0], "what they were told in that pass"
    assert newcomer.next_pass() == 7
    assert newcomer.open(8, 2, 1, 7) == others.open(8, 2, 1, 7) == 7
    assert newcomer.snapshot() == others.snapshot()
    assert newcomer.kept().keys() == others.kept().keys()


def test_batches_that_were_left_early_in_passes_before_are_known_to_all() -> None:
    others = ScriptPosition()
    others.enter_passes(9)
    for number in range(3):
        others.next_pass()
        loop(others, most=1 if number == 1 else 100)
    others.next_pass()
    newcomer = arrived(others)
    newcomer.enter_passes(9)
    assert newcomer.next_pass() == 3
    assert newcomer.left_early == others.left_early == [1]


@pytest.mark.parametrize(
    "state",
    [
        {"script": "[]"},
        {"script": 7},
        {"script": "[" * 100_000},
        {"script": None, "early": "[1e999]"},
        {"script": None, "loops": '{"opened": 1e999, "open": [], "turns": []}'},
        {"script": None, "sampler/one/n": 8},
        {"script": None, "sampler/1": 8},
    ],
)
def test_a_position_that_spotmpi_has_not_written_is_refused(state: dict[str, Any]) -> None:
    others = ScriptPosition()
    loop(others)
    kept = others.kept()
    ScriptPosition().resume(kept)
    script = json.loads(kept["script"])
    script |= {name: json.loads(state[name]) for name in script.keys() & state.keys()}
    if state["script"] is None:
        kept |= state | {"script": json.dumps(script)}
    else:
        kept = state
    with pytest.raises(CheckpointError, match="x does not say where its script stood"):
        ScriptPosition().resume(kept, "x")
