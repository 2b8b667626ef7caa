"""What a newcomer is taught, and who counts as one that knows it."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from spotmpi.protocol.membership import Membership, Worker
from spotmpi.protocol.state_pages import PageOrder, cut, pack, read, unpack, write


def test_a_newcomer_has_learnt_after_as_many_rounds_as_there_are_parts_whichever_was_first() -> (
    None
):
    for begun in range(3):
        pages = PageOrder(3)
        pages.admit(1)
        for _ in range(begun):
            pages.given(rest=True)
        pages.admit(2)
        parts = []
        while 2 in pages.learning:
            parts.append(pages.part)
            assert pages.last_due == (len(parts) == 3 or (1 in pages.learning and pages.part == 2))
            pages.given(rest=True)
        assert sorted(parts) == [0, 1, 2]


def test_who_has_all_parts_but_not_the_rest_goes_on_learning() -> None:
    pages = PageOrder(2)
    pages.admit(5)
    assert pages.given(rest=True) == ()
    assert pages.last_due
    assert pages.given(rest=False) == ()
    assert [*pages.learning] == [5]
    assert pages.last_due
    assert pages.given(rest=True) == (5,)
    assert not pages.learning
    assert not pages.last_due


def test_who_is_lost_learns_no_more_and_the_others_go_on() -> None:
    pages = PageOrder(2)
    for worker in (5, 6, 7):
        pages.admit(worker)
    pages.given(rest=True)
    pages.forget([6, 99])
    assert [*pages.learning] == [5, 7]
    assert pages.given(rest=True) == (5, 7)


def test_parts_are_of_one_length_or_end_where_they_may() -> None:
    assert cut(0, 4) == [(0, 0)]
    assert cut(4, 4) == [(0, 4)]
    assert cut(9, 4) == [(0, 4), (4, 8), (8, 9)]
    assert cut(9, 4, [2, 4, 5, 9]) == [(0, 4), (4, 5), (5, 9)]
    assert cut(20, 4, [1, 12, 14, 15, 20]) == [(0, 1), (1, 12), (12, 15), (15, 20)]
    assert cut(9, 4, [9]) == [(0, 9)]
    assert cut(3, 4, [0, 0, 3, 3]) == [(0, 3)]


@given(st.lists(st.integers(0, 30)), st.integers(1, 20))
def test_parts_hold_every_word_once_and_no_array_is_in_two(sizes: list[int], usual: int) -> None:
    ends = np.cumsum([0, *sizes]).tolist()[1:] or [0]
    parts = cut(ends[-1], usual, ends)
    assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == ends[-1]
    assert {end for _, end in parts} <= set(ends)
    for (begin, end), (_, following) in itertools.pairwise(parts):
        assert end > begin
        assert following - begin > usual  # else they were one
    for begin, end in parts:
        assert end - begin <= usual or not {one for one in ends if begin < one < end}


@given(
    parts=st.integers(1, 5),
    events=st.lists(st.one_of(st.just("round"), st.just("rest"), st.integers(1, 4)), max_size=40),
    at=st.integers(0, 40),
)
def test_a_newcomer_counts_along_from_wherever_it_begins(
    parts: int, events: list[Any], at: int
) -> None:
    one, other = PageOrder(parts), PageOrder(parts)
    for number, event in enumerate(events):
        if number == at:
            other.restore(**json.loads(json.dumps(one.state())))
        both = [one, other] if number >= at else [one]
        if isinstance(event, int):
            for pages in both:
                pages.admit(event)
        else:
            done = {pages.given(rest=event == "rest") for pages in both}
            assert len(done) == 1
        assert len({(x.part, (*x.learning,), x.last_due) for x in both}) == 1


def test_there_is_no_state_without_parts() -> None:
    with pytest.raises(ValueError, match="at least one part, not 0"):
        PageOrder(0)


FIELDS = st.dictionaries(
    st.text(max_size=5),
    st.one_of(st.integers(), st.floats(allow_nan=False), st.none(), st.lists(st.text(max_size=9))),
    max_size=4,
)


@given(FIELDS, st.sampled_from([np.float32, np.float64, np.uint32, np.uint64]))
def test_plain_values_come_back_from_a_page_as_they_were(
    fields: dict[str, Any], dtype: Any
) -> None:
    """Also after zeros were added to it, as words of whatever kind the page has."""
    page = np.zeros(200, np.uint64 if np.dtype(dtype).itemsize == 8 else np.uint32)
    if not write(page, fields):
        assert not page.any()
        return
    assert read(page + np.zeros_like(page)) == fields


def test_a_page_of_zeros_says_nothing() -> None:
    assert read(np.zeros(8, np.uint64)) == {}


def test_what_does_not_fit_leaves_the_page_as_it_was() -> None:
    page = np.zeros(8, np.uint64)
    assert write(page.copy(), {"x": "y" * 1000})  # what repeats itself is written short
    assert not write(page, {"x": hashlib.sha512(b"").hexdigest()})
    assert not page.any()


def test_a_membership_comes_back_as_it_was() -> None:
    members = Membership(7, (Worker(4, "a"), Worker(1, "b#2")))
    again = unpack(json.loads(json.dumps(pack(members))))
    assert again == members
    assert [worker.host for worker in again] == ["a", "b#2"]
