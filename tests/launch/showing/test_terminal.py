"""The last line of a terminal lives, and the lines above it stay whole."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from spotmpi.launch.output_lines import Sink
from spotmpi.launch.showing.terminal import LiveLine, can_show


def screen(written: bytes) -> list[str]:
    """The lines of a terminal after this was written to it."""
    lines, column = [""], 0
    for word in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+", written.decode()):
        if word == "\n":
            lines.append("")
        elif word == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif word != "\r":
            lines[-1] = lines[-1][:column] + word + lines[-1][column + len(word) :]
            column += len(word)
            continue
        column = 0 if word in "\r\n" else column
    return lines


class Terminal:
    """A terminal that nobody reads before the test does."""

    def __init__(self) -> None:
        self.reading, self.other = os.openpty()
        subprocess.run(["stty", "-opost", "cols", "40"], stdin=self.other, check=True)
        os.set_blocking(self.reading, False)
        self.sink = Sink(self.other, 5.0)
        self.live = LiveLine(self.sink)
        self.written = b""

    def screen(self) -> list[str]:
        """What stands there once all is written."""
        while self.sink.waiting:
            self.sink.push()
            self._read()
        self._read()
        return screen(self.written)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            self.written += os.read(self.reading, 1 << 16)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.sink.close()
    os.close(made.reading)
    os.close(made.other)


def test_the_line_is_replaced_and_stays_below_what_is_written(terminal: Terminal) -> None:
    terminal.live.show("step 1, loss 0.5")
    assert terminal.screen() == ["step 1, loss 0.5"]
    terminal.live.show("step 2")
    assert terminal.screen() == ["step 2"]
    terminal.live.write(b"[0] a line\n[0] another\n")
    assert terminal.screen() == ["[0] a line", "[0] another", "step 2"]
    terminal.live.say(b"spotmpi: worker 1 was revoked\n")
    expected = ["[0] a line", "[0] another", "spotmpi: worker 1 was revoked"]
    assert terminal.screen() == [*expected, "step 2"]
    terminal.live.show("step 3")
    assert terminal.screen() == [*expected, "step 3"]
    terminal.live.show("")
    assert terminal.screen() == [*expected, ""]


def test_without_a_line_nothing_is_added(terminal: Terminal) -> None:
    terminal.live.write(b"one\n")
    terminal.live.say(b"two\n")
    terminal.live.show("")
    terminal.screen()
    assert terminal.written == b"one\ntwo\n"


def test_a_progress_bar_of_a_script_is_not_written_over(terminal: Terminal) -> None:
    terminal.live.show("step 1")
    terminal.live.write(b"[0]  10 %\r")
    terminal.live.show("step 2")
    assert terminal.screen() == ["[0]  10 %"]
    terminal.live.write(b"[0] 100 %\r")
    assert terminal.screen() == ["[0] 100 %"]
    terminal.live.write(b"\n")
    assert terminal.screen() == ["[0] 100 %", "step 2"]


def test_where_nobody_reads_lines_do_not_heap_up(terminal: Terminal) -> None:
    terminal.live.write(b"x" * 99 + b"\n")
    for step in range(10_000):
        terminal.live.show(f"step {step}")
    assert terminal.screen() == ["x" * 99, ""]
    terminal.live.show("step 10000")
    assert terminal.screen() == ["x" * 99, "step 10000"]


def test_it_is_as_wide_as_the_terminal_but_for_the_cursor(terminal: Terminal) -> None:
    assert terminal.live.width == 39


def test_only_a_terminal_that_can_do_so_shows_it(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert can_show(terminal.other)
    with open(os.devnull, "wb") as nothing:
        assert not can_show(nothing.fileno())
    monkeypatch.setenv("TERM", "dumb")
    assert not can_show(terminal.other)
    monkeypatch.delenv("TERM")
    assert not can_show(terminal.other)
