"""`spotmpi.bench.measuring.turns`, by a clock that counts."""

from __future__ import annotations

from functools import partial

from spotmpi.bench.measuring import turns
from spotmpi.bench.measuring.turns import Step


def test_each_turn_has_a_block_of_each_side_in_an_order_that_is_the_same_everywhere() -> None:
    orders = []
    for _ in range(2):
        calls: list[str] = []
        sides = {name: partial(calls.append, name) for name in ("mpi", "gloo", "spotmpi")}

        def clock(step: Step, steps: int, calls: list[str] = calls) -> float:
            before = len(calls)
            for _ in range(steps):
                step()
            return float(len(calls) - before)

        found = turns.take(clock, 20, sides, {"mpi": 1, "gloo": 2, "spotmpi": 3})
        assert found == {"mpi": [1.0] * 20, "gloo": [2.0] * 20, "spotmpi": [3.0] * 20}
        blocks = [calls[at : at + 6] for at in range(0, len(calls), 6)]
        assert all(len(set(block)) == 3 for block in blocks)
        assert len({tuple(block) for block in blocks}) > 1
        orders.append(calls)
    assert orders[0] == orders[1]


def test_a_block_is_as_long_as_it_shall_be_but_never_nothing() -> None:
    def nothing() -> None:
        pass

    assert turns.block(lambda step, steps: 0.001, nothing, 0.05, 200) == 50
    assert turns.block(lambda step, steps: 0.00001, nothing, 0.05, 200) == 200
    assert turns.block(lambda step, steps: 10.0, nothing, 0.05, 200) == 1


def test_sides_are_compared_in_blocks_of_one_length() -> None:
    ran: list[int] = []

    def clock(step: Step, steps: int) -> float:
        ran.append(steps)
        return 0.001 if step is quick else 0.01

    def quick() -> None:
        pass

    def slow() -> None:
        pass

    found = turns.compare(clock, 3, {"quick": quick, "slow": slow}, 0.05, 200)
    assert found == {"quick": [0.001] * 3, "slow": [0.01] * 3}
    assert sorted(ran[4:]) == [5] * 3 + [50] * 3  # those before say how long a step takes


def test_what_the_first_step_loads_makes_no_block_shorter() -> None:
    took = iter([5.0, 0.001])
    assert turns.block(lambda step, steps: next(took), lambda: None, 0.05, 200) == 50


def test_the_clock_runs_as_many_steps_as_it_is_told() -> None:
    calls: list[int] = []
    assert turns.alone(partial(calls.append, 0), 7) > 0
    assert len(calls) == 7
