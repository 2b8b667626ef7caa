"""Traces of availability: three formats, their mistakes, and how a trace begins anew."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from spotmpi.economy.market.availability import Availability, read
from spotmpi.errors import UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("availability")


def of_text(folder: Path, text: str) -> Availability:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8", newline="")
    return read(path)


def plain(trace: Availability) -> tuple[list[float], list[int], float]:
    return trace.times_s.tolist(), trace.counts.tolist(), trace.length_s


def count_at(trace: Availability, t: float) -> int:
    """How many there are at a time, found by walking along the steps; wraps around."""
    t %= trace.length_s
    steps = list(zip(*plain(trace)[:2], strict=True))
    return [count for start, count in steps if start <= t][-1]


# Formats.


EVENTS = """\
# a comment, with a "quote
ms,event,node

1000,add,a
1000,add,b
3500, remove , a
3500,add,c
4000,remove,b
9000,remove,c
"""


def test_nodes_that_come_and_go_are_counted(folder: Path) -> None:
    trace = of_text(folder, EVENTS)
    assert plain(trace) == ([0.0, 3.0], [2, 1], 8.0)
    assert (trace.times_s.dtype, trace.counts.dtype) == (np.float64, np.int64)


def test_counts_are_read_and_the_last_line_only_ends_the_trace(folder: Path) -> None:
    trace = of_text(folder, "ms,count\r\n-500,4\r\n0,4\r\n250,0\r\n250,7\r\n1000,1\r\n1500,99\r\n")
    assert plain(trace) == ([0.0, 0.75, 1.5], [4, 7, 1], 2.0)


def test_counts_of_gaps_are_read_from_json(folder: Path) -> None:
    text = '\n {"metadata": {"gap_seconds": 0.5, "zone": "b"}, "data": [3, 3, 0, 2], "x": null}'
    assert plain(of_text(folder, text)) == ([0.0, 1.0, 1.5], [3, 0, 2], 2.0)


STEPS = st.lists(
    st.tuples(st.integers(1, 10**7), st.integers(0, 10**9 - 1)), min_size=1, max_size=30
)
STARTS = st.integers(-(10**13), 10**13)


def slow(pieces: list[tuple[int, int]]) -> tuple[list[float], list[int], float]:
    """Steps of pieces (ms, nodes), neighbours of equal numbers joined."""
    at, times, counts = 0, [], []
    for ms, count in pieces:
        if not counts or counts[-1] != count:
            times.append(at / 1000)
            counts.append(count)
        at += ms
    return times, counts, at / 1000


@given(STEPS, STARTS, st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_counts_that_are_written_are_read_back(
    folder: Path, pieces: list[tuple[int, int]], start: int, names: bool, ending: str
) -> None:
    lines, at = ["time_ms,nodes"] if names else [], start
    for ms, count in pieces:
        lines.append(f"{at},{count}")
        at += ms
    lines.append(f"{at},0")
    assert plain(of_text(folder, ending.join(lines))) == slow(pieces)


@given(STEPS.map(lambda pieces: [(ms, count % 6) for ms, count in pieces]), STARTS)
def test_events_that_are_written_are_read_back(
    folder: Path, pieces: list[tuple[int, int]], start: int
) -> None:
    assume(pieces[0][1] > 0)
    lines, there, at = [], 0, start
    for ms, count in pieces:
        lines += [f"{at},add,node{i}" for i in range(there, count)]
        lines += [f"{at},remove,node{i}" for i in range(count, there)]
        there, at = count, at + ms
    lines.append(f"{at},add,end")
    assert plain(of_text(folder, "\n".join(lines))) == slow(pieces)


@given(st.lists(st.integers(0, 10**9 - 1), min_size=1), st.integers(1, 10**6))
def test_gaps_that_are_written_are_read_back(folder: Path, data: list[int], gap: int) -> None:
    text = json.dumps({"metadata": {"gap_seconds": gap}, "data": data})
    assert plain(of_text(folder, text)) == slow([(gap * 1000, count) for count in data])


# Mistakes.


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("0,add,a\n1,add,a\n", 2, "node 'a' is added, but is there since line 1"),
        ("0,add,a\n1,remove,a\n2,remove,a\n", 3, "node 'a' is removed, but is not there"),
        ("0,remove,a\n", 1, "node 'a' is removed, but is not there"),
        ("# a\u2028b\x0c\n\r\n0,add,a\n1,remove,b\n", 4, "node 'b' is removed"),
        ("5,add,a\n4,add,b\n", 2, "the time goes back, from 5 to 4 ms; sort the lines"),
        ("0,add,a\n1,drop,b\n", 2, "'drop' happens to node 'b', expected add or remove"),
        ("0,add,a\n1,add, \n", 2, "the node has no name"),
        ("0,add,a\n1,add\n", 2, "2 values, expected 3: ms,add|remove,node"),
        ("0,add,a\n1,2\n", 2, "2 values, expected 3"),
        ("x,add,a\n1,add,b\n", 1, "the time is 'x', expected whole milliseconds"),
        ("ms,a,n\nms,a,n\n", 2, "the time is 'ms', expected whole milliseconds"),
        ("0.5,1\n", 1, "the time is '0.5', expected whole milliseconds"),
        ("1e3,1\n", 1, "the time is '1e3'"),
        ("1_0,1\n", 1, "the time is '1_0'"),
        ("9999999999999999,1\n", 1, "the time is '9999999999999999'"),
        ("ms,4\n1,4\n", 1, "the time is 'ms'"),
        ("0,4\n1,-1\n", 2, "the count is '-1', expected a whole number from 0"),
        ("0,4\n1,4.5\n", 2, "the count is '4.5'"),
        ("0,4\n1,nan\n", 2, "the count is 'nan'"),
        ("0,4\n1,1000000000\n", 2, "the count is '1000000000'"),
        ("0,4\n1,\n", 2, "the count is ''"),
        ("0,4\n1,4,4\n", 2, "3 values, expected 2: ms,count"),
        ("0\n1\n", 1, r"expected ms,add|remove,node or ms,count"),
        ("1,2,3,4\n", 1, r"expected ms,add|remove,node or ms,count"),
        ('{"a":\n1,}', 2, "not JSON"),
    ],
)
def test_a_mistake_is_reported_with_its_line(
    folder: Path, text: str, line: int, complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        of_text(folder, text)
    assert f"trace, line {line}: " in str(caught.value)
    assert complaint in str(caught.value)


@given(st.integers(1, 30), st.integers(0, 30))
@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("event", "{t},add,node0"),
        ("event", "{t},remove,nobody"),
        ("event", "-1,add,x"),
        ("event", "{t},add"),
        ("count", "{t},-1"),
        ("count", "-1,1"),
        ("count", "{t}"),
    ],
)
def test_a_mistake_planted_in_a_line_is_reported_with_that_line(
    folder: Path, kind: str, bad: str, before: int, after: int
) -> None:
    number = before + after
    good = [f"{i},add,node{i}" if kind == "event" else f"{i},{i}" for i in range(number)]
    lines = ["# nodes", *good[:before], bad.replace("{t}", str(before)), *good[before:]]
    with pytest.raises(UsageError, match=rf"trace, line {before + 2}: "):
        of_text(folder, "\n".join(lines))


def gaps(gap: Any, data: Any) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap}, "data": data})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "there is no trace in it"),
        ("# nothing\n\n", "there is no trace in it"),
        ("ms,count\n", "there is no trace in it"),
        ("5,4\n5,3\n", "all of it is at 5 ms; add a line with the time at which it ends"),
        ("0,add,a\n", "all of it is at 0 ms"),
        (
            "-999999999999999,1\n999999999999999,1\n",
            "lasts 2e+12 s; are its times in milliseconds?",
        ),
        ("{}", 'expected {"metadata": {"gap_seconds": G}, "data": [n0, n1, ...]}'),
        ("[1, 2]", 'expected {"metadata": {"gap_seconds": G}'),
        ('{"metadata": 3, "data": [1]}', 'expected {"metadata"'),
        (gaps(1, []), 'expected {"metadata"'),
        (gaps(1, 3), 'expected {"metadata"'),
        (gaps(0, [1]), "metadata.gap_seconds is 0, expected seconds"),
        (gaps(-1, [1]), "metadata.gap_seconds is -1, expected seconds"),
        (gaps(True, [1]), "metadata.gap_seconds is true, expected seconds"),
        (gaps("1", [1]), 'metadata.gap_seconds is "1", expected seconds'),
        (gaps(1e13, [1]), "metadata.gap_seconds is 10000000000000.0, expected seconds"),
        ('{"metadata": {"gap_seconds": 1e999}, "data": [1]}', "gap_seconds is Infinity"),
        (gaps(1, [1, 2, -1]), "data[2] is -1, expected a whole number from 0"),
        (gaps(1, [1.0]), "data[0] is 1.0, expected a whole number"),
        (gaps(1, [1, True]), "data[1] is true, expected a whole number"),
        (gaps(1, [1, None]), "data[1] is null, expected a whole number"),
        (gaps(1, [[1]]), "data[0] is a list, expected a whole number"),
        (gaps(1, [10**9]), "data[0] is 1000000000, expected a whole number"),
        (gaps(1, [math.nan]), "not JSON: NaN is no number of JSON"),
        (gaps(math.inf, [1]), "not JSON: Infinity is no number of JSON"),
        ('{"data": [1], "data": [2]}', "not JSON: 'data' is there twice"),
        ('{"data": ' + "9" * 5000 + "}", "not JSON: "),
        ('{"data": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_trace_is_refused(folder: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        of_text(folder, text)
    assert str(folder / "trace") in str(caught.value)
    assert complaint in str(caught.value)


def test_a_file_that_cannot_be_read_is_said_so(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.csv cannot be read: No such file"):
        read(folder / "none.csv")
    with pytest.raises(UsageError, match="cannot be the name of a file"):
        read(Path("zero\0byte"))
    path = folder / "large.csv"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(UsageError, match="more than 64 MB"):
        read(path)
    path.unlink()
    (folder / "latin.csv").write_bytes(b"0,add,M\xfcnchen\n")
    with pytest.raises(UsageError, match="not text in UTF-8"):
        read(folder / "latin.csv")


@given(st.binary(max_size=100))
@example(b"\xef\xbb\xbf0,1\n5,2\n")
@pytest.mark.parametrize("head", [b"", b"0,add,a\n", b"0,5\n", b'{"metadata": {"gap_seconds": 1}'])
def test_any_bytes_are_a_trace_or_are_refused(folder: Path, head: bytes, content: bytes) -> None:
    path = folder / "bytes"
    path.write_bytes(head + content)
    try:
        trace = read(path)
    except UsageError:
        return
    assert trace.length_s > 0


@given(st.text('01234,adremov-#{}[]": e.\n\r\t\u2028\u0661', max_size=60))
@pytest.mark.parametrize(
    "head", ["", "0,add,a\n", "0,5\n", '{"metadata":{"gap_seconds":1},"data":[']
)
def test_any_text_is_a_trace_or_is_refused(folder: Path, head: str, text: str) -> None:
    try:
        trace = of_text(folder, head + text)
    except UsageError:
        return
    assert trace.length_s > 0


# The trace itself.


@given(STEPS, st.floats(0, 1e6) | st.integers(0, 10**6).map(lambda ms: ms / 1000))
def test_from_an_offset_the_trace_goes_on_and_then_begins_anew(
    pieces: list[tuple[int, int]], offset: float
) -> None:
    times, counts, length = slow(pieces)
    trace = Availability(np.array(times), np.array(counts, dtype=np.int64), length)
    shifted = Availability(*trace.from_offset(offset), length)  # which checks that times ascend
    edges = [*shifted.times_s.tolist(), length]
    for (start, end), count in zip(pairwise(edges), shifted.counts.tolist(), strict=True):
        # Between two changes, as a change itself may be off by a rounding.
        assert count == count_at(trace, offset + (start + end) / 2)
    assert len(shifted.times_s) in (len(times), len(times) + 1)


def test_an_offset_may_be_at_a_change_beyond_the_end_or_before_the_start() -> None:
    trace = Availability(np.array([0.0, 2.0, 5.0]), np.array([1, 2, 3]), 10.0)
    for offset, times, counts in [
        (0.0, [0, 2, 5], [1, 2, 3]),
        (2.0, [0, 3, 8], [2, 3, 1]),
        (3.0, [0, 2, 7, 9], [2, 3, 1, 2]),
        (13.0, [0, 2, 7, 9], [2, 3, 1, 2]),
        (-7.0, [0, 2, 7, 9], [2, 3, 1, 2]),
        (10.0, [0, 2, 5], [1, 2, 3]),
        (-1e-20, [0, 2, 5], [1, 2, 3]),
    ]:
        found = trace.from_offset(offset)
        assert (found[0].tolist(), found[1].tolist()) == (times, counts)


@pytest.mark.parametrize(
    ("times", "counts", "length", "complaint"),
    [
        ([], [], 1.0, "expected as many of both"),
        ([0.0], [1, 2], 1.0, "1 times and 2 counts, expected as many of both"),
        ([1.0], [1], 2.0, "from the time 0 on"),
        ([0.0, 0.0], [1, 2], 1.0, "do not ascend to its length"),
        ([0.0, 2.0], [1, 2], 2.0, "do not ascend to its length"),
        ([0.0], [1], math.inf, "do not ascend to its length"),
        ([0.0, math.nan], [1, 2], 2.0, "do not ascend to its length"),
        ([0.0], [-1], 2.0, "a trace has -1 nodes"),
    ],
)
def test_impossible_steps_are_refused(
    times: list[float], counts: list[int], length: float, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        Availability(np.array(times), np.array(counts, dtype=np.int64), length)
