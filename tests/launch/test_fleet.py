"""What a host's agent says of its notices, to a fleet over a real connection."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spotmpi import __version__
from spotmpi.launch.agent import Assignment
from spotmpi.launch.fleet import Fleet
from spotmpi.launch.seal import Role, Seal
from spotmpi.launch.trunk import Trunk
from spotmpi.notice import Notice

TOKEN = bytes(range(32))


class Host:
    """A fleet, and a host of it whose agent says what the test wants."""

    def __init__(self) -> None:
        self.select = selectors.PollSelector()
        self.notices: list[tuple[str, Notice]] = []
        self.said: list[str] = []
        self.fleet = Fleet(
            self.select,
            Assignment("/", ["script"], {}, 60_000),
            lambda *_: None,
            lambda: False,
            lambda host, notice: self.notices.append((host, notice)),
            self.said.append,
        )
        here, there = (one.detach() for one in socket.socketpair())
        self.fleet.meet((here, here), Seal(Role.HEAD, TOKEN, bytes(32)), 60, pytest.fail)
        seal = Seal(Role.AGENT, TOKEN, bytes([1]) * 32)
        self.agent = Trunk(self.select, (there, there), seal, lambda frame: None, pytest.fail)
        self.turn_until(lambda: self.agent.open)
        self.agent.tell("hello", name="h2", slots=2, version=__version__, problem=None)
        self.agent.tell("ready")
        self.turn_until(lambda: self.fleet.hosts)

    def turn_until(self, done: Callable[[], object]) -> None:
        while not done():
            ready = self.select.select(30)
            assert ready, "nothing happens any more"
            for key, _ in ready:
                key.data()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.agent.close()
    for one in made.fleet.hosts:
        one.trunk.close()
    made.select.close()


SAID: dict[str, Any] = {
    "source": "ec2",
    "seconds": 118.0,
    "what": "EC2 spot instance action: terminate",
    "advice": False,
}


def test_seconds_that_are_left_become_a_date_of_the_head_s_clock(host: Host) -> None:
    before = time.time()
    host.agent.tell("noticed", **SAID)
    host.turn_until(lambda: host.notices)
    ((name, notice),) = host.notices
    assert (name, notice.source, notice.what) == ("h2", "ec2", SAID["what"])
    assert notice.deadline is not None
    assert before + 118 <= notice.deadline <= time.time() + 118


def test_a_notice_without_a_time_stays_without(host: Host) -> None:
    host.agent.tell("noticed", **SAID | {"seconds": None})
    host.turn_until(lambda: host.notices)
    assert host.notices[0][1].deadline is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": "soon"},
        {"seconds": [1]},
        {"seconds": float("nan")},
        {"source": None},
        {"what": 3},
        {"advice": "no"},
    ],
)
def test_a_notice_that_is_none_is_left_out(host: Host, wrong: dict[str, Any]) -> None:
    host.agent.tell("noticed", **SAID | wrong)
    host.agent.tell("noticed")
    host.agent.tell("noticed", **SAID)
    host.turn_until(lambda: host.notices)
    assert len(host.notices) == 1


def test_what_an_agent_has_for_the_user_comes_with_its_name_and_in_one_line(host: Host) -> None:
    host.agent.tell("says", text="a\x1b[2J\nb")
    host.turn_until(lambda: host.said)
    assert host.said == ["h2: a?[2J?b"]
