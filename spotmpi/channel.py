"""What a worker tells its launcher, and what it can learn about deaths.

A worker under ``spotmpi run`` holds one end of a local socket (SOCK_SEQPACKET: a message arrives
whole or not at all) and tells its launcher where it is. One message is one line of JSON. Without
a launcher every call does nothing.

Events: ``begin`` (training is entered, before MPI starts), ``ready`` (the fabric is up),
``recovery``, ``checkpoint``, ``done`` (training is sealed; ordinary code follows) and ``failed``
(the script raised; with its traceback).
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from pathlib import Path
from typing import Any

from spotmpi.settings import Settings

__all__ = ["DEATHS", "LIMIT", "LISTENER", "Channel", "record_death"]

DEATHS = "deaths"
"""File in the job folder: a float64 per worker id, 0 or the monotonic second of its death."""

LISTENER = "launcher"
"""Name of the launcher's socket in the job folder."""

LIMIT = 65536
"""Longest message in bytes; what is longer is dropped by the receiver."""

PATIENCE = 5.0
"""Seconds that a worker waits for a launcher that does not read (a stopped terminal, say)."""

_ENTRY = struct.Struct("=d")


class Channel:
    """The worker's end. Local; made by :meth:`open`."""

    def __init__(self, link: socket.socket | None, deaths: int | None) -> None:
        self._link = link
        self._deaths = deaths

    @classmethod
    def open(cls, settings: Settings) -> Channel:
        """Take the channel that the settings name, or a mute one if there is none."""
        if settings.job_dir is None or settings.channel_fd is None:
            return cls(None, None)
        link = _inherited(settings.channel_fd, settings.job_dir)
        try:
            deaths = os.open(settings.job_dir / DEATHS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return cls(link, None)
        return cls(link, deaths)

    def tell(self, event: str, **fields: Any) -> None:
        """Send one event. Returns at once unless the launcher is stopped; never raises."""
        if self._link is None:
            return
        message = json.dumps({"event": event, **fields}, default=str).encode()
        if len(message) >= LIMIT:
            message = json.dumps({"event": event}).encode()
        try:
            if not select.select([], [self._link], [], PATIENCE)[1]:
                return
            self._link.send(message + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (OSError, ValueError):
            pass  # the launcher is gone, and this worker is about to be ended for it

    def death_of(self, worker: int) -> float | None:
        """Return the ``time.monotonic()`` of a worker's death, None if alive or unknown."""
        if self._deaths is None:
            return None
        entry = os.pread(self._deaths, _ENTRY.size, worker * _ENTRY.size)
        if len(entry) < _ENTRY.size:
            return None
        at: float = _ENTRY.unpack(entry)[0]
        return at or None


def record_death(job_dir: str, worker: int, at: float) -> None:
    """Write a death on the board, unless it is there already. For wrappers and the launcher."""
    board = os.open(os.path.join(job_dir, DEATHS), os.O_RDWR | os.O_CLOEXEC)
    try:
        entry = os.pread(board, _ENTRY.size, worker * _ENTRY.size)
        if entry in (b"", bytes(_ENTRY.size)):
            os.pwrite(board, _ENTRY.pack(at), worker * _ENTRY.size)
    finally:
        os.close(board)


def _inherited(descriptor: int, job_dir: Path) -> socket.socket | None:
    """Return the socket behind a descriptor if it really leads to this job's launcher.

    A program that the worker executes inherits the variable but not the descriptor, and the
    number may by then mean some other file.
    """
    try:
        link = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    try:
        if link.getpeername() == str(job_dir / LISTENER):
            return link
    except OSError:
        pass
    link.close()
    return None
