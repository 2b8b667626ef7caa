"""Beats in datagrams, over real sockets of this host."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from spotmpi.launch.auth import Role, Seal
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.udp_beats import PATIENCE, UdpBeats, own_addresses
from tests.running import LIMIT

TOKEN = bytes(range(32))


def seals() -> tuple[Seal, Seal]:
    """Of a head and an agent that have proved themselves."""
    head, agent = Seal(Role.HEAD, TOKEN, bytes(32)), Seal(Role.AGENT, TOKEN, bytes([1]) * 32)
    answer, _ = head.feed(agent.greeting())
    proof, _ = agent.feed(answer)
    head.feed(proof)
    assert head.open
    assert agent.open
    return head, agent


class Ends:
    """Both ends, which have met, and where they are."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.head_seal, self.agent_seal = seals()
        self.head = UdpBeats(self.loop, self.head_seal, 0.0)
        self.agent = UdpBeats(self.loop, self.agent_seal, 0.0)
        agent_at = self.agent.offer(["127.0.0.1"])
        assert agent_at is not None
        self.agent_at = agent_at
        head_at = self.head.meet(*self.agent_at)
        assert head_at is not None
        self.head_at = head_at
        self.agent.meet(*head_at)
        self.heard(self.head)

    def heard(self, end: UdpBeats) -> float:
        """Serve both until this end has heard a beat that it had not heard; return when."""
        before = end.heard
        while end.heard == before:
            assert self.loop.turn(LIMIT), "nothing happens any more"
        return end.heard

    def settle(self) -> None:
        """Serve both until nothing is left to be read."""
        while self.loop.turn(0):
            pass


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.head.close()
    made.agent.close()
    made.loop.close()


@pytest.fixture
def alone() -> Iterator[Callable[..., UdpBeats]]:
    """``alone()`` is an end without another."""
    loop = Loop()
    made: list[UdpBeats] = []

    def make() -> UdpBeats:
        made.append(UdpBeats(loop, seals()[1], 0.0))
        return made[-1]

    yield make
    for one in made:
        one.close()
    loop.close()


def test_beats_are_heard_both_ways(ends: Ends) -> None:
    ends.settle()
    ends.agent.beat(time.monotonic())
    ends.heard(ends.head)
    ends.head.beat(time.monotonic())
    ends.heard(ends.agent)
    assert ends.head.at_work
    assert ends.agent.at_work


def test_an_end_beats_no_more_often_than_it_was_told_to() -> None:
    loop = Loop()
    head, _ = seals()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(LIMIT)
        one = UdpBeats(loop, head, 1.0)
        one.meet(*other.getsockname())
        begin = time.monotonic()
        for at in (0.1, 0.5, 1.2, 1.5, 2.1, 2.3):
            one.beat(begin + at)
        for _ in range(3):
            other.recv(100)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(100)
        one.close()
    loop.close()


def test_what_a_stranger_sends_is_not_even_delivered(ends: Ends) -> None:
    ends.settle()
    before = ends.head.heard
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(ends.agent_seal.stamp(), ends.head_at)  # though it knew how
    ends.settle()
    assert ends.head.heard == before


def test_junk_and_repetitions_from_the_right_address_count_for_nothing(ends: Ends) -> None:
    ends.settle()
    before = ends.head.heard
    stamp = ends.agent_seal.stamp()
    forged = bytearray(ends.agent_seal.stamp())
    forged[-1] ^= 1
    assert ends.agent._socket is not None
    send = ends.agent._socket.send
    for junk in (b"", b"x", bytes(24), bytes(60_000), bytes(forged), stamp[:-1], stamp + b"x"):
        send(junk)
    ends.settle()
    assert ends.head.heard == before
    send(stamp)
    first = ends.heard(ends.head)
    send(stamp)
    ends.settle()
    assert ends.head.heard == first


def test_an_end_that_is_gone_is_no_error(ends: Ends) -> None:
    ends.settle()
    before = ends.head.heard
    ends.agent.close()
    for _ in range(3):
        ends.head.beat(time.monotonic())  # the kernel says that nobody is there
        ends.settle()
    assert ends.head.heard == before
    ends.agent.beat(time.monotonic())
    ends.agent.close()


def test_an_end_that_hears_nothing_for_long_gives_up_and_closes(ends: Ends) -> None:
    ends.settle()
    ends.head.beat(ends.head.heard + PATIENCE - 1)
    assert ends.head.at_work
    ends.head.beat(ends.head.heard + PATIENCE + 1)
    assert not ends.head.at_work
    assert ends.head._socket is None
    assert ends.head.meet(*ends.agent_at) is None


@pytest.mark.parametrize(
    "address",
    ["here", "", "10.77.255.255.1", "203.0.113.1%x", "0.0.0.0", "224.0.0.1", "fe80::1", "::"],
)
def test_an_address_that_is_not_one_host_s_is_passed_over(alone, address: str) -> None:
    one = alone()
    assert one.meet(address, 9) is None
    assert one.offer([address]) is None
    one.beat(time.monotonic())
    assert one._socket is None


def test_an_address_of_another_host_is_not_offered(alone) -> None:
    one = alone()
    assert one.offer(["203.0.113.9"]) is None
    name = one.offer(["203.0.113.9", "127.0.0.1"])
    assert name is not None
    assert name[0] == "127.0.0.1"


def test_a_connection_says_by_itself_where_it_is() -> None:
    through_ssh = {"SSH_CONNECTION": "127.0.0.9 50000 127.0.0.9 22"}
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as link,
    ):
        assert own_addresses(link.fileno(), through_ssh) == ["127.0.0.1"]
        assert link.getsockname()[0] == "127.0.0.1"  # and is still open


@pytest.mark.parametrize(
    ("environ", "addresses"),
    [
        ({}, []),
        ({"SSH_CONNECTION": "x"}, []),
        ({"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22"}, ["10.0.0.2"]),
        ({"SLURM_SRUN_COMM_HOST": "127.0.0.1"}, ["127.0.0.1"]),
        ({"SLURM_SRUN_COMM_HOST": "login"}, []),
        (
            {"SLURM_SRUN_COMM_HOST": "127.0.0.1", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"},
            ["127.0.0.1", "10.0.0.2"],
        ),
    ],
)
def test_behind_a_pipe_ssh_and_srun_say_where_they_come_from(
    environ: dict[str, str], addresses: list[str]
) -> None:
    reading, writing = os.pipe()
    try:
        assert own_addresses(reading, environ) == addresses
    finally:
        os.close(reading)  # it is still open
        os.close(writing)
