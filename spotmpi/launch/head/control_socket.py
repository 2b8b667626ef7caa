"""Where a running job is asked things: a private socket in its folder, served by the launcher.

A question is one line of JSON, an object whose key ``ask`` names it
(`control_messages.QUESTIONS`); so is the answer (`control_messages.ANSWERS`), and the connection is
closed behind it. ``{"ask": "end"}`` is answered when the job has ended, with how it did.

The launcher computes for nobody and waits for nobody: who says nothing, says too much or does not
read is left, and only a few are listened to at a time. Only this user gets in: the folder and
the socket are private, and the kernel is asked who connected.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from spotmpi.errors import UsageError
from spotmpi.launch import control_messages
from spotmpi.launch.decoding import Malformed, Message, decode, encode
from spotmpi.launch.event_loop import WRITE, Loop
from spotmpi.launch.host.wrappers import peer

__all__ = ["DESK", "LONGEST_QUESTION", "Answer", "ControlSocket"]

DESK = "desk"
"""Name of the socket in the job folder."""

LONGEST_QUESTION = 4096
"""Bytes of a question, its end included."""

_MOST = 16
"""Clients that are listened to at a time; more wait to be accepted."""

_MOST_WAITING = 64
"""Clients that may wait for the end of the job."""

_PATIENCE = 5.0
"""Seconds for a client to ask and to read the answer."""

_PAUSE = 0.1
"""Seconds until somebody may be listened to again, where no descriptor was free."""

_AT_THE_END = 0.5
"""Seconds for all who wait for the end to read how it came."""

Answer = Callable[[Message], Message]
"""Answers a question. May raise UsageError: what is wrong with it."""


class ControlSocket:
    """The launcher's end, in an event loop.

    Never blocks, but for half a second in `close`. Raises OSError if the socket cannot be made.
    """

    def __init__(self, loop: Loop, folder: Path, answer: Answer) -> None:
        self._loop = loop
        self._answer = answer
        self._clients: dict[int, _Client] = {}
        """By their descriptors."""
        self._waiting: dict[int, _Client] = {}
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(folder / DESK))
            os.chmod(folder / DESK, 0o600)
            self._listener.listen(_MOST)
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self._listen(True)

    def close(self, ending: Message) -> None:
        """Tell all who wait for it how the job ended, and let everybody go. Once."""
        if self._closed:
            return
        self._closed = True
        self._listen(False)
        self._loop.cancel(self)
        self._listener.close()
        for client in list(self._clients.values()):
            self._leave(client)
        deadline = time.monotonic() + _AT_THE_END
        for client in self._waiting.values():
            with suppress(OSError):
                client.link.settimeout(max(0.001, deadline - time.monotonic()))
                client.link.sendall(encode(ending) + b"\n")
        for client in list(self._waiting.values()):
            self._leave(client)

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
        if peer(link)[1] != os.getuid():
            link.close()
            return
        link.setblocking(False)
        client = _Client(link)
        self._clients[link.fileno()] = client
        self._loop.watch(link.fileno(), partial(self._hear, client))
        self._loop.after(_PATIENCE, client, partial(self._leave, client))
        self._listen(len(self._clients) < _MOST)

    def _hear(self, client: _Client) -> None:
        try:
            data = client.link.recv(LONGEST_QUESTION)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or client.asked:  # it has gone, or says more than there is to say
            self._leave(client)
            return
        client.question += data
        line, end, rest = bytes(client.question).partition(b"\n")
        if len(client.question) > LONGEST_QUESTION or rest:
            self._leave(client)
        elif end:
            client.asked = True
            self._reply(client, line)

    def _reply(self, client: _Client, line: bytes) -> None:
        try:
            question = decode(line, control_messages.QUESTIONS, "ask")
            if not isinstance(question, control_messages.AskEnd):
                answer = self._answer(question)
            elif len(self._waiting) < _MOST_WAITING:
                self._have_wait(client)
                return
            else:
                answer = control_messages.Wrong("too many wait for the end of this job already")
        except Malformed as wrong:
            known = ", ".join(sorted(control_messages.QUESTIONS))
            answer = control_messages.Wrong(
                f"this is no question: {wrong} (a job is asked one of: {known})"
            )
        except UsageError as error:
            answer = control_messages.Wrong(str(error))
        client.answer += encode(answer) + b"\n"
        self._send(client)

    def _have_wait(self, client: _Client) -> None:
        """Leave a client alone until the job ends."""
        del self._clients[client.link.fileno()]
        self._loop.cancel(client)
        self._listen(True)
        self._waiting[client.link.fileno()] = client

    def _send(self, client: _Client) -> None:
        try:
            del client.answer[: client.link.send(client.answer, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError:
            client.answer.clear()
        if client.answer:
            self._loop.watch(client.link.fileno(), partial(self._send, client), WRITE)
        else:
            self._leave(client)

    def _leave(self, client: _Client) -> None:
        descriptor = client.link.fileno()
        self._clients.pop(descriptor, None)
        self._waiting.pop(descriptor, None)
        self._loop.leave(descriptor)
        self._loop.cancel(client)
        client.link.close()
        if not self._closed:
            self._listen(True)


class _Client:
    """Somebody who connected."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.question = bytearray()
        self.answer = bytearray()
        self.asked = False
