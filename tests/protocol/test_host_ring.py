"""Sums between hosts, on paper: messages say which contributions are in them."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.protocol.host_ring import (
    Course,
    carried,
    carriers,
    courses,
    cut,
    exchanges,
    orders,
    passages,
)

HOSTS = st.lists(st.integers(1, 7), min_size=2, max_size=5)


class Worker:
    """One worker's way through all its rings; element by element, what is in its host's result."""

    def __init__(self, host: int, courses: list[Course], result: list[object]) -> None:
        self.host = host
        self.courses = courses
        self.result = result
        self.sent = [0] * len(courses)
        self.got = [0] * len(courses)

    def done(self) -> bool:
        return all(
            sent == len(course.outgoing) and got == len(course.incoming)
            for course, sent, got in zip(self.courses, self.sent, self.got, strict=True)
        )


def travel(size: int, workers: list[int], message: int, seed: int) -> list[list[object]]:
    """Every host's result, after all messages have gone and come in an order that is drawn."""
    results: list[list[object]] = [[None] * size for _ in workers]
    crew = {
        (host, place): Worker(host, courses(size, workers, host, place, message), results[host])
        for host, count in enumerate(workers)
        for place in range(count)
    }
    lines: dict[tuple[int, int, int, int], deque[list[object]]] = {}
    draw = random.Random(seed)
    while not all(worker.done() for worker in crew.values()):
        moves = []
        for (host, place), worker in crew.items():
            for index, course in enumerate(worker.courses):
                out, got = worker.sent[index], worker.got[index]
                if out < min(course.begun + got, len(course.outgoing)):
                    moves.append((host, place, index, True))
                before = (host - 1) % len(workers), course.before, host, place
                if got < len(course.incoming) and lines.get((*before, course.ring)):
                    moves.append((host, place, index, False))
        assert moves, "nobody can go on"
        host, place, index, sends = draw.choice(moves)
        worker = crew[host, place]
        course = worker.courses[index]
        if sends:
            out = worker.sent[index]
            part = course.outgoing[out]
            if out < course.begun:
                worker.result[part] = [(host,)] * (part.stop - part.start)
            to = host, place, (host + 1) % len(workers), course.after, course.ring
            lines.setdefault(to, deque()).append(worker.result[part])
            worker.sent[index] += 1
        else:
            got = worker.got[index]
            part = course.incoming[got]
            came = lines[(host - 1) % len(workers), course.before, host, place, course.ring]
            values = came.popleft()
            assert len(values) == part.stop - part.start
            if got < course.partial:
                values = [(*value, host) for value in values]
            worker.result[part] = values
            if course.begun + got < len(course.outgoing):
                assert course.outgoing[course.begun + got] == part, "it is sent on"
            worker.got[index] += 1
    assert not any(lines.values()), "a message is left over"
    return results


@given(HOSTS, st.integers(0, 700), st.integers(1, 64), st.integers(0, 3))
@pytest.mark.matrix
def test_all_hosts_get_the_same_sums_in_the_order_that_is_said(
    workers: list[int], size: int, message: int, seed: int
) -> None:
    expected: list[object] = [None] * size
    for part, hosts in orders(size, workers):
        expected[part] = [tuple(hosts)] * (part.stop - part.start)
    for result in travel(size, workers, message, seed):
        assert result == expected
    assert all(sorted(one) == list(range(len(workers))) for one in expected)


@given(HOSTS, st.integers(0, 5000), st.integers(1, 999))
def test_no_host_sends_more_than_it_must(workers: list[int], size: int, message: int) -> None:
    """And all send about as much."""
    hosts = len(workers)
    for host, count in enumerate(workers):
        mine = [
            one for place in range(count) for one in courses(size, workers, host, place, message)
        ]
        for way in ("outgoing", "incoming"):
            went = sum(one.stop - one.start for course in mine for one in getattr(course, way))
            spare = 16 * 2 * hosts * max(workers)
            assert went <= 2 * (hosts - 1) * size / hosts + spare


@given(HOSTS, st.integers(0, 5000), st.integers(1, 999))
def test_each_element_is_added_once_on_each_host_by_who_carries_it(
    workers: list[int], size: int, message: int
) -> None:
    seen = [[0] * size for _ in workers]
    for host, count in enumerate(workers):
        for place in range(count):
            mine = {i for part in carried(size, workers, host, place) for i in range(size)[part]}
            added: set[int] = set()
            for course in courses(size, workers, host, place, message):
                own = course.outgoing[: course.begun]
                for part in (*own, *course.incoming[: course.partial]):
                    added |= set(range(size)[part])
            assert added == mine
            for i in mine:
                seen[host][i] += 1
    assert all(count == 1 for host in seen for count in host)
    owners = [hops[-1] for _, hops in carriers(size, workers)]
    for host, place in set(owners):
        owned = {
            i
            for course in courses(size, workers, host, place, message)
            for part in course.incoming[course.owned : course.partial]
            for i in range(size)[part]
        }
        assert owned == {
            i
            for part, hops in carriers(size, workers)
            if hops[-1] == (host, place)
            for i in range(size)[part]
        }


