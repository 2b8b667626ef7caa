"""What wrappers and the launcher say to each other, beside what a worker says (`channel`).

One SOCK_SEQPACKET connection per worker, shared by the worker and its wrapper, so that the order
in which things happened to a worker is the order in which the launcher hears of them.

To the launcher, one line of JSON each:

``hello``    the wrapper is there: worker, its process id; with the reading ends of the worker's
             output and error streams as ancillary data. A stand-in sends none of these, but
             ``environ``, what mpirun gave it
``ended``    the worker ended by itself: ``status`` as waitpid() has it, ``at`` monotonic seconds
``stopped``  the worker has been stopped (SIGSTOP) for ``seconds``, and is killed for it
``runtime``  mpirun told the wrapper to end, which it does when MPI gives up
``cleared``  the worker and all below it were killed, as the launcher asked

To the wrapper, one word each: ``end`` (kill the worker, say ``cleared``) and ``leave``.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from spotmpi.channel import LIMIT, LISTENER

__all__ = ["END", "LEAVE", "connect", "decode", "encode", "listen", "say"]

END = b"end"
LEAVE = b"leave"


def encode(event: str, **fields: Any) -> bytes:
    """Return one message to the launcher."""
    return json.dumps({"event": event, **fields}).encode() + b"\n"


def decode(message: bytes) -> dict[str, Any] | None:
    """Return a message's fields, or None for what nobody of ours would have sent."""
    if len(message) > LIMIT:
        return None
    try:
        fields = json.loads(message)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None


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
