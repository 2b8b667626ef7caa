"""Where a job is asked things: a private socket in its folder, served by the launcher.

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
from pathlib import Path

from spotmpi.errors import UsageError
from spotmpi.launch import control_messages
from spotmpi.launch.clients import Client, Clients
from spotmpi.launch.decoding import Malformed, Message, decode, encode
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.host.wrappers import peer

__all__ = ["DESK", "LONGEST_QUESTION", "Answer", "ControlSocket"]

DESK = "desk"
"""Name of the socket in the job folder."""

LONGEST_QUESTION = 4096
"""Bytes of a question, its end included."""

_MOST_WAITING = 64
"""Clients that may wait for the end of the job."""

_AT_THE_END = 0.5
"""Seconds for all who wait for the end to read how it came."""

Answer = Callable[[Message], Message]
"""Answers a question. May raise UsageError: what is wrong with it."""


class ControlSocket:
    """The launcher's end, in an event loop.

    Never blocks, but for half a second in `close`. Raises OSError if the socket cannot be made.
    """

    def __init__(self, loop: Loop, folder: Path, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(folder / DESK))
            os.chmod(folder / DESK, 0o600)
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        self._clients = Clients(loop, self._listener, LONGEST_QUESTION, self._hear, _is_this_user)

    def close(self, ending: Message | None) -> None:
        """Tell all who wait for it how the job ended, if that is known, and let everybody go."""
        self._clients.close()
        self._listener.close()
        deadline = time.monotonic() + _AT_THE_END
        for client in self._clients.aside:
            with suppress(OSError):
                client.link.settimeout(max(0.001, deadline - time.monotonic()))
                client.link.sendall(b"" if ending is None else encode(ending) + b"\n")
            self._clients.leave(client)

    def _hear(self, client: Client) -> None:
        line, end, rest = bytes(client.request).partition(b"\n")
        if rest:
            self._clients.leave(client)  # one question is all
        elif end:
            client.asked = True
            self._reply(client, line)

    def _reply(self, client: Client, line: bytes) -> None:
        try:
            question = decode(line, control_messages.QUESTIONS, "ask")
            if not isinstance(question, control_messages.AskEnd):
                answer = self._answer(question)
            elif len(self._clients.aside) < _MOST_WAITING:
                self._clients.set_aside(client)
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
        self._clients.answer(client, encode(answer) + b"\n")


def _is_this_user(link: socket.socket) -> bool:
    return peer(link)[1] == os.getuid()
