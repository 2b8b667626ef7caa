"""Lines stay whole, and a reader that is slow or gone does no harm."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from spotmpi.launch.lines import Lines, Sink


class Pipe:
    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self.writing, False)
        self.sink = Sink(self.writing)

    def shown(self) -> bytes:
        while self.sink.waiting:
            self.sink.push()
        try:
            return os.read(self.reading, 1 << 20)
        except BlockingIOError:
            return b""


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.writing)


def test_a_line_is_shown_when_it_is_whole(pipe: Pipe) -> None:
    one, other = Lines(pipe.sink), Lines(pipe.sink)
    one.feed(b"one's beg")
    other.feed(b"other's line\nother's next")
    assert pipe.shown() == b"other's line\n"
    one.feed(b"inning\n")
    assert pipe.shown() == b"one's beginning\n"
    other.close()
    one.close()
    assert pipe.shown() == b"other's next\n"


def test_a_progress_bar_is_shown_as_it_moves(pipe: Pipe) -> None:
    lines = Lines(pipe.sink)
    lines.feed(b"10 %\r20 %\r30")
    assert pipe.shown() == b"10 %\r20 %\r"


def test_every_line_has_the_prefix_once(pipe: Pipe) -> None:
    lines = Lines(pipe.sink, "[3] ")
    lines.feed(b"one\ntw")
    lines.feed(b"o\r\n50 %\rlast")
    lines.close()
    assert pipe.shown() == b"[3] one\n[3] two\r\n[3] 50 %\r[3] last\n"


def test_a_line_without_end_is_not_kept_for_ever(pipe: Pipe) -> None:
    lines = Lines(pipe.sink)
    lines.feed(b"x" * (1 << 20))
    assert not pipe.sink.waiting
    lines.feed(b"x")
    assert pipe.sink.full


def test_a_reader_that_went_away_is_no_error(pipe: Pipe) -> None:
    os.close(pipe.reading)
    pipe.sink.write(b"hello\n")
    pipe.sink.push()
    assert not pipe.sink.waiting
    pipe.sink.write(b"more\n")
    assert not pipe.sink.waiting
    pipe.sink.drain()
