"""One question to a cloud's metadata service, and its answer.

Never through a proxy: `http.client` knows of none, and nothing here looks at the environment.
Whatever is at the other end, an answer takes a bounded time and a bounded number of bytes, and
waiting for it can be interrupted.
"""

from __future__ import annotations

import errno
import http.client
import io
import math
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from spotmpi.errors import NoAnswer
from spotmpi.notice import clean

__all__ = [
    "PATIENCE",
    "Answer",
    "Ask",
    "MetadataRequest",
    "Service",
    "Wait",
    "shown",
    "until_ready",
]

_MOST = 1 << 18
"""Bytes of an answer, headers included. Real ones have hundreds."""

PATIENCE = 3.0
"""Seconds for an answer that should come at once."""

Wait = Callable[[int, int, float], bool]
"""``wait(descriptor, events, seconds)``: whether poll() found it ready in time."""


def until_ready(descriptor: int, events: int, seconds: float) -> bool:
    """Wait for one descriptor. Blocks for ``seconds`` at most."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(math.ceil(1e3 * seconds)))


@dataclass(frozen=True)
class MetadataRequest:
    """What to ask, and for how many seconds to wait for the answer."""

    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: bytes = b""
    patience: float = PATIENCE


@dataclass(frozen=True)
class Answer:
    """What was answered: whatever it is, it was HTTP."""

    status: int
    body: bytes = b""
    etag: str | None = None


class Ask(Protocol):
    """Whoever answers questions: a `Service`, or a test."""

    def __call__(self, question: MetadataRequest) -> Answer:
        """Return the answer; raises `NoAnswer`."""


class Service:
    """A metadata service at ``http://HOST[:PORT]``. ``wait`` is what waits for its sockets."""

    def __init__(self, endpoint: str, wait: Wait = until_ready) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80
        self._wait = wait

    def __call__(self, question: MetadataRequest) -> Answer:
        """Ask. Blocks for the question's patience at most; raises `NoAnswer`."""
        deadline = time.monotonic() + question.patience
        try:
            return self._exchange(question, deadline)
        except TimeoutError:
            why = f"no answer within {question.patience:g} s"
        except OSError as error:
            why = error.strerror or str(error)
        except (http.client.HTTPException, ValueError) as error:
            # ValueError: http.client on header lines or chunk sizes that are none.
            why = f"it does not speak HTTP: {clean(str(error) or type(error).__name__)}"
        raise NoAnswer(why)

    def _exchange(self, question: MetadataRequest, deadline: float) -> Answer:
        # Addresses of metadata services are numbers: nothing is looked up, which could not be
        # interrupted.
        family, kind, protocol, _, address = socket.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as link:
            link.setblocking(False)
            paced = _Paced(link, deadline, self._wait)
            paced.connect(address)
            asking = http.client.HTTPConnection(self._host, self._port)
            asking.sock = cast(socket.socket, paced)
            headers = {"Connection": "close", **question.headers}
            asking.request(question.method, question.path, question.body or None, headers)
            response = asking.getresponse()
            body = response.read()
            return Answer(response.status, body, response.getheader("ETag"))


def shown(body: bytes) -> str:
    """The beginning of an answer that is not what it should be, for a message."""
    return repr(clean(body[:80].decode(errors="replace")))


class _Paced:
    """As much of a socket as `http.client` uses, with one deadline and one limit for all of it."""

    def __init__(self, link: socket.socket, deadline: float, wait: Wait) -> None:
        self._link = link
        self._deadline = deadline
        self._wait = wait
        self._taken = 0

    def connect(self, address: Any) -> None:
        code = self._link.connect_ex(address)
        if code == errno.EINPROGRESS:
            self._until(select.POLLOUT)
            code = self._link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code != 0:
            raise OSError(code, os.strerror(code))

    def sendall(self, data: bytes) -> None:
        while data:
            try:
                data = data[self._link.send(data) :]
            except BlockingIOError:
                self._until(select.POLLOUT)

    def receive_into(self, buffer: Any) -> int:
        while True:
            self._until(select.POLLIN)
            try:
                count = self._link.recv_into(buffer)
            except BlockingIOError:
                continue
            self._taken += count
            if self._taken > _MOST:
                raise OSError(errno.EMSGSIZE, f"an answer of more than {_MOST} bytes")
            return count

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Reading(self))

    def close(self) -> None:
        """For `http.client`; the socket is closed by whoever opened it."""

    def _until(self, events: int) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or not self._wait(self._link.fileno(), events, left):
            raise TimeoutError


class _Reading(io.RawIOBase):
    """The readable side of a `_Paced`."""

    def __init__(self, paced: _Paced) -> None:
        self._paced = paced

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._paced.receive_into(buffer)
