"""State as one row of words, and the slices of it that go to a newcomer."""

from __future__ import annotations

from typing import Any

import numpy as np

from spotmpi.arrays.word_view import WordView
from tests.boxed import box, boxes, unbox


def sets() -> list[list[np.ndarray]]:
    """Two, whose smaller elements come first."""
    return [
        [np.arange(3, dtype=np.float32), np.arange(2.0)],
        [np.arange(3, 6, dtype=np.float32), np.arange(2.0, 4.0)],
    ]


def words(flats: list[Any]) -> list[int]:
    """Of all of these."""
    return [word for flat in flats for word in flat.view(np.uint32).tolist()]


def test_in_each_set_the_larger_elements_come_first() -> None:
    (a, b), (c, d) = sets()
    tape = WordView([a, b], [c, d])
    assert (tape.size, tape.sets) == (14, 2)
    page = np.zeros(14, np.uint32)
    tape.read(0, page)
    assert page.tolist() == words([b, a, d, c])


def test_any_slice_is_read_and_written_to_the_bit() -> None:
    (a, b), (c, d) = sets()
    truth = words([b, a, d, c])
    for start in range(15):
        for stop in range(start, 15):
            page = np.zeros(stop - start, np.uint32)
            WordView([a, b], [c, d]).read(start, page)
            assert page.tolist() == truth[start:stop]
            empty = [[np.zeros_like(flat) for flat in flats] for flats in sets()]
            WordView(*empty).write(start, page)
            there = words([empty[0][1], empty[0][0], empty[1][1], empty[1][0]])
            assert there == [0] * start + truth[start:stop] + [0] * (14 - stop)


def test_a_tape_of_arrays_that_are_elsewhere_is_the_same() -> None:
    with boxes():
        theirs = [[box(flat) for flat in flats] for flats in sets()]
        tape, page, other = WordView(*theirs), np.zeros(9, np.uint32), np.zeros(9, np.uint32)
        tape.read(3, page)
        WordView(*sets()).read(3, other)
        assert page.tolist() == other.tolist()
        tape.write(0, page)
        WordView(*sets()).write(0, other)
    assert unbox(theirs[0][1]).view(np.uint32).tolist() == page[:4].tolist()
