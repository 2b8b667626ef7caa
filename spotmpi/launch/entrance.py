"""The port at which agents come in by themselves: `spotmpi agent --head HOST:PORT`.

Whoever cannot prove that it knows the token gets nothing but time: a connection must introduce
itself within seconds, few may wait at a time, and an address that fails again and again is not
even listened to for a while.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial

from spotmpi.launch.fleet import Fleet
from spotmpi.launch.seal import NONCE_BYTES, Role, Seal

__all__ = ["Entrance", "bind"]

_FOR_INTRODUCTION = 10.0
"""Seconds until a connection must have become a host."""

_MOST = 64
"""Connections that may wait for that at a time."""

_FAILURES = 5
_REST = 30.0
"""Seconds for which an address that has failed so often is not listened to."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    listener = socket.create_server((host, port), backlog=_MOST)
    listener.setblocking(False)
    return listener


class Entrance:
    """Takes connections, and hands them to the fleet. ``say`` tells the user who was refused."""

    def __init__(
        self,
        select: selectors.BaseSelector,
        fleet: Fleet,
        listener: socket.socket,
        token: bytes,
        say: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._listener = listener
        self._token = token
        self._say = say
        self._failures: dict[str, list[float]] = {}
        select.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            link, address = self._listener.accept()
        except OSError:
            return
        source = str(address[0])
        if self._fleet.guests >= _MOST or self._resting(source):
            link.close()
            return
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        seal = Seal(Role.HEAD, self._token, secrets.token_bytes(NONCE_BYTES))
        descriptor = link.detach()
        ends = (descriptor, descriptor)
        self._fleet.meet(ends, seal, _FOR_INTRODUCTION, partial(self._failed, source))

    def _resting(self, source: str) -> bool:
        now = time.monotonic()
        recent = [at for at in self._failures.get(source, ()) if now - at < _REST]
        if recent:
            self._failures[source] = recent
        else:
            self._failures.pop(source, None)
        return len(recent) >= _FAILURES

    def _failed(self, source: str, why: str) -> None:
        self._failures.setdefault(source, []).append(time.monotonic())
        if self._resting(source):
            why += f"; nothing is heard from there for {_REST:.0f} s"
        self._say(f"refused a connection from {source}: {why}")
