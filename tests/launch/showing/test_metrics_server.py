"""Who asks for numbers gets them, and whoever asks in any other way does no harm."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from spotmpi.launch import clients
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.showing.metrics_server import LONGEST_REQUEST, MetricsServer
from tests.running import LIMIT

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Served:
    """A server in a loop, which turns while the test waits for something."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.made = 0
        self.size = 0
        self.server = MetricsServer(self.loop, self.listener, self.page, "text/x-numbers")
        self.clients: list[socket.socket] = []

    def page(self) -> bytes:
        self.made += 1
        return f"numbers {self.made}\n".encode() + self.size * b"x"

    def connect(self, said: bytes = b"") -> socket.socket:
        """A client that says this."""
        client = socket.create_connection(self.listener.getsockname(), timeout=LIMIT)
        self.clients.append(client)
        client.sendall(said)
        return client

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(10_000):
            if condition():
                return
            self.loop.turn(0.01)
        pytest.fail("it does not come to that")

    def all_of(self, client: socket.socket) -> bytes:
        """What a client gets until it is left."""
        found = bytearray()
        client.setblocking(False)

        def over() -> bool:
            try:
                data = client.recv(1 << 20)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True
            found.extend(data)
            return not data

        self.until(over)
        return bytes(found)

    def close(self) -> None:
        self.server.close()
        self.listener.close()
        for client in self.clients:
            client.close()
        assert len(self.loop) == 0
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def test_a_program_gets_the_numbers_of_the_moment(served: Served) -> None:
    found: list[tuple[int, str | None, bytes]] = []

    def ask() -> None:
        for _ in range(2):
            link = http.client.HTTPConnection(*served.listener.getsockname(), timeout=LIMIT)
            link.request("GET", "/metrics")
            answer = link.getresponse()
            found.append((answer.status, answer.getheader("Content-Type"), answer.read()))
            link.close()

    thread = threading.Thread(target=ask)
    thread.start()
    served.until(lambda: not thread.is_alive())
    thread.join()
    kind = "text/x-numbers"
    assert found == [(200, kind, b"numbers 1\n"), (200, kind, b"numbers 2\n")]


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"GET /metrics/../x HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (
            b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 405 Method Not Allowed",
        ),
        (b"GET /metrics\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"\xff\x00 \r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET /metrics SMTP/1\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK"),
    ],
)
def test_what_is_no_such_question_is_answered_so(
    served: Served, request_: bytes, answer: bytes
) -> None:
    assert served.all_of(served.connect(request_)).partition(b"\r\n")[0] == answer
    assert served.made == answer.endswith(b"OK")


def test_the_head_alone_may_be_asked_for(served: Served) -> None:
    said = served.all_of(served.connect(b"HEAD /metrics HTTP/1.1\r\n\r\n"))
    assert b"\r\nContent-Length: 10\r\n" in said
    assert said.endswith(b"\r\n\r\n")


def test_who_says_too_much_is_left(served: Served) -> None:
    assert (
        served.all_of(served.connect(b"GET /metrics HTTP/1.1\r\nX: " + LONGEST_REQUEST * b"x"))
        == b""
    )
    assert served.made == 0


def test_a_question_may_come_in_pieces(served: Served) -> None:
    client = served.connect(GET[:20])
    served.loop.turn(0.01)
    served.loop.turn(0.01)
    client.sendall(GET[20:])
    assert served.all_of(client).endswith(b"numbers 1\n")


def test_silent_clients_are_few_and_left_after_a_while(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_PATIENCE", 0.2)
    silent = [served.connect() for _ in range(40)]
    asks = served.connect(GET)
    assert served.all_of(asks).endswith(b"numbers 1\n")
    assert all(served.all_of(one) == b"" for one in silent)


def test_who_does_not_read_is_left(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_PATIENCE", 0.2)
    served.size = 1 << 24
    served.connect(GET)
    served.until(lambda: served.made)
    served.until(lambda: len(served.loop) == 1)  # the listener alone
    served.size = 0
    assert served.all_of(served.connect(GET)).endswith(b"numbers 2\n")
