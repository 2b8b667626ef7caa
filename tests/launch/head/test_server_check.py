"""A server that answers, one that does not, and one that answers again."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from spotmpi.launch.event_loop import Loop
from spotmpi.launch.head.server_check import ServerCheck
from spotmpi.launch.limits import Limits
from tests.running import LIMIT

EVERY, MUTE = 20.0, 10.0


class Asked:
    """A check, and the server that it asks."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(LIMIT)
        self.port: int = self.server.getsockname()[1]
        self.told: list[bool] = []
        self.check = ServerCheck(
            self.loop, socket.socket, self.told.append, Limits(question=EVERY, answer=MUTE)
        )

    def at(self, now: float) -> None:
        """Tend it, and deal with what has come by now."""
        self.check.tend(self.port, now)
        while self.loop.turn(0.05):
            pass

    def hear(self, now: float) -> None:
        """Wait until something has come, and tend it then."""
        assert self.loop.turn(LIMIT), "nothing comes"
        self.at(now)

    def question(self) -> socket.socket:
        """The server's end of what it was asked."""
        link, _ = self.server.accept()
        link.settimeout(LIMIT)
        assert link.recv(1) == b""
        return link

    def close(self) -> None:
        self.check.close()
        self.server.close()
        self.loop.close()


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.close()


def test_a_server_that_answers_is_asked_again_and_nothing_is_said(asked: Asked) -> None:
    asked.at(0.0)
    for now in (EVERY, 3 * EVERY):
        asked.at(now)
        asked.question().close()
        asked.hear(now + 1)
        asked.at(now + 1 + MUTE / 2)
    assert asked.told == []


def test_one_that_does_not_answer_is_told_once_and_again_when_it_does(asked: Asked) -> None:
    asked.at(0.0)
    asked.at(EVERY)
    link = asked.question()
    asked.at(EVERY + MUTE)
    assert asked.told == []
    for more in (1, 2, 3):
        asked.at(EVERY + MUTE + more)
    assert asked.told == [True]
    link.close()
    asked.hear(EVERY + MUTE + 4)
    assert asked.told == [True, False]


def test_one_whose_queue_is_full_does_not_answer(asked: Asked) -> None:
    """As of a server that is stopped: the kernel accepts some, and then no more."""
    asked.server.listen(0)
    with socket.create_connection(("127.0.0.1", asked.port)):
        asked.at(0.0)
        asked.at(EVERY)
        asked.at(EVERY + MUTE + 1)
    assert asked.told == [True]


def test_one_that_has_ended_is_no_matter_of_this(asked: Asked) -> None:
    asked.at(0.0)
    asked.server.close()
    asked.at(EVERY)
    asked.at(EVERY + MUTE + 1)
    assert asked.told == []
