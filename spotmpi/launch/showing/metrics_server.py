"""Numbers over HTTP: a page that is made anew for whoever asks for it, in an event loop.

Nobody is waited for (`clients`). One request a connection.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from spotmpi.launch.clients import Client, Clients
from spotmpi.launch.event_loop import Loop

__all__ = ["LONGEST_REQUEST", "PATH", "MetricsServer", "url"]

PATH = "/metrics"

LONGEST_REQUEST = 8192
"""Bytes of a request, all its headers included."""


def url(listener: socket.socket) -> str:
    """Where to ask."""
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


class MetricsServer:
    """Answers at a listening socket, which stays the caller's. Never blocks.

    ``page`` makes the body, of ``kind`` (a Content-Type).
    """

    def __init__(
        self, loop: Loop, listener: socket.socket, page: Callable[[], bytes], kind: str
    ) -> None:
        self._page = page
        self._kind = kind
        self._clients = Clients(loop, listener, LONGEST_REQUEST, self._hear)

    def close(self) -> None:
        """Let everybody go."""
        self._clients.close()

    def _hear(self, client: Client) -> None:
        if b"\r\n\r\n" in client.request:
            client.asked = True
            self._clients.answer(client, self._answer(bytes(client.request.split(b"\r\n", 1)[0])))

    def _answer(self, line: bytes) -> bytes:
        """To a request that begins with this line."""
        words = line.decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response("400 Bad Request", b"this is no request\n")
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"only GET\n", "Allow: GET, HEAD")
        if target.partition("?")[0] != PATH:
            return _response("404 Not Found", f"the numbers are at {PATH}\n".encode())
        page = _response("200 OK", self._page(), kind=self._kind)
        return page if method == "GET" else page[: page.index(b"\r\n\r\n") + 4]


def _response(
    status: str, body: bytes, *headers: str, kind: str = "text/plain; charset=utf-8"
) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
