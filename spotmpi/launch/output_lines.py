"""The output of many workers on one terminal, line by line, never mixed within a line."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Lines", "Outlet", "Sink", "Written"]

_LONGEST = 1 << 20
"""Bytes of a line without an end that are kept back before they are passed on as they are; and
bytes that may wait for a reader before workers wait as well."""

_CHUNK = 1 << 16

_RETRY = 0.05
"""Seconds until a terminal is tried again that had less room than poll() said: a newline may need
two bytes, and poll() promises one."""


class Written(Protocol):
    """What takes lines: a `Sink`, or a file."""

    def write(self, data: bytes) -> None:
        """Take data."""


class Sink:
    """One of the launcher's own streams, written to without ever blocking the launcher.

    What nobody reads waits. When that is much, workers should wait too (``full``), but not for
    longer than ``patience`` seconds: then what they write is dropped and counted, until somebody
    reads on.
    """

    def __init__(self, descriptor: int, patience: float) -> None:
        self._shared = descriptor
        self._patience = patience
        self.descriptor = _reopened(descriptor)
        """To be watched for room."""
        file = stat.S_ISREG(os.fstat(descriptor).st_mode)  # which never blocks
        self._blocks = self.descriptor == descriptor and not file
        self._waiting = bytearray()
        self._open = True
        self._read = time.monotonic()
        """When the reader last took something, or had nothing to take."""
        self._not_before = 0.0
        self._dropping = False
        self._dropped = [0, 0]
        """Lines and bytes."""

    @property
    def waiting(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether to `push` as soon as there is room."""
        return self.waiting and time.monotonic() >= self._not_before

    @property
    def full(self) -> bool:
        """Whether so much waits that workers should wait as well."""
        return len(self._waiting) > _LONGEST and not self._dropping

    def pause(self) -> float | None:
        """Seconds until `look` must be called."""
        if not self.waiting:
            return None
        at = [self._not_before] if not self.ready else []
        at += [self._read + self._patience] if self.full else []
        return max(0.0, min(at) - time.monotonic()) if at else None

    def look(self) -> None:
        """Give up a reader that has not read for long, until it reads on."""
        if self.full and time.monotonic() >= self._read + self._patience:
            self._dropping = True

    def write(self, data: bytes) -> None:
        """Take what workers wrote, to be written later."""
        self._take(data, _LONGEST)

    def say(self, data: bytes) -> None:
        """Take what is seldom, short and worth more than what workers write."""
        self._take(data, 2 * _LONGEST)

    def push(self) -> None:
        """Write as much as is possible at once."""
        try:
            written = self._write(bytes(self._waiting[:_CHUNK]))
        except BlockingIOError:
            self._not_before = time.monotonic() + _RETRY
            return
        except OSError:
            # Nobody reads any more (`spotmpi run ... | head`); that must not end a training.
            self._open = False
            self._waiting.clear()
            return
        del self._waiting[:written]
        now = time.monotonic()
        if self._dropping and len(self._waiting) < _LONGEST // 2:
            self._dropping = False
            lines, count = self._dropped
            self._dropped = [0, 0]
            self._waiting += (
                f"\nspotmpi: {lines} lines ({count} bytes) were dropped here: nobody read them; "
                "--log-dir keeps what workers write\n"
            ).encode()
        self._read = now

    def drain(self, until: float) -> None:
        """Write all that waits. Blocks while somebody reads, or else until then (monotonic)."""
        room = select.poll()
        room.register(self.descriptor, select.POLLOUT)
        while self._waiting:
            before, now = len(self._waiting), time.monotonic()
            if self._not_before > now:
                select.poll().poll(1e3 * (self._not_before - now))
            if room.poll(1e3 * max(0.0, until - time.monotonic())):
                self.push()
            if len(self._waiting) < before:
                until = max(until, time.monotonic() + self._patience)
            elif time.monotonic() >= until:
                return

    def close(self) -> None:
        """Let go of what was opened here."""
        if self.descriptor != self._shared:
            os.close(self.descriptor)
            self.descriptor = self._shared

    def _take(self, data: bytes, most: int) -> None:
        if not self._waiting:
            self._read = time.monotonic()
        if not self._open:
            return
        if self._dropping and len(self._waiting) + len(data) > most:
            self._dropped[0] += data.count(b"\n")
            self._dropped[1] += len(data)
        else:
            self._waiting += data

    def _write(self, data: bytes) -> int:
        if not self._blocks:
            return os.write(self.descriptor, data)
        # A socket, or another user's terminal (su): others share it, for whom it must block as
        # ever, so it does not for this moment only.
        blocking = os.get_blocking(self._shared)
        os.set_blocking(self._shared, False)
        try:
            return os.write(self._shared, data)
        finally:
            os.set_blocking(self._shared, blocking)


def _reopened(descriptor: int) -> int:
    """The same pipe or terminal, opened once more so that it does not block, for nobody else.

    ``descriptor`` itself if that cannot be, or need not: a file never blocks, and has a position.
    """
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        return descriptor


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
