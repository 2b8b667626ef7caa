"""What wrappers and the launcher say to each other, beside what a worker says (`launcher_channel`).

One SOCK_SEQPACKET connection per worker, shared by the worker and its wrapper, so that the order
in which things happened to a worker is the order in which the launcher hears of them.

To the launcher, one line of JSON each (`messages.FROM_STRANGER` the first, then
`messages.FROM_WORKER`); along with a wrapper's first go the reading ends of the worker's output and
error streams, and of its log if that is kept.

To the wrapper, one word each: ``end`` (kill the worker, say ``cleared``) and ``leave``.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from spotmpi.launcher_channel import LISTENER

__all__ = ["END", "LEAVE", "connect", "encode", "listen", "say"]

END = b"end"
LEAVE = b"leave"


def encode(event: str, **fields: Any) -> bytes:
    """Return one message to the launcher."""
    return json.dumps({"event": event, **fields}).encode() + b"\n"


def say(link: socket.socket, message: bytes) -> None:
    """Send, unless nobody is left to hear it."""
    with suppress(OSError):
        link.send(message, socket.MSG_NOSIGNAL)


def listen(folder: Path) -> socket.socket:
    """Return the launcher's listening socket, which only this user can reach."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = folder / LISTENER
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(512)
    listener.setblocking(False)
    return listener


def connect(folder: Path) -> socket.socket:
    """Return a wrapper's connection. Raises OSError when the launcher is gone."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(str(folder / LISTENER))
    return link
