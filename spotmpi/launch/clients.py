"""Who connects to ask one thing and be answered once, in an event loop.

Nobody is waited for: who says nothing, says too much or does not read is left, and only a few are
listened to at a time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from spotmpi.launch.event_loop import WRITE, Loop

__all__ = ["Client", "Clients"]

_MOST = 16
"""Clients that are listened to at a time; more wait to be accepted."""

_PATIENCE = 5.0
"""Seconds for a client to ask and to read the answer."""

_PAUSE = 0.1
"""Seconds until somebody may be listened to again, where no descriptor was free."""


class Client:
    """Somebody who connected."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.request = bytearray()
        """What it has said so far."""
        self.asked = False
        """That was all: whoever says more is left."""
        self.answer = bytearray()
        """What it has not taken yet."""


class Clients:
    """Those of one listening socket, which stays the caller's. Never blocks.

    ``hear`` is called whenever a client has said more, at most ``longest`` bytes in all; it sets
    `Client.asked` and answers, or waits for the rest. ``welcome`` says who may ask.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        longest: int,
        hear: Callable[[Client], None],
        welcome: Callable[[socket.socket], bool] = lambda link: True,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._longest = longest
        self._heard = hear
        self._welcome = welcome
        self._clients: dict[int, Client] = {}
        """By their descriptors."""
        self._aside: dict[int, Client] = {}
        self._closed = False
        listener.setblocking(False)
        self._listen(True)

    @property
    def aside(self) -> list[Client]:
        """Those that are answered later, and still there."""
        return list(self._aside.values())

    def answer(self, client: Client, data: bytes) -> None:
        """Send this, all of it, and leave."""
        client.answer += data
        self._send(client)

    def set_aside(self, client: Client) -> None:
        """It is answered later, and makes room for others; until then it may take its time."""
        del self._clients[client.link.fileno()]
        self._aside[client.link.fileno()] = client
        self._loop.cancel(client)
        self._listen(True)

    def leave(self, client: Client) -> None:
        """Let a client go, whatever it has not taken yet."""
        descriptor = client.link.fileno()
        self._clients.pop(descriptor, None)
        self._aside.pop(descriptor, None)
        self._loop.leave(descriptor)
        self._loop.cancel(client)
        client.link.close()
        if not self._closed:
            self._listen(True)

    def close(self) -> None:
        """Take no more, and let all go but those set aside. Once more does nothing."""
        if self._closed:
            return
        self._closed = True
        self._listen(False)
        self._loop.cancel(self)
        for client in list(self._clients.values()):
            self.leave(client)

    def _listen(self, on: bool) -> None:
        if on:
            self._loop.watch(self._listener.fileno(), self._accept)
        else:
            self._loop.leave(self._listener.fileno())

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._listen(False)  # no descriptor is free
            self._loop.after(_PAUSE, self, partial(self._listen, True))
            return
        if not self._welcome(link):
            link.close()
            return
        link.setblocking(False)
        client = Client(link)
        self._clients[link.fileno()] = client
        self._loop.watch(link.fileno(), partial(self._hear, client))
        self._loop.after(_PATIENCE, client, partial(self.leave, client))
        self._listen(len(self._clients) < _MOST)

    def _hear(self, client: Client) -> None:
        try:
            data = client.link.recv(self._longest)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.request += data
        if not data or client.asked or len(client.request) > self._longest:
            self.leave(client)  # it has gone, or says more than there is to say
        else:
            self._heard(client)

    def _send(self, client: Client) -> None:
        try:
            del client.answer[: client.link.send(client.answer, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError:
            client.answer.clear()
        if client.answer:
            self._loop.watch(client.link.fileno(), partial(self._send, client), WRITE)
        else:
            self.leave(client)
