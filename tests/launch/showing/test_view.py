"""On a terminal a line lives; in a log there is one now and then."""

from __future__ import annotations

from spotmpi.launch.head.fates import WorkerState
from spotmpi.launch.showing.view import View
from tests.launch.commands.test_status_table import status

STATUS = status([WorkerState("h1", "training", "")] * 2, step=3, loss=0.5)


class Console:
    def __init__(self, width: int | None) -> None:
        self.width = width
        self.shown: list[str] = []
        self.said: list[str] = []

    def show(self, line: str) -> None:
        self.shown.append(line)

    def say(self, text: str) -> None:
        self.said.append(text)


def test_on_a_terminal_each_look_is_shown_as_wide_as_it_is() -> None:
    console = Console(8)
    view = View(console)
    view.look(STATUS)
    view.look(STATUS)
    assert (console.shown, console.said) == (["step 3"] * 2, [])


def test_a_log_has_a_line_a_minute() -> None:
    console = Console(None)
    view = View(console)
    for _ in range(59):
        view.look(STATUS)
    assert console.said == []
    for _ in range(61):
        view.look(STATUS)
    assert (console.shown, console.said) == ([], ["step 3, loss 0.5, 2 workers"] * 2)


def test_a_log_has_more_lines_while_many_workers_start() -> None:
    console = Console(None)
    view = View(console)
    starting = status([WorkerState("h1", "starting", "")] * 17, seconds=15.0)
    for _ in range(14):
        view.look(starting)
    assert console.said == []
    for _ in range(20):
        view.look(starting)
    assert console.said == ["0 of 17 workers ready after 15 s"] * 2
    for _ in range(20):
        view.look(status([WorkerState("h1", "starting", "")] * 16))
    assert len(console.said) == 2


def test_what_is_said_renews_the_line_on_a_terminal_once_there_is_one() -> None:
    console = Console(8)
    view = View(console)
    view.renew(lambda: STATUS)
    assert console.shown == []
    view.look(STATUS)
    view.renew(lambda: status([WorkerState("h1", "training", "")], step=4))
    assert console.shown == ["step 3", "step 4"]


def test_what_is_said_in_a_log_needs_no_line_behind_it() -> None:
    console = Console(None)
    view = View(console)
    view.look(STATUS)
    view.renew(lambda: STATUS)
    assert (console.shown, console.said) == ([], [])
