"""What the services of all clouds have in common: a port, what was asked, and what can go wrong."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["FAULTS", "Reply", "Request", "Service"]

FAULTS = ("slow", "hanging", "dripping", "garbage", "huge", "error", "refused")
"""Ways to misbehave: answer late; take a question and never answer; begin an answer and go on byte
by byte for ever; answer what is no HTTP; answer without end; answer with status 500; accept no
connection."""

_DRIP = 0.02
"""Seconds between two bytes."""

_LONGEST = 1 << 20
"""Bytes of a question's body that are read."""

_Self = TypeVar("_Self", bound="Service")


@dataclass(frozen=True)
class Request:
    """A question as it came. ``headers`` have their names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None = None
    """What it was answered with; None where it was not answered properly."""


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Service(ABC):
    """A metadata service on this machine. All methods may be called by any thread."""

    provider: str
    """As ``--notice`` has it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Guards all state; notified of every change."""
        self._requests: list[Request] = []
        self._fault: str | None = None
        self._delay = 0.0
        self._closing = False
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    # For tests.

    @property
    def endpoint(self) -> str:
        """The service's address."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def options(self) -> list[str]:
        """Options with which ``spotmpi run`` and ``spotmpi agent`` ask this service."""
        return ["--notice", self.provider, "--notice-endpoint", self.endpoint]

    @property
    def environ(self) -> dict[str, str]:
        """Variables that say the same as `options`."""
        return {"SPOTMPI_NOTICE": self.provider, "SPOTMPI_NOTICE_ENDPOINT": self.endpoint}

    @property
    def requests(self) -> tuple[Request, ...]:
        """What has been asked so far."""
        with self._changed:
            return tuple(self._requests)

    def wait_for_requests(self, count: int, timeout: float = 60.0) -> tuple[Request, ...]:
        """Block until so many questions have come and were dealt with.

        Raises `TimeoutError` after ``timeout`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._requests) >= count, timeout):
                raise TimeoutError(f"{len(self._requests)} of {count} questions were asked")
            return tuple(self._requests)

    @abstractmethod
    def preempt(self, in_seconds: float) -> None:
        """Announce that this machine is taken away in ``in_seconds``."""

    def misbehave(self, fault: str, seconds: float = 1.0) -> None:
        """From now on, fail in one of the ways of `FAULTS`; "slow" takes ``seconds``."""
        if fault not in FAULTS:
            raise ValueError(f"{fault!r} is no fault; choose one of {', '.join(FAULTS)}")
        with self._changed:
            before, self._fault, self._delay = self._fault, fault, seconds
            self._changed.notify_all()
        if fault == "refused" and before != "refused":
            self._stop(keep_port=True)
        elif fault != "refused" and before == "refused":
            self._start()

    def behave(self) -> None:
        """Be as the real service again."""
        with self._changed:
            before, self._fault = self._fault, None
            self._changed.notify_all()
        if before == "refused":
            self._start()

    # For the services.

    @abstractmethod
    def answer(self, request: Request) -> Reply:
        """What the real service would answer. Called with `_changed` held; may wait for it."""

    def wait(self, until: float) -> bool:
        """Wait for a change, in `answer`. Returns whether to go on waiting."""
        left = until - time.monotonic()
        if left > 0 and not self._closing:
            self._changed.wait(left)
        return not self._closing and time.monotonic() < until

    # The server.

    def __enter__(self: _Self) -> _Self:
        self._closing = False
        self._port = 0
        if self._fault != "refused":
            self._start()
        else:
            self._reserve()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(keep_port=False)

    def _reserve(self) -> _Server:
        # Bound and not listening, it keeps the port, and the kernel refuses connections.
        self._server = self._server or _Server(self, self._port)
        self._port = self._server.port
        return self._server

    def _start(self) -> None:
        server = self._reserve()
        self._closing = False
        server.server_activate()
        self._thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), name=f"spotmpi.testing {self.provider}"
        )
        self._thread.start()

    def _stop(self, *, keep_port: bool) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        server, self._server = self._server, None
        if server is None:
            return
        if self._thread is not None:
            server.shutdown()
            self._thread.join()
            self._thread = None
        server.end_conversations()
        server.server_close()  # joins the threads of all conversations
        if keep_port:
            self._reserve()

    def converse(self, handler: BaseHTTPRequestHandler) -> None:
        """Deal with one question, in its own thread."""
        length = handler.headers.get("Content-Length", "0")
        body = handler.rfile.read(min(int(length), _LONGEST) if length.isdigit() else 0)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Request(handler.command, handler.path, headers, body)
        with self._changed:
            fault = self._fault
            if fault == "slow":
                end = time.monotonic() + self._delay
                while self.wait(end):
                    pass
            if fault in ("hanging", "dripping", "garbage", "huge"):
                reply = None
            elif fault == "error":
                reply = Reply(500, b"an internal error\n")
            else:
                reply = self.answer(request)
            # Before it is sent: whoever has the answer finds the question in `requests`.
            self._requests.append(replace(request, status=reply.status if reply else None))
            self._changed.notify_all()
            if fault == "hanging":
                self._changed.wait_for(lambda: self._closing)
        if reply is not None:
            _send(handler, reply)
            return
        handler.close_connection = True
        if fault == "garbage":
            handler.wfile.write(b"\x16\x03\x01 \xff\xfe no HTTP at all\r\n" * 20)
        while fault == "dripping" and not self._rest(_DRIP):
            handler.wfile.write(b"H")
        while fault == "huge":  # until the other end, or `__exit__`, closes the connection
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1 << 16))

    def _rest(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, seconds)


def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
    handler.send_response(reply.status)
    for name, value in reply.headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(reply.body)))
    handler.end_headers()
    handler.wfile.write(reply.body)


class _Handler(BaseHTTPRequestHandler):
    """Takes questions of all methods to the service."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.service.converse(self)

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests look at `Service.requests`."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread for each connection, all of which end with the server."""

    allow_reuse_address = True
    daemon_threads = False

    def __init__(self, service: Service, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler, bind_and_activate=False)
        self.service = service
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self.server_bind()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def end_conversations(self) -> None:
        with self._guard:
            for link in self._open:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked may have gone; anything else is a mistake, and shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
