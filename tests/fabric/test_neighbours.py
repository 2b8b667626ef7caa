"""`spotmpi.fabric.neighbours.neighbours`: what workers of a host know of each other."""

from __future__ import annotations

import subprocess
import sys

from spotmpi.fabric.neighbours.neighbours import _CARD, CARD_BYTES, Neighbours
from spotmpi.fabric.neighbours.shared_header import SharedHeader
from tests.fabric.crew import company


def test_all_of_a_host_are_present_in_the_order_of_the_members() -> None:
    all_of_them = {worker: Neighbours(SharedHeader.new(), lines=True) for worker in (7, 3, 5)}
    all_of_them[3].host = 1
    cards = {worker: one.card() for worker, one in all_of_them.items()}
    assert {len(card) for card in cards.values()} == {CARD_BYTES}
    for worker, one in all_of_them.items():
        assert one.reach(cards)
        one.bind([7, 3, 5], True)
        assert one.me == worker
        assert one.by_host([7, 3, 5]) == [[7, 5], [3]]
    assert {worker: one.place for worker, one in all_of_them.items()} == {7: 0, 3: 0, 5: 1}
    assert all_of_them[7].is_near(5)
    assert not all_of_them[7].is_near(3)


def test_without_a_line_nobody_of_another_host_is_reached() -> None:
    one, other = (Neighbours(SharedHeader.new(), lines=False) for _ in range(2))
    assert one.reach({0: one.card(), 1: other.card()})
    other.host = 1
    assert not one.reach({0: one.card(), 1: other.card()})


def test_who_shares_nothing_is_reached_by_nobody() -> None:
    one, other = (Neighbours(own, lines=False) for own in (SharedHeader.new(), None))
    cards = {0: one.card(), 1: other.card()}
    assert not one.reach(cards)
    assert not other.reach(cards)
    one.bind([0, 1], False)
    assert one.apart
    assert not one.is_near(1)


def test_a_process_that_only_has_a_worker_s_number_is_not_taken_for_it() -> None:
    """As where the worker runs in a container that numbers its processes by itself."""
    one, other = company(2)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE
    ) as process:
        _, *rest = _CARD.unpack(other.plane.neighbours.card())
        card = _CARD.pack(process.pid, *rest)
        assert not one.plane.neighbours.reach({one.me: one.plane.neighbours.card(), 7: card})
        process.kill()
        process.wait()
    assert list(one.plane.neighbours.dead()) == []
