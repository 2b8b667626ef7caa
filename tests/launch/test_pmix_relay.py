"""Connections carried from the agent's loopback to the head's, and nobody else's."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - not to be looked for by another user
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi.launch import pmix_relay
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.pmix_relay import Doorway, Relay
from tests.running import LIMIT

NOBODY = 65534
URI = "prterun-x@0.0;tcp4://127.0.0.1:41000"


def test_the_server_s_port_is_found_and_replaced_wherever_it_is_named() -> None:
    environ = {"PMIX_SERVER_URI4": URI, "PMIX_SERVER_URI41": URI, "PMIX_RANK": "3"}
    assert pmix_relay.server_port(environ) == 41000
    moved = pmix_relay.with_port(environ, 77)
    assert moved["PMIX_SERVER_URI41"] == "prterun-x@0.0;tcp4://127.0.0.1:77"
    assert pmix_relay.server_port(moved) == 77
    assert moved["PMIX_RANK"] == "3"
    assert moved["PMIX_GDS_MODULE"] == "hash"
    assert pmix_relay.server_port({"PMIX_RANK": "3"}) is None


class Both:
    """A doorway, and the relays at the two ends of what would be a trunk."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.here = Relay(self.loop, self._there)
        self.there = Relay(self.loop, lambda connection, data: self.here.receive(connection, data))
        self.doorway = Doorway(self.loop, self.here, lambda: 1)
        self.accepted: socket.socket | None = None

    def _there(self, connection: int, data: bytes) -> None:
        if connection not in self.there and data:
            link = socket.create_connection(self.server.getsockname())
            self.accepted, _ = self.server.accept()
            self.accepted.settimeout(LIMIT)
            self.there.add(connection, link)
        self.there.receive(connection, data)

    def turn_until(self, done: Callable[[], bool]) -> None:
        """Serve until something holds."""
        while not done():
            assert self.loop.turn(LIMIT), "nothing happens any more"

    def close(self) -> None:
        """Let go of everything."""
        for part in (self.doorway, self.here, self.there, self.server, self.loop):
            part.close()
        if self.accepted is not None:
            self.accepted.close()


@pytest.fixture
def both() -> Iterator[Both]:
    """Both ends in one loop."""
    made = Both()
    yield made
    made.close()


def test_bytes_travel_both_ways_and_an_end_ends_the_other(both: Both) -> None:
    client = socket.create_connection(("127.0.0.1", both.doorway.port))
    client.settimeout(LIMIT)
    client.sendall(b"question")
    both.turn_until(lambda: both.accepted is not None)
    assert both.accepted is not None
    assert both.accepted.recv(100) == b"question"
    large = bytes(range(256)) * 4000
    both.accepted.setblocking(False)
    both.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    sent = both.accepted.send(large)
    client.setblocking(False)
    got = bytearray()

    def received() -> bool:
        try:
            got.extend(client.recv(1 << 20))
        except BlockingIOError:
            return False
        return len(got) == sent

    both.turn_until(received)
    assert bytes(got) == large[:sent]
    client.close()
    both.turn_until(lambda: 1 not in both.here and 1 not in both.there)
    both.accepted.setblocking(True)
    assert both.accepted.recv(1) == b""


def test_the_server_may_hang_up_first(both: Both) -> None:
    client = socket.create_connection(("127.0.0.1", both.doorway.port))
    client.settimeout(LIMIT)
    client.sendall(b"x")
    both.turn_until(lambda: both.accepted is not None)
    assert both.accepted is not None
    both.accepted.close()
    both.turn_until(lambda: 1 not in both.here)
    assert client.recv(1) == b""
    client.close()


def test_a_doorway_that_closes_hangs_up_at_both_ends(both: Both) -> None:
    """Whoever else holds the client's end: a child of a worker that is dead, say."""
    with socket.create_connection(("127.0.0.1", both.doorway.port)) as client:
        client.sendall(b"x")
        both.turn_until(lambda: both.accepted is not None)
        assert both.accepted is not None
        assert both.accepted.recv(1) == b"x"
        both.doorway.close()
        assert 1 not in both.here
        assert 1 not in both.there
        assert both.accepted.recv(1) == b""
        both.doorway = Doorway(both.loop, both.here, lambda: 2)


def test_other_users_are_not_let_in(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmix_relay.os, "getuid", lambda: 54321)
    with socket.create_connection(("127.0.0.1", both.doorway.port)) as client:
        client.settimeout(LIMIT)
        client.sendall(b"x")
        both.loop.turn(LIMIT)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert both.accepted is None


def as_nobody(act: Callable[[], None]) -> None:
    """Do something as another user, in a process of its own, to its end."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("how", ["stays", "closes", "resets"])
def test_whoever_says_something_and_is_gone_is_still_another_user(
    both: Both, address: str, how: str
) -> None:
    kept = []

    def say() -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        client = socket.socket(family)
        client.connect((address, both.doorway.port))
        client.sendall(b"x")
        if how == "resets":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "stays":
            # Its parent holds it from now on, which does not make it the parent's.
            socket.send_fds(theirs, [b"."], [client.fileno()])

    ours, theirs = socket.socketpair()
    as_nobody(say)
    if how == "closes":
        # Until the kernel keeps nothing of it but its ports, and takes those for root's.
        tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
        ends = re.compile(rf":{both.doorway.port:04X} (0[56]) .*$", re.M)
        deadline = time.monotonic() + LIMIT
        while not any(ends.search(table.read_text()) for table in tables):
            assert time.monotonic() < deadline
    if how == "stays":
        kept = socket.recv_fds(ours, 1, 1)[1]
    for one in (ours, theirs):
        one.close()
    for _ in range(3):
        both.loop.turn(0.05)
    assert both.accepted is None
    for descriptor in kept:
        os.close(descriptor)
