"""A running job answers questions, and nobody who asks can hold it up."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch import control_messages
from spotmpi.launch.decoding import Message
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.head import control_socket as desk_module
from spotmpi.launch.head.control_socket import DESK, LONGEST_QUESTION, ControlSocket

LONG = "x" * (1 << 22)
"""More than a socket takes while nobody reads."""

ECHO = {"event": "said", "said": "AskStatus()"}
OVER = control_messages.Said("over")
OVER_HEARD = {"event": "said", "said": "over"}


def answer(question: Message) -> Message:
    """Long to `stop`, an echo to `shrink`, and nothing to `grow`."""
    match question:
        case control_messages.AskStop():
            return control_messages.Said(LONG)
        case control_messages.AskGrow(line=line):
            raise UsageError(f"not {line}")
    return control_messages.Said(str(question))


class Served:
    """A desk in its event loop, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self.desk = ControlSocket(self.loop, folder, answer)
        self.clients: list[socket.socket] = []

    def client(self, said: bytes = b"") -> socket.socket:
        """Somebody who connects, says something and waits for no more than there is."""
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.setblocking(False)
        one.connect(str(self.folder / DESK))
        self.clients.append(one)
        if said:
            one.sendall(said)
        self.turn()
        return one

    def turn(self) -> None:
        """Deal with all that has happened: what goes through such sockets is there at once."""
        for _ in range(100):
            if not self.loop.turn(0):
                break  # else somebody reads slowly

    def answer(self, said: bytes) -> dict[str, Any] | None:
        """What a client gets for it, None if the connection is closed without an answer."""
        return heard(self.client(said))

    @property
    def watched(self) -> int:
        """Descriptors that the loop waits for."""
        return len(self.loop)


def heard(client: socket.socket) -> dict[str, Any] | None:
    """What has come, which must end with the end of the connection."""
    data = b""
    try:
        while part := client.recv(1 << 20):
            data += part
    except ConnectionResetError:  # closed with something of ours unread
        assert not data
    return json.loads(data) if data else None


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path)
    yield one
    with contextlib.suppress(OSError):
        one.desk.close(OVER)
    for client in one.clients:
        client.close()
    one.loop.close()


def test_a_question_is_a_line_and_so_is_the_answer(served: Served) -> None:
    echo = served.answer(b'{"ask": "shrink", "worker": 3}\n')
    assert echo == {"event": "said", "said": "AskShrink(worker=3)"}
    assert served.answer(b'{"ask": "grow", "line": "so"}\n') == {
        "event": "wrong",
        "wrong": "not so",
    }
    slow = served.client(b'{"ask": ')
    slow.sendall(b'"status"}')
    served.turn()
    slow.sendall(b"\n")
    served.turn()
    assert heard(slow) == ECHO
    assert served.watched == 1


@pytest.mark.parametrize(
    "said",
    [
        *(b"\n", b"nonsense\n", b"[]\n", b"7\n", b'{"ask": 7}\n', b"\xff\xfe\n"),
        *(b"[" * 4000 + b"\n", b'{"ask": "shrink", "worker": "all"}\n', b'{"ask": "shrink"}\n'),
    ],
)
def test_what_makes_no_sense_is_told_what_does(served: Served, said: bytes) -> None:
    answer = served.answer(said)
    assert answer is not None
    assert answer["event"] == "wrong"
    assert answer["wrong"].startswith("this is no question: ")
    assert "(a job is asked one of: end, grow, host, more, shrink, status, stop)" in answer["wrong"]


@pytest.mark.parametrize(
    "said",
    [
        b"x" * LONGEST_QUESTION + b"\n",
        os.urandom(1 << 14).replace(b"\n", b"") + b"x" * LONGEST_QUESTION,
        b'{"ask": "status"}\n{"ask": "status"}\n',
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_who_says_too_much_is_left(served: Served, said: bytes) -> None:
    assert served.answer(said) is None
    assert served.watched == 1
    assert served.answer(b'{"ask": "status"}\n') is not None


def test_who_goes_away_is_forgotten(served: Served) -> None:
    for said in (b"", b'{"ask"', b'{"ask": "end"}\n', b'{"ask": "stop"}\n'):
        client = served.client(said)
        assert served.watched == 2
        client.close()
        served.turn()
        served.turn()
        assert served.watched == 1


def test_who_says_nothing_is_left_after_a_while(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    silent, waiting = served.client(), served.client(b'{"ask": "end"}\n')
    unread = served.client(b'{"ask": "stop"}\n')
    clock += 4.9
    served.turn()
    assert served.watched == 4
    clock += 0.2
    served.turn()
    assert heard(silent) is None
    assert served.watched == 2
    unread.close()
    served.desk.close(OVER)
    assert heard(waiting) == OVER_HEARD


def test_who_reads_slowly_gets_the_whole_answer(served: Served) -> None:
    client = served.client(b'{"ask": "stop"}\n')
    data = b""
    while not data.endswith(b"\n"):
        data += client.recv(1 << 20)
        served.turn()
    assert json.loads(data) == {"event": "said", "said": LONG}
    assert served.watched == 1


def test_many_who_say_nothing_only_make_others_wait(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    crowd = [served.client() for _ in range(20)]
    last = served.client(b'{"ask": "status"}\n')
    assert served.watched == 16  # and the desk itself does not listen meanwhile
    with pytest.raises(BlockingIOError):
        last.recv(1)
    clock += 6.0
    for _ in range(3):
        served.turn()
    assert heard(last) == ECHO
    assert [heard(one) for one in crowd[:16]] == [None] * 16


def test_so_many_may_wait_for_the_end_and_no_more(served: Served) -> None:
    waiting = [served.client(b'{"ask": "end"}\n') for _ in range(64)]
    refused = served.answer(b'{"ask": "end"}\n')
    assert refused == {
        "event": "wrong",
        "wrong": "too many wait for the end of this job already",
    }
    served.desk.close(OVER)
    assert [heard(one) for one in waiting] == [OVER_HEARD] * 64
    assert served.watched == 0


def test_who_waits_for_the_end_and_does_not_read_keeps_nobody_from_it(served: Served) -> None:
    hanging, other = (served.client(b'{"ask": "end"}\n') for _ in range(2))
    served.desk.close(control_messages.Said(LONG))
    assert served.watched == 0
    assert hanging.recv(10) == other.recv(10) == b'{"event": '


def test_no_free_descriptor_is_a_pause_and_no_end(served: Served) -> None:
    waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    served.clients.append(waiting)
    waiting.setblocking(False)
    waiting.connect(str(served.folder / DESK))
    waiting.sendall(b'{"ask": "status"}\n')
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
    try:
        spare = [os.dup(0) for _ in range(free_below(waiting.fileno() + 1))]
        served.loop.turn(0)
        assert served.watched == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in spare:
            os.close(one)
    served.loop.turn(10)  # until it is tried again
    served.turn()
    assert heard(waiting) == ECHO


def free_below(limit: int) -> int:
    """Descriptors that are not in use."""
    return sum(not os.path.exists(f"/proc/self/fd/{one}") for one in range(limit))


def test_another_user_is_not_listened_to(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (served.folder / DESK).stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(desk_module, "peer", lambda _: (1, os.getuid() + 1))
    assert served.answer(b'{"ask": "status"}\n') is None
    assert served.watched == 1


def test_a_desk_that_cannot_be_made_leaves_no_descriptor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    descriptors: Callable[[], list[str]],
) -> None:
    before = len(descriptors())
    with pytest.raises(OSError, match="No such file"):
        ControlSocket(Loop(), tmp_path / "gone", answer)
    assert len(descriptors()) == before
