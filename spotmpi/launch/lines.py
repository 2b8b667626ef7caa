"""The output of many workers on one terminal, line by line, never mixed within a line."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Lines", "Outlet", "Sink"]

_LONGEST = 1 << 20
"""Bytes of a line without an end that are kept back before they are passed on as they are."""

_ROOM = 4096
"""Bytes that a descriptor which poll() calls writable takes without blocking (PIPE_BUF)."""


class Written(Protocol):
    """What takes lines: a `Sink`, or a file."""

    def write(self, data: bytes) -> None:
        """Take data."""


class Sink:
    """One of the launcher's own streams, written to without ever blocking the launcher."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._waiting = bytearray()
        self._open = True

    @property
    def waiting(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Whether so much waits that workers should wait as well."""
        return len(self._waiting) > _LONGEST

    def write(self, data: bytes) -> None:
        """Take data, to be written later."""
        if self._open:
            self._waiting += data

    def push(self) -> None:
        """Write as much as is possible at once. For when poll() says that something is."""
        try:
            written = os.write(self.descriptor, self._waiting[:_ROOM])
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads any more (`spotmpi run ... | head`); that must not end a training.
            self._open = False
            self._waiting.clear()
            return
        del self._waiting[:written]

    def drain(self) -> None:
        """Write all that waits. Blocks for as long as the reader takes."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        while self._waiting:
            poll.poll()
            self.push()


class Lines:
    """One stream of one worker, cut into lines, each of which ``prefix`` begins."""

    def __init__(self, sink: Written, prefix: str = "") -> None:
        self.sink = sink
        self._prefix = prefix.encode()
        self._begun = b""

    def feed(self, data: bytes) -> None:
        """Take what the worker wrote; pass on the lines that it completes."""
        data = self._begun + data
        # A progress bar ends its "lines" by a carriage return.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LONGEST:
            end = len(data)
        if end:
            self._pass_on(data[:end])
        self._begun = data[end:]

    def close(self) -> None:
        """Pass on a last line that the worker did not live to end."""
        if self._begun:
            self._pass_on(self._begun + b"\n")
            self._begun = b""

    def _pass_on(self, data: bytes) -> None:
        if self._prefix:
            data = b"".join(self._prefix + line for line in data.splitlines(keepends=True))
        self.sink.write(data)


class Outlet:
    """All the places where the lines of one stream of one worker go; there may be none."""

    def __init__(self, places: Sequence[Lines]) -> None:
        self._places = places

    def feed(self, data: bytes) -> None:
        """Take what the worker wrote."""
        for place in self._places:
            place.feed(data)

    def close(self) -> None:
        """The stream has come to its end."""
        for place in self._places:
            place.close()
