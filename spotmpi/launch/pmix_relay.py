"""The workers' connections to mpirun's PMIx server, carried through a trunk.

A worker on another host cannot reach the server: it listens on the head's loopback only, and
should. So the agent listens on the loopback of its own host, and each connection that is made
there is one made on the head, `RELAY` frames between them. PMIx believes whatever user id a client
claims, so the agent lets nobody in but processes of its own user.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from spotmpi.launch.event_loop import READ, WRITE, Action, Loop

__all__ = ["Doorway", "Relay", "server_port", "with_port"]

_CHUNK = 1 << 16
_MOST = 1 << 24
"""Bytes that may wait for the one at the end of a connection."""

_ESTABLISHED = 1
_URI = re.compile(r"(tcp4://127\.0\.0\.1):(\d+)")


def server_port(environ: Mapping[str, str]) -> int | None:
    """The port of the PMIx server that mpirun's environment names; None if it names none."""
    for name, value in environ.items():
        if name.startswith("PMIX_SERVER_URI") and (found := _URI.search(value)):
            return int(found[2])
    return None


def with_port(environ: Mapping[str, str], port: int) -> dict[str, str]:
    """``environ`` with another port for the PMIx server, for a worker behind a relay."""
    moved = {
        name: _URI.sub(rf"\1:{port}", value) if name.startswith("PMIX_SERVER_URI") else value
        for name, value in environ.items()
    }
    # The server offers its data in shared memory, which does not reach other hosts.
    return moved | {"PMIX_GDS_MODULE": "hash", "PMIX_MCA_gds": "hash"}


class Relay:
    """The connections at one end of a trunk. ``send(connection, data)`` carries on to the other."""

    def __init__(self, loop: Loop, send: Callable[[int, bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._links: dict[int, socket.socket] = {}
        self._waiting: dict[int, bytearray] = {}
        self._turns: dict[int, Action] = {}
        self._ending: set[int] = set()
        """Closed at the other end, but with something to deliver yet."""

    def __contains__(self, connection: int) -> bool:
        return connection in self._links

    def __len__(self) -> int:
        return len(self._links)

    def connect(self, connection: int, link: socket.socket, port: int) -> None:
        """Carry on from and to a port of the loopback of the socket's network. Does not block.

        If nobody listens there, the other end is told so, as when the connection is closed.
        """
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Whatever becomes of it shows in what is received: until it stands, that is nothing yet.
        link.connect_ex(("127.0.0.1", port))
        self.add(connection, link)

    def add(self, connection: int, link: socket.socket) -> None:
        """Carry on what comes from ``link`` from now on."""
        link.setblocking(False)
        self._links[connection] = link
        self._waiting[connection] = bytearray()
        self._turns[connection] = partial(self._turn, connection)
        self._watch(connection)

    def receive(self, connection: int, data: bytes) -> None:
        """Take what the other end carried here; nothing closes the connection."""
        if connection not in self._links:
            return  # closed from this side, which the other does not know yet
        if not data:
            self._ending.add(connection)
        self._waiting[connection] += data
        if len(self._waiting[connection]) > _MOST:  # nobody reads it
            self._close(connection)
            self._send(connection, b"")
            return
        self._write(connection)

    def hang_up(self, connection: int) -> None:
        """Close a connection at both ends, if it is still there."""
        if connection in self._links:
            self._close(connection)
            self._send(connection, b"")

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._links):
            self._close(connection)

    def _turn(self, connection: int) -> None:
        self._write(connection)
        if connection not in self._links:
            return  # closed by that
        try:
            data = self._links[connection].recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
        self._send(connection, data)

    def _write(self, connection: int) -> None:
        link, waiting = self._links[connection], self._waiting[connection]
        try:
            while waiting:
                del waiting[: link.send(waiting, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)
            self._send(connection, b"")
            return
        if not waiting and connection in self._ending:
            self._close(connection)
            return
        self._watch(connection)

    def _watch(self, connection: int) -> None:
        events = READ | (WRITE if self._waiting[connection] else 0)
        self._loop.watch(self._links[connection].fileno(), self._turns[connection], events)

    def _close(self, connection: int) -> None:
        link = self._links.pop(connection)
        del self._waiting[connection], self._turns[connection]
        self._ending.discard(connection)
        self._loop.leave(link.fileno())
        link.close()


class Doorway:
    """Where a worker finds its PMIx server on an agent's host: a port on the loopback.

    ``number`` numbers connections, those of all doorways to one relay.
    """

    def __init__(self, loop: Loop, relay: Relay, number: Callable[[], int]) -> None:
        self._loop = loop
        self._relay = relay
        self._number = number
        self._connections: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        loop.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Let nobody in any more, and close the connections of those who came."""
        self._loop.leave(self._listener.fileno())
        self._listener.close()
        for connection in self._connections:
            self._relay.hang_up(connection)

    def _accept(self) -> None:
        try:
            link, (_, port) = self._listener.accept()
        except OSError:
            return
        if not _is_mine(link, port, self.port):
            link.close()
            return
        self._connections.append(self._number())
        self._relay.add(self._connections[-1], link)


def _is_mine(link: socket.socket, port: int, server: int) -> bool:
    """Whether the other end of a connection, from ``port`` to ``server``, is this user's.

    Only the kernel's word counts, and only of a socket that somebody holds: of one that was closed
    it says that it is root's. While this end is established no other socket can have these ports,
    so what was found before is about its peer if it still is so afterwards.
    """
    return _owner(port, server) == os.getuid() and _state(link) == _ESTABLISHED


def _owner(port: int, server: int) -> int | None:
    """The user who holds a socket on this host that is connected from ``port`` to ``server``.

    None also for one that was made for IPv6, as PMIx never does.
    """
    address = f"{struct.unpack('=I', socket.inet_aton('127.0.0.1'))[0]:08X}"
    ends = [f"{address}:{port:04X}", f"{address}:{server:04X}"]
    with suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, *found, state, _, _, _, user, _, inode = line.split()[:10]
            if found == ends and int(state, 16) == _ESTABLISHED and int(inode) != 0:
                return int(user)
    return None


def _state(link: socket.socket) -> int:
    return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
