"""What a worker tells its launcher, and what it can learn about deaths.

A worker under ``spotmpi run`` holds one end of a local socket (SOCK_SEQPACKET: a message arrives
whole or not at all) and tells its launcher where it is. One message is one line of JSON. Without
a launcher every call does nothing.

Events: ``begin`` (training is entered, before MPI starts), ``ready`` (the fabric is up),
``recovery``, ``checkpoint``, ``done`` (training is sealed; ordinary code follows), ``failed``
(the script raised; with its traceback) and ``left`` (it ends with this code).
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from contextlib import suppress
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

    def __init__(self, descriptor: int | None, job_dir: Path, deaths: int | None) -> None:
        self._descriptor = descriptor
        self._peer = str(job_dir / LISTENER)
        self._deaths = deaths

    @classmethod
    def open(cls, settings: Settings) -> Channel:
        """Take the channel that the settings name, or a mute one if there is none."""
        if settings.job_dir is None or settings.channel_fd is None:
            return cls(None, Path(), None)
        try:
            deaths = os.open(settings.job_dir / DEATHS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return cls(None, Path(), None)  # the job is over, and this process no worker of it
        return cls(settings.channel_fd, settings.job_dir, deaths)

    def tell(self, event: str, **fields: Any) -> None:
        """Send one event. Returns at once unless the launcher is stopped; never raises."""
        if self._descriptor is None:
            return
        message = json.dumps({"event": event, **fields}, default=str).encode()
        if len(message) >= LIMIT:
            message = json.dumps({"event": event}).encode()
        # A launcher that is gone is no error: this worker is about to be ended for it.
        with suppress(OSError):
            link = socket.socket(fileno=self._descriptor)
            try:
                # A program that the worker executes inherits the variable but not the descriptor,
                # and the number may mean some other socket by now.
                if link.getpeername() == self._peer and _writable(link):
                    link.send(message + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            finally:
                link.detach()

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


def _writable(link: socket.socket) -> bool:
    poll = select.poll()  # select() would refuse descriptors above 1023
    poll.register(link, select.POLLOUT)
    return bool(poll.poll(PATIENCE * 1000))
