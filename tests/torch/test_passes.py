"""Passes of a script through its data, of which workers are lost and others come."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.torch.dealing import Deal
from spotmpi.torch.passes import DealtPass, Pass, Rhythm


@given(st.data(), st.integers(1, 60), st.integers(1, 4), st.integers(1, 3))
def test_each_sample_is_used_once_whoever_is_lost_and_comes(
    data: st.DataObject, many: int, workers: int, batch: int
) -> None:
    """Or twice, where they do not go up evenly. A newcomer is told what is left."""
    there, used, steps, uneven = list(range(workers)), Counter[int](), 0, workers

    def made(left: np.ndarray, worker: int) -> DealtPass:
        return DealtPass(Deal(left, tuple(there)), worker, batch)

    passes = {worker: made(np.arange(many), worker) for worker in there}
    drawn = {worker: iter(passes[worker]) for worker in there}
    lost: set[int] = set()
    while True:
        batches = {worker: [n for _, n in zip(range(batch), drawn[worker])] for worker in there}  # noqa: B905
        lengths = {len(one) for one in batches.values()}
        assert len(lengths) == 1, "all have batches of one size"
        if lengths == {0}:
            goes_on = {passes[worker].goes_on() for worker in there}
            if goes_on == {False}:
                break
            drawn = {worker: iter(passes[worker]) for worker in there}
            continue
        if steps and data.draw(st.booleans()):
            assert {passes[worker].place.used for worker in there} == {passes[there[0]].place.used}
            left = passes[there[0]].place.left
            assert left is not None
            there.append(max(passes) + 1)
            assert all(passes[worker].deal_anew(tuple(there)) for worker in there[:-1])
            passes[there[-1]] = made(left, there[-1])
            drawn = {worker: iter(passes[worker]) for worker in there}
            uneven += len(there)
            steps = 0
            continue
        lost = data.draw(st.sets(st.sampled_from(there), max_size=len(there) - 1))
        there = [worker for worker in there if worker not in lost]
        uneven += len(there) * (len(lost) + 1)
        for worker in there:
            passes[worker].give(batch)
            passes[worker].sum_up(tuple(there))
            used.update(batches[worker])
        steps += 1
    assert used.keys() == set(range(many))
    assert used.total() - many <= uneven


def test_samples_of_a_lost_worker_are_used_again_once_another_one_has_its_place() -> None:
    one = Pass((0, 1, 2), 12)
    for there in [(0, 1, 2), (0, 2), (0, 2), (0, 1, 2), (0, 1, 2)]:
        one.give(2)
        one.sum_up(there)
    assert one.missed == 4
    one.give(2)
    one.waste(1)
    one.sum_up((0,))
    assert one.missed == 4 + 2 + 2 * 2


@pytest.mark.parametrize(
    ("events", "joined"),
    [
        ("gs", False),  # it is not known
        ("gsgs", True),
        ("ggsggs", True),  # it sums after every second batch
        ("ggsgs", False),  # it has one more in hands
        ("gssgss", True),  # two modules
        ("ggssgss", False),
        ("gsgsg", False),  # a batch was not summed
    ],
)
def test_a_script_that_reads_ahead_is_known(events: str, joined: bool) -> None:
    one = Pass((0, 1), 100, 40)
    for again in range(2):
        assert not one.may_be_joined
        for event in events:
            if event == "g":
                one.give(2)
            else:
                one.sum_up((0, 1))
        assert one.may_be_joined == joined
        assert one.deal_anew((0, 1, 2)) is False
        assert not one.may_be_joined, again
    one.fixed_length = True
    for _ in range(2):
        one.give(2)
        one.sum_up((0, 1))
    assert not one.may_be_joined


@given(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 60), st.integers(0, 5))
def test_a_script_comes_round_when_all_its_calls_do(
    calls: list[int], many: int, origin: int
) -> None:
    """What it did with the first batch does not count, as torch does more there."""
    one = Rhythm(origin=origin)
    assert not one.beat(0, 9)
    for n in range(many):
        assert one.beat(2 * n + 2, 9 if n == 0 else calls[n % len(calls)])
        assert not one.beat(2 * n + 2, 8), "no batch came"
    seen = [calls[n % len(calls)] for n in range(1, many)]
    least = next((p for p in range(1, many) if all(map(int.__eq__, seen, seen[p:]))), 0)
    assert one.period == least
    known = least > 1 and 2 * least <= len(seen)
    assert one.comes_round == (known and (many - origin) % least == 0)


def test_calls_that_come_once_are_no_rhythm() -> None:
    one = Rhythm(origin=0)
    for n in range(100):
        one.beat(n, int(n == 40))
        assert not one.comes_round
    # All calls of before are forgotten, and batches count on: others know how many there were.
    one.begin_anew(99)
    other = Rhythm(one.batches, 0)
    assert not other.beat(99, 5)
    for n in range(100, 130):
        for there in (one, other):
            assert there.beat(n, int(n % 4 == 0))
        assert one.comes_round == other.comes_round == (n >= 107 and n % 4 == 0)
    assert not Rhythm().comes_round
