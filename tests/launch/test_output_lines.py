"""Lines stay whole, and a reader that is slow or gone does no harm."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.launch import output_lines
from spotmpi.launch.output_lines import Lines, Sink

PATIENCE = 5.0


class Pipe:
    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self.writing, False)
        self.sink = Sink(self.writing, PATIENCE)

    def shown(self) -> bytes:
        while self.sink.waiting:
            self.sink.push()
        return self.shown_now()

    def shown_now(self, most: int = 1 << 20) -> bytes:
        self.sink.push()
        try:
            return os.read(self.reading, most)
        except BlockingIOError:
            return b""


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.sink.close()
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
    cut = Lines(pipe.sink)
    cut.feed(b"10 %\r20 %\r30")
    assert pipe.shown() == b"10 %\r20 %\r"


def test_every_line_has_the_prefix_once(pipe: Pipe) -> None:
    cut = Lines(pipe.sink, "[3] ")
    cut.feed(b"one\ntw")
    cut.feed(b"o\r\n50 %\rlast")
    cut.close()
    assert pipe.shown() == b"[3] one\n[3] two\r\n[3] 50 %\r[3] last\n"


def test_a_line_without_end_is_not_kept_for_ever(pipe: Pipe) -> None:
    cut = Lines(pipe.sink)
    cut.feed(b"x" * (1 << 20))
    assert not pipe.sink.waiting
    cut.feed(b"x")
    assert pipe.sink.full


def test_a_reader_that_went_away_is_no_error(pipe: Pipe) -> None:
    os.close(pipe.reading)
    pipe.sink.write(b"hello\n")
    pipe.sink.push()
    assert not pipe.sink.waiting
    pipe.sink.write(b"more\n")
    assert not pipe.sink.waiting
    pipe.sink.drain(time.monotonic())


def test_a_reader_that_stays_away_costs_what_is_too_much_and_is_told(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(output_lines.time, "monotonic", lambda: now)
    pipe.sink.write(b"x\n" * (1 << 20))
    pipe.sink.push()
    assert pipe.sink.full
    assert pipe.sink.pause() == PATIENCE
    now += PATIENCE
    pipe.sink.look()
    assert not pipe.sink.full  # nobody has to wait for it any more
    pipe.sink.write(b"1\n2\n3\n")
    pipe.sink.say(b"spotmpi: news\n")
    seen = b""
    while pipe.sink.waiting:
        now += 1
        seen += pipe.shown_now()
    assert b"3 lines (6 bytes) were dropped here" in seen
    assert b"spotmpi: news" in seen
    pipe.sink.write(b"4\n")
    assert pipe.shown() == b"4\n"


def test_a_reader_that_is_slow_loses_nothing(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(output_lines.time, "monotonic", lambda: now)
    pipe.sink.write(b"x\n" * (1 << 20))
    while pipe.sink.full:
        now += 0.9 * PATIENCE
        pipe.sink.push()
        pipe.sink.look()
        pipe.shown_now(1 << 12)
    assert pipe.sink.waiting


def test_a_stream_that_cannot_be_opened_again_is_blocking_for_others_only(
    tmp_path: Path,
) -> None:
    here, there = socket.socketpair()  # as a service manager gives it
    with here, there:
        sink = Sink(here.fileno(), PATIENCE)
        sink.write(b"x" * (1 << 22))
        for _ in range(100):
            sink.push()
        assert sink.waiting
        assert os.get_blocking(here.fileno())


def test_a_file_is_written_to_where_others_have_come_to(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as log:
        sink = Sink(log.fileno(), PATIENCE)
        log.write(b"one\n")
        sink.write(b"two\n")
        sink.push()
        log.write(b"three\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nthree\n"
