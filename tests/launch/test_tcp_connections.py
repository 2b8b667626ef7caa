"""What the kernel says of TCP connections, read from its own tables and from written ones."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.launch import tcp_connections
from spotmpi.launch.tcp_connections import TcpConnection, ends, unanswered

ME = os.getpid()
NOBODY = 2**22 + 1
"""Greater than any process id."""


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection, and nobody listens any more."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as listener:
        one = socket.create_connection(listener.getsockname()[:2])
        other, _ = listener.accept()
    with one, other:
        yield one, other


def name(address: tuple[object, ...]) -> str:
    return f"{address[0]}:{address[1]}"


def link(end: socket.socket) -> TcpConnection:
    return TcpConnection(name(end.getsockname()), name(end.getpeername()), False)


def test_the_other_end_of_a_link_is_found_by_whoever_has_it(pair) -> None:
    one, other = pair
    assert ends([link(one), link(other)], ME) == {link(one), link(other)}
    assert ends([link(one)], NOBODY) == set(), "it is another process's"
    theirs = link(one)
    other.close()
    assert ends([theirs], ME) == set(), "it is closed"


def test_a_link_that_is_being_opened_ends_at_who_listens_there() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        here = TcpConnection("10.0.0.1:999", f"127.0.0.1:{port}", True)
        elsewhere = here._replace(there=f"192.0.2.1:{port}")
        assert ends([here], ME) == {here}
        assert ends([elsewhere], ME) == set(), "another host's address, and the same port"
        assert ends([elsewhere, here, elsewhere._replace(here="10.0.0.2:1")], ME) == {here}
        other = here._replace(here="10.0.0.2:998")
        assert ends([here, other], ME) == {here, other}, "two that open to the same port"
        assert ends([here._replace(opening=False)], ME) == set()
    assert ends([here], ME) == set()


def test_links_that_answer_are_not_named(pair) -> None:
    pair[0].sendall(b"x")
    assert unanswered(ME) == set()


def row(end: socket.socket, state: int, again: int) -> str:
    """A line of the kernel's table about a socket of ours."""
    here = struct.unpack("=I", socket.inet_aton("10.77.0.11"))[0]
    there = struct.unpack("=I", socket.inet_aton("10.77.0.12"))[0]
    inode = os.fstat(end.fileno()).st_ino
    return (
        f"   0: {here:08X}:98B7 {there:08X}:0400 {state:02X} 00000180:00000000 01:0000004D "
        f"{again:08X}     0        0 {inode} 2 0000000000000000 20 4 30 10 -1\n"
    )


@pytest.mark.parametrize(
    ("state", "again", "found"),
    [(1, 3, True), (1, 2, False), (2, 2, True), (2, 1, False), (6, 9, False), (10, 9, False)],
)
def test_a_link_is_named_once_it_was_tried_often_enough(
    pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: int, again: int, found: bool
) -> None:
    table = tmp_path / "tcp"
    table.write_text("  sl  local_address ...\n" + row(pair[0], state, again))
    monkeypatch.setattr(tcp_connections, "_TABLES", (str(table), str(tmp_path / "tcp6")))
    named = TcpConnection("10.77.0.11:39095", "10.77.0.12:1024", state == 2)
    assert unanswered(ME) == ({named} if found else set())
    assert unanswered(NOBODY) == set(), "it is another process's"