@given(HOSTS)
def test_every_worker_has_a_ring_and_its_neighbours_know_it(workers: list[int]) -> None:
    rings: dict[tuple[int, int], tuple[int, Course]] = {}
    for host, count in enumerate(workers):
        for place in range(count):
            mine = courses(10_000, workers, host, place, 100)
            assert mine
            rings |= {(host, course.ring): (place, course) for course in mine}
    assert len(rings) == len(workers) * max(workers)
    for (host, ring), (place, course) in rings.items():
        following, there = rings[(host + 1) % len(workers), ring]
        assert course.after == following
        assert there.before == place
        assert list(course.outgoing) == list(there.incoming)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("size", [0, 1, 16, 1000])
def test_pieces_are_whole_cache_lines_and_nothing_is_missing(size: int, count: int) -> None:
    pieces = [cut(size, which, count, 32) for which in range(count)]
    assert [one.start for one in pieces] == [32, *(one.stop for one in pieces[:-1])]
    assert pieces[-1].stop == 32 + size
    assert all(one.start % 16 == 0 or one.start == 32 + size for one in pieces)


@given(HOSTS, st.integers(0, 5000), st.integers(1, 999))
def test_what_goes_straight_has_one_owner_and_partners_that_know_each_other(
    workers: list[int], size: int, message: int
) -> None:
    seen = [0] * size
    pairs: dict[tuple[int, int], list[object]] = {}
    for host, count in enumerate(workers):
        for place in range(count):
            for one in exchanges(size, workers, host, place, message):
                assert one.partners[host] == place
                assert (host, one.ring) not in pairs, "one worker of each host has it"
                pairs[host, one.ring] = [list(one.partners), one.shares]
                for part in one.shares[host]:
                    assert 0 < part.stop - part.start <= message
                    for i in range(size)[part]:
                        seen[i] += 1
    assert seen == [1] * size
    rings = {ring for _, ring in pairs}
    assert rings == set(range(len(rings)))
    assert len(rings) <= max(1, -(-size // message))
    for ring in rings:
        assert all(pairs[host, ring] == pairs[0, ring] for host in range(len(workers)))


@given(
    HOSTS,
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4)), max_size=7),
    st.integers(1, 64),
    st.integers(0, 3),
)
def test_all_hosts_get_what_one_gives_once_in_any_order_of_messages(
    workers: list[int], drawn: list[tuple[int, int]], message: int, seed: int
) -> None:
    hosts, draw = len(workers), random.Random(seed)
    arrays = [(size, giver % hosts) for size, giver in drawn]
    seen = [[[giver == host] * size for size, giver in arrays] for host in range(hosts)]
    crew = [
        (host, place, one)
        for host, count in enumerate(workers)
        for place in range(count)
        for one in passages(arrays, workers, host, place, message)
    ]
    sent, got = [0] * len(crew), [0] * len(crew)
    lines: dict[tuple[int, int, int], deque[tuple[int, slice]]] = {}
    while True:
        moves = []
        for index, (host, place, one) in enumerate(crew):
            if sent[index] < min(one.begun + got[index], len(one.outgoing)):
                moves.append((index, True))
            if lines.get((host, place, one.ring)):
                moves.append((index, False))
        if not moves:
            break
        index, sends = draw.choice(moves)
        host, place, one = crew[index]
        if sends:
            which, part = one.outgoing[sent[index]]
            assert all(seen[host][which][part]), "it is there"
            to = (host + 1) % hosts, one.after, one.ring
            lines.setdefault(to, deque()).append((which, part))
            sent[index] += 1
        else:
            which, part = lines[host, place, one.ring].popleft()
            assert (which, part) == one.incoming[got[index]]
            assert not any(seen[host][which][part]), "it comes once"
            seen[host][which][part] = [True] * (part.stop - part.start)
            got[index] += 1
    assert all(all(array) for host in seen for array in host)
    for (_, _, one), out, there in zip(crew, sent, got, strict=True):
        assert (out, there) == (len(one.outgoing), len(one.incoming))
