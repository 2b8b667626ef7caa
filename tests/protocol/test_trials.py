"""Choosing among ways, on paper."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotmpi.protocol.trials import Trial

WAYS = ("first", "straight")


def rows(trial: Trial, seconds: dict[str, float]) -> list[list[float]]:
    """Rounds in which each way takes just so long, on hosts of one worker and of two."""
    return [[seconds[trial.way(number)]] * 3 for number in range(trial.rounds)]


def test_ways_take_turns_and_then_the_fastest_is_taken() -> None:
    trial = Trial(WAYS, [1, 2], 2)
    there = ["first", "straight"]
    assert [trial.way(number) for number in range(6)] == [*there, *there[::-1], *there]
    choice = trial.choose(4096, rows(trial, {"first": 0.2, "straight": 0.1}))
    assert choice == (4096, {"first": 0.2, "straight": 0.1}, "straight")
    assert {trial.way(number) for number in range(6, 20)} == {"straight"}


def test_of_equal_ways_the_first_is_taken() -> None:
    trial = Trial(WAYS, [1, 2], 2)
    assert trial.choose(1, rows(trial, dict.fromkeys(WAYS, 0.1))).way == "first"


def test_the_first_round_of_each_does_not_count() -> None:
    trial = Trial(WAYS, [1, 2], 3)
    times = rows(trial, {"first": 0.1, "straight": 0.2})
    times[0] = [9.0] * 3
    assert trial.choose(1, times).way == "first"


def test_whoever_waits_for_others_does_not_count() -> None:
    """Its host came early in this round; the other one's slower worker is what it took."""
    trial = Trial(WAYS, [1, 2], 1)
    times = [[9.0, 9.0, 9.0]] * 2 + [[0.3, 0.0, 7.0], [5.0, 0.0, 0.1]]
    assert trial.choose(1, times).seconds == {"first": 0.1, "straight": 0.3}


@given(st.data(), st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(1, 4))
def test_a_choice_depends_on_nothing_but_the_times(
    data: st.DataObject, workers: list[int], turns: int
) -> None:
    one, other = Trial(WAYS, workers, turns), Trial(WAYS, workers, turns)
    row = st.lists(st.floats(0, 1), min_size=sum(workers), max_size=sum(workers))
    times = data.draw(st.lists(row, min_size=one.rounds, max_size=one.rounds))
    assert one.choose(9, times) == other.choose(9, times)
    assert one.choice is not None
    assert one.way(one.rounds + 3) == one.choice.way
