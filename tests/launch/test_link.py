"""The connection of head and agent, over real sockets and pipes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from spotmpi.launch import link, messages
from spotmpi.launch.auth import Frame, Role, Seal
from spotmpi.launch.decoding import Malformed
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.link import HostLink, hasten

TOKEN = bytes(range(32))


class End:
    """One end, and what came out of it."""

    def __init__(self, loop: Loop, fds: tuple[int, int], seal: Seal) -> None:
        self.frames: list[Frame] = []
        self.gone: list[str] = []
        self.trunk = HostLink(loop, fds, seal, self.frames.append, self.gone.append)


class Pair:
    """Head and agent in one loop."""

    def __init__(self, head: tuple[int, int], agent: tuple[int, int], token: bytes) -> None:
        self.loop = Loop()
        self.agent = End(self.loop, agent, Seal(Role.AGENT, token, bytes(32)))
        self.head = End(self.loop, head, Seal(Role.HEAD, TOKEN, bytes([1]) * 32))

    def turn_until(self, done: Callable[[], bool]) -> None:
        """Serve both ends until something holds."""
        while not done():
            assert self.loop.turn(10), "nothing happens any more"

    def close(self) -> None:
        """Let go of everything."""
        self.head.trunk.close()
        self.agent.trunk.close()
        self.loop.close()


def descriptors(kind: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two connected ends: sockets, or two pipes as ssh holds them."""
    if kind == "socket":
        one, other = (s.detach() for s in socket.socketpair())
        return (one, one), (other, other)
    down, up = os.pipe(), os.pipe()
    return (up[0], down[1]), (down[0], up[1])


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Callable[..., Pair]]:
    """``pair("socket")`` connects a head and an agent."""
    made: list[Pair] = []

    def make(kind: str = "socket", token: bytes = TOKEN, met: bool = True) -> Pair:
        one = Pair(*descriptors(kind), token)
        made.append(one)
        if met:
            one.turn_until(lambda: one.head.trunk.open and one.agent.trunk.open)
        return one

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_all_kinds_of_frames_arrive_both_ways(pair, kind: str) -> None:
    both = pair(kind)
    for sender, receiver in ((both.head, both.agent), (both.agent, both.head)):
        sender.trunk.tell(messages.Kill(3))
        sender.trunk.pass_output(3, 2, b"text\n")
        sender.trunk.relay(7, b"")
        both.turn_until(lambda end=receiver: len(end.frames) == 3)
        first, second, third = receiver.frames
        assert link.read(first, messages.FROM_HEAD) == messages.Kill(3)
        assert link.read(second, {}) == link.Output(3, 2, b"text\n")
        assert link.read(third, {}) == link.Carried(7, b"")


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_more_than_fits_waits_without_blocking_and_is_not_lost(pair, kind: str) -> None:
    both = pair(kind)
    sent = [bytes([i]) * 60_000 for i in range(40)]
    for data in sent:
        both.agent.trunk.pass_output(0, 1, data)
    assert both.agent.trunk.congested
    both.turn_until(lambda: len(both.head.frames) == len(sent))
    assert [link.read(frame, {}).data for frame in both.head.frames] == sent
    assert not both.agent.trunk.congested


def test_a_beat_is_heard_and_is_no_frame_for_anybody(pair) -> None:
    both = pair()
    before = both.head.trunk.heard
    both.agent.trunk.beat()
    both.turn_until(lambda: both.head.trunk.heard > before)
    assert both.head.frames == []


def test_nothing_is_said_to_an_end_that_has_not_proved_itself(pair) -> None:
    both = pair(met=False)
    both.head.trunk.tell(messages.Kill(1))
    assert not both.head.trunk.open
    both.turn_until(lambda: both.agent.trunk.open)
    assert both.agent.frames == []


def test_another_token_ends_the_connection_and_says_why(pair) -> None:
    both = pair(token=bytes(32), met=False)
    both.turn_until(lambda: bool(both.agent.gone))
    assert both.agent.gone[0].startswith("the head has another token")
    both.turn_until(lambda: bool(both.head.gone))
    assert both.head.gone[0].startswith("it closed the connection when it was to prove that it ")


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_an_end_that_goes_is_noticed_once(pair, kind: str) -> None:
    both = pair(kind)
    both.agent.trunk.close()
    for _ in range(3):
        both.head.trunk.tell(messages.End())  # and nobody is called back in the middle of this
    both.turn_until(lambda: bool(both.head.gone))
    assert len(both.head.gone) == 1
    both.head.trunk.tell(messages.End())
    assert not both.head.trunk.open


def test_an_end_that_lives_and_does_not_read_is_left(pair, monkeypatch) -> None:
    """Else what waits for it would fill the memory."""
    monkeypatch.setattr(link, "_MOST", 1 << 20)
    both = pair("pipe")
    for _ in range(40):
        both.head.trunk.pass_output(0, 1, bytes(60_000))
    both.agent.trunk.beat()
    both.loop.leave(both.agent.trunk._reading)
    both.loop.turn(10)
    assert both.head.gone == ["it does not read what it is sent"]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(link.MESSAGE, b"{}"),
        Frame(link.OUTPUT, b"\0\0\0"),
        Frame(link.OUTPUT, b"\0\0\0\0\4text"),
        Frame(link.RELAY, b"\0"),
        Frame(9, b""),
    ],
)
def test_a_frame_that_is_none_is_known(frame: Frame) -> None:
    with pytest.raises(Malformed):
        link.read(frame, messages.FROM_AGENT)


def test_what_does_not_arrive_is_sent_again_each_second_where_the_kernel_can() -> None:
    with socket.socket() as usual, socket.socket() as hastened:
        hasten(hastened)
        assert hastened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        try:
            longest = usual.getsockopt(socket.IPPROTO_TCP, 44)
        except OSError:
            return  # it cannot
        assert hastened.getsockopt(socket.IPPROTO_TCP, 44) == min(longest, 1000)
