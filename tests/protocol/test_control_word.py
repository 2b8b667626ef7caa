"""The control word: exact for a million workers, and clear about wrong scripts."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from spotmpi.errors import LeftAlone, ReplicaMismatch
from spotmpi.protocol.boundary import LENGTH, Payload, boundary, follow
from spotmpi.protocol.control_word import (
    END,
    GATHER,
    MEAN,
    MOST_WORKERS,
    ONCE,
    STEP,
    WORDS,
    WORDS_OF_ALL,
    ControlSum,
    ControlWord,
    code_of,
    pieces,
    total,
)
from spotmpi.protocol.ending import Ending

DIGESTS = st.integers(0, 2**64 - 1)


def combined(*words: ControlWord) -> ControlSum:
    """As the all-reduce adds them up."""
    result = np.zeros(WORDS)
    for word in words:
        result += np.array(word.encode())
    return total(result, len(words))


@pytest.mark.parametrize("flag", ["save", "published", "stop", "newcomer"])
def test_one_worker_is_enough_for_a_flag(flag: str) -> None:
    words = [ControlWord(STEP, worker) for worker in range(5)]
    assert not getattr(combined(*words), flag)
    assert getattr(combined(*words, words[3]._replace(**{flag: True})), flag)


def test_the_loss_is_weighted_as_gradients_are() -> None:
    words = [
        ControlWord(STEP, 0, loss=1.0, loss_weight=3),
        ControlWord(STEP, 1, loss=5.0, loss_weight=1),
    ]
    assert combined(*words, ControlWord(STEP, 2)).loss == 2.0
    assert combined(ControlWord(STEP, 0, loss=7.0)).loss is None


@given(DIGESTS)
def test_a_digest_comes_back_whole_from_its_pieces(digest: int) -> None:
    assert sum(int(piece) << (32 * i) for i, piece in enumerate(pieces(digest))) == digest


@given(DIGESTS, st.sampled_from([1, 2, 3, 1000, MOST_WORKERS]))
def test_digests_of_equal_replicas_are_equal_on_as_many_workers_as_there_can_be(
    digest: int, workers: int
) -> None:
    """Each partial sum is exact, in whatever order it is taken."""
    everybody = np.array(ControlWord(STEP, 0, digest=digest).encode())
    sums = [int(number) * workers for number in everybody]
    assert max(sums) < 2**53
    total(everybody * float(workers), workers).check_digest(digest, 3)


@given(DIGESTS, DIGESTS)
def test_one_replica_that_differs_is_noticed_by_all(digest: int, other: int) -> None:
    if digest == other:
        return
    words = [ControlWord(STEP, worker, digest=digest) for worker in range(3)]
    words[1] = words[1]._replace(digest=other)
    for own in (digest, other):
        with pytest.raises(ReplicaMismatch, match="the replicas differ before round 9"):
            combined(*words).check_digest(own, 9)


def test_replicas_are_compared_only_when_all_have_a_digest() -> None:
    """A worker that was repaired has none."""
    combined(ControlWord(STEP, 0, digest=5), ControlWord(STEP, 1)).check_digest(5, 0)
    combined(ControlWord(STEP, 0, digest=5)).check_digest(None, 0)


def test_the_one_worker_that_left_is_named_to_all_others() -> None:
    words = [ControlWord(STEP, 0), ControlWord(END, 6), ControlWord(STEP, 2)]
    with pytest.raises(LeftAlone, match="worker 6 left the training loop in round 4 while the ot"):
        combined(*words).check_kind(STEP, 4)
    combined(*[ControlWord(END, worker) for worker in range(3)]).check_kind(END, 4)


def test_different_calls_are_counted() -> None:
    words = [ControlWord(STEP, 0), ControlWord(MEAN, 1), ControlWord(MEAN, 2)]
    for kind in (STEP, MEAN):
        with pytest.raises(LeftAlone, match=r"1 in step\(\), 2 in mean\(\)\. Every worker must"):
            combined(*words).check_kind(kind, 0)


def test_those_who_leave_are_counted() -> None:
    words = [ControlWord(STEP, worker, leaves=worker % 2 == 0) for worker in range(5)]
    assert combined(*words).leaving == 3
    assert combined(*words[1::2]).leaving == 0


def learned(*words: ControlWord) -> ControlSum:
    """The sum as read by all, for the number of those who knew what round it was."""
    values = combined(*words).values
    return ControlSum(values, sum(word.kind is not None for word in words))


@pytest.mark.parametrize("kind", [STEP, MEAN, GATHER, END])
def test_who_learns_reads_what_round_it_was_and_is_no_reason_to_complain(kind: int) -> None:
    read = learned(ControlWord(kind, 0), ControlWord(None, 7), ControlWord(kind, 2))
    assert read.kind == kind
    read.check_kind(kind, 5)
    assert (read.leaving, read.newcomer, read.stop, read.loss) == (0, False, False, None)


def test_who_learns_has_no_digest_to_compare() -> None:
    words = [
        ControlWord(STEP, 0, digest=5),
        ControlWord(None, 7, digest=6),
        ControlWord(STEP, 2, digest=5),
    ]
    learned(*words).check_digest(5, 3)
    words[2] = words[2]._replace(digest=4)
    with pytest.raises(ReplicaMismatch):
        learned(*words).check_digest(5, 3)


def test_whoever_says_a_round_is_over_beside_a_learner_is_still_named() -> None:
    with pytest.raises(LeftAlone, match="worker 6 left the training loop in round 4 while the ot"):
        learned(
            ControlWord(STEP, 0), ControlWord(None, 9), ControlWord(END, 6), ControlWord(STEP, 1)
        ).check_kind(STEP, 4)


def test_a_learner_sees_the_end_where_late_workers_still_step() -> None:
    """They count for themselves, and end with the others, however many they are."""
    late = [ControlWord(STEP, worker, late=True) for worker in (5, 6)]
    found = combined(ControlWord(END, 0), *late)
    assert found.over
    assert found.kind == END
    assert combined(ControlWord(STEP, 0), *late).kind == STEP


def test_values_that_are_gathered_come_after_a_table_of_their_lengths() -> None:
    """And nobody joins or leaves before they have come."""
    ending = Ending()
    word = combined(
        *(ControlWord(GATHER, worker, numbers=10 * worker, newcomer=True) for worker in range(3))
    )
    table = follow(ending, word, None, full=3, learnt=0)
    assert (table.payload, table.changes) == (Payload(GATHER, 3 * LENGTH, lengths=True), False)
    values = follow(ending, word, table.payload, full=3, learnt=0)
    assert (values.payload, values.changes) == (Payload(GATHER, 30), False)
    after = follow(ending, word, values.payload, full=3, learnt=0)
    assert (after.payload, after.changes) == (None, True)


def test_values_of_one_length_come_without_a_table() -> None:
    ending = Ending()
    word = combined(*(ControlWord(GATHER, worker, numbers=9, newcomer=True) for worker in range(3)))
    values = follow(ending, word, None, full=3, learnt=0)
    assert (values.payload, values.changes) == (Payload(GATHER, 27), False)
    after = follow(ending, word, values.payload, full=3, learnt=0)
    assert (after.payload, after.changes) == (None, True)


def test_where_nobody_has_a_value_one_round_is_all() -> None:
    """Also if who had one is lost before the table of lengths is made."""
    word = combined(*(ControlWord(GATHER, worker, newcomer=True) for worker in range(3)))
    for last in (None, Payload(GATHER, 3 * LENGTH, lengths=True)):
        after = follow(Ending(), word, last, full=3, learnt=0)
        assert (after.payload, after.changes) == (None, True)


def test_each_worker_s_words_have_a_place() -> None:
    word = combined(*(ControlWord(WORDS_OF_ALL, worker, numbers=7) for worker in range(3)))
    asked = follow(Ending(), word, None, full=3, learnt=0).payload
    assert asked == Payload(WORDS_OF_ALL, 7, places=3)
    assert follow(Ending(), word, asked, full=2, learnt=0).payload is None


SMALL = st.integers(1, 9)
NEAR = st.integers((1 << 16) - 3, 1 << 16)
LARGE = st.integers((1 << 16) + 1, 1 << 40)


@given(st.lists(SMALL | NEAR | LARGE, min_size=1, max_size=40), st.booleans())
@example([1 << 16] * 7 + [1 << 14] * 5 + [98_304], False)  # as if alike, if the last had no square
def test_values_of_other_lengths_are_not_taken_for_those_of_one(
    lengths: list[int], alike: bool
) -> None:
    """Nor are large ones, whose squares are no exact numbers."""
    those = lengths[:1] * len(lengths) if alike else lengths
    word = combined(*(ControlWord(GATHER, 0, numbers=length) for length in those))
    assert word.alike == (len({*those}) == 1 and max(those) <= 1 << 16)


def test_lengths_are_compared_among_as_many_workers_as_there_can_be() -> None:
    word, one = ControlWord(GATHER, 0, numbers=1 << 16), ControlWord(GATHER, 0, numbers=1)
    most = np.array(word.encode()) * MOST_WORKERS
    assert total(most, MOST_WORKERS).alike
    assert not total(most - word.encode() + one.encode(), MOST_WORKERS).alike
    assert not total(most + one._replace(numbers=1 << 17).encode(), MOST_WORKERS + 1).alike


@pytest.mark.parametrize(
    ("others", "recent", "stray"),
    [
        ([(GATHER, 5)] * 2, [(GATHER, 5)], False),
        ([(GATHER, 5)] * 2, [(GATHER, 5), (GATHER, 6)], True),
        ([(GATHER, 5)], [(GATHER, 5), (STEP, 0), (GATHER, 5)], True),
        ([(MEAN, 0)] * 2, [(STEP, 0), (ONCE, 0)], True),  # two mistakes that could make up
        ([(STEP, 0)] * 2, [(END, 0)] * 3, True),
        ([(END, 0)] * 3, [(STEP, 0)], True),
        ([(END, 0)] * 3, [(END, 0)], False),
        ([(STEP, 0), (GATHER, 5)], [], False),  # who has been there for long makes a mistake
        ([], [(STEP, 0), (GATHER, 5)], False),
    ],
)
def test_who_joined_lately_is_the_one_that_goes_astray(
    others: list[tuple[int, int]], recent: list[tuple[int, int]], stray: bool
) -> None:
    words = [ControlWord(kind, 0, call=call) for kind, call in others]
    words += [ControlWord(kind, 9, call=call, recent=True) for kind, call in recent]
    found = combined(*words).astray
    assert found == (code_of(*others[0]) if stray else None)
    assert learned(ControlWord(None, 7), *words).astray == found
    after = boundary(combined(*words), None, stopping=False, full=len(words), learnt=0)
    assert after.astray == found
    assert not stray or after.payload is None


def test_a_mean_of_arrays_of_different_sizes_is_a_mistake() -> None:
    words = [ControlWord(MEAN, worker, numbers=3) for worker in range(3)]
    assert combined(*words).numbers == 3
    combined(*words).check_numbers(3, 9)
    with pytest.raises(ReplicaMismatch, match=r"in round 9 the 3 workers called trainer.mean\(\)"):
        combined(*words[:2], words[2]._replace(numbers=4)).check_numbers(3, 9)


@pytest.mark.parametrize("brought", [0, 1, 2, 3])
def test_a_call_is_answered_once_all_have_brought_what_they_ask_for(brought: int) -> None:
    words = [ControlWord(MEAN, worker, brought=worker < brought) for worker in range(3)]
    assert combined(*words).brought == (brought == 3)
