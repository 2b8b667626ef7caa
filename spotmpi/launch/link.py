"""The one connection between the head and an agent, and what travels on it.

It is a TCP connection, or two pipes that ssh holds at their other end; `auth` proves both ends to
each other and every frame. Four kinds of frames:

``MESSAGE``  one of `messages`: ``FROM_NEW_AGENT``, ``FROM_AGENT``, ``FROM_HEAD``
``OUTPUT``   what a worker wrote: worker id, stream (1 or 2; 3: its log lines), bytes
``RELAY``    bytes of one of the workers' connections to the PMIx server; none: it is closed
``BEAT``     nothing: the other end lives. Sent all the time, both ways
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from spotmpi.launch.auth import Frame, Refused, Seal
from spotmpi.launch.decoding import Malformed, Message, Table, decode, encode
from spotmpi.launch.event_loop import READ, WRITE, Loop
from spotmpi.launch.log_lines import STREAM

__all__ = [
    "AT_START",
    "BEAT",
    "MESSAGE",
    "OUTPUT",
    "RELAY",
    "Carried",
    "Output",
    "HostLink",
    "hasten",
    "read",
]

MESSAGE, OUTPUT, RELAY, BEAT = range(4)

_RTO_MAX_MS = 44
"""An option of TCP connections since Linux 6.15, which Python has no name for."""

_LONGEST_WAIT_MS = 1000
"""Milliseconds until what was not acknowledged is sent again, at most; no kernel takes less."""

AT_START = 5.0
"""Seconds of silence that are allowed until all workers are ready, if that is more: interpreters
that start fill all cores, and a loss is no more than a failed start."""

_CHUNK = 1 << 16
_CONGESTED = 1 << 18
_MOST = 1 << 26
"""Bytes that may wait to be sent to an end that lives, but does not read."""

_OUTPUT = struct.Struct("!IB")
_RELAY = struct.Struct("!I")


def hasten(connection: socket.socket) -> None:
    """Have a TCP connection send small messages at once, and again each second until they arrive.

    As usual it would wait twice as long each time, and so after an outage for as long again as
    that took. Kernels that cannot do the latter are left as they are.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, _LONGEST_WAIT_MS)


class HostLink:
    """One end, in an event loop.

    Never blocks. ``take`` is called with each frame that is none of the `HostLink`'s own, ``gone``
    once with the reason when nothing can be sent or received any more; the descriptors are closed
    by then.
    """

    def __init__(
        self,
        loop: Loop,
        descriptors: tuple[int, int],
        seal: Seal,
        take: Callable[[Frame], None],
        gone: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._reading, self._writing = descriptors
        self.seal = seal
        self._take = take
        self._gone = gone
        self._waiting = bytearray()
        self._closed = False
        self._deaf = self._choked = False
        self.heard = time.monotonic()
        """When the last authentic frame came."""
        for descriptor in set(descriptors):
            os.set_blocking(descriptor, False)
        loop.watch(self._reading, self._read)
        self._push(seal.greeting())

    @property
    def open(self) -> bool:
        """Whether both ends have proved themselves, and nothing is wrong since."""
        return self.seal.open and not self._closed

    @property
    def proven(self) -> bool:
        """Whether the other end has ever proved itself."""
        return self.seal.open

    @property
    def congested(self) -> bool:
        """Whether so much waits to be sent that nothing should be added that can wait."""
        return len(self._waiting) > _CONGESTED

    @property
    def readable(self) -> bool:
        """Whether something has come that was not read yet."""
        if self._closed:
            return False
        with selectors.PollSelector() as look:
            look.register(self._reading, selectors.EVENT_READ)
            return bool(look.select(0))

    def reassign(self, take: Callable[[Frame], None], gone: Callable[[str], None]) -> None:
        """Call others from now on."""
        self._take, self._gone = take, gone

    def tell(self, message: Message) -> None:
        """Send a message."""
        self._send(MESSAGE, encode(message))

    def pass_output(self, worker: int, stream: int, data: bytes) -> None:
        """Send what a worker wrote."""
        self._send(OUTPUT, _OUTPUT.pack(worker, stream) + data)

    def relay(self, connection: int, data: bytes) -> None:
        """Send what came on a connection; nothing says that it is closed."""
        self._send(RELAY, _RELAY.pack(connection) + data)

    def beat(self) -> None:
        """Say that this end lives, unless something that says so still waits to be sent."""
        if not self._waiting:
            self._send(BEAT, b"")

    def close(self) -> None:
        """Let go of the connection at once; ``gone`` is not called."""
        if not self._closed:
            self._closed = True
            for descriptor in {self._reading, self._writing}:
                self._loop.leave(descriptor)
                os.close(descriptor)

    def flush(self, patience: float) -> None:
        """Send what waits. Blocks for ``patience`` seconds at most."""
        deadline = time.monotonic() + patience
        with selectors.PollSelector() as look:
            while self._waiting and not self._closed and time.monotonic() < deadline:
                look.register(self._writing, selectors.EVENT_WRITE)
                look.select(max(0.0, deadline - time.monotonic()))
                look.unregister(self._writing)
                self._push(b"")

    def _send(self, kind: int, payload: bytes) -> None:
        if self.open:
            self._push(self.seal.wrap(kind, payload))

    def _read(self) -> None:
        try:
            data = os.read(self._reading, _CHUNK)
        except BlockingIOError:
            data = None
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if data == b"":
            self._end(self.seal.closed)
            return
        if data and self._choked:
            self._end("it does not read what it is sent")
            return
        if data:
            try:
                answer, frames = self.seal.feed(data)
            except Refused as refused:
                self._end(str(refused))
                return
            self._push(answer)
            if self.seal.open and (frames or answer):
                self.heard = time.monotonic()
            for frame in frames:
                # What one frame asks for may end the connection.
                if frame.kind != BEAT and self.open:
                    self._take(frame)
        if self._waiting:
            self._push(b"")

    def _push(self, data: bytes) -> None:
        if self._closed or self._deaf:
            return
        self._waiting += data
        try:
            while self._waiting:
                written = os.write(self._writing, self._waiting[:_CHUNK])
                del self._waiting[:written]
        except BlockingIOError:
            if len(self._waiting) > _MOST:
                self._deaf = self._choked = True
                self._waiting.clear()
        except OSError:
            # Nobody is there to receive. That is for the reading side to find, or the silence:
            # whoever sends is in the middle of something, and not to be called back.
            self._deaf = True
            self._waiting.clear()
        self._watch_writing(bool(self._waiting))

    def _watch_writing(self, on: bool) -> None:
        if self._reading == self._writing:
            self._loop.watch(self._reading, self._read, READ | (WRITE if on else 0))
        elif on:
            self._loop.watch(self._writing, self._flush, WRITE)
        else:
            self._loop.leave(self._writing)

    def _flush(self) -> None:
        self._push(b"")

    def _end(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._gone(reason)


class Output(NamedTuple):
    """What a worker wrote, to stream 1, 2 or 3 (log lines); nothing is the stream's end."""

    worker: int
    stream: int
    data: bytes


class Carried(NamedTuple):
    """What came on a connection to the PMIx server; nothing says that it is closed."""

    connection: int
    data: bytes


def read(frame: Frame, among: Table) -> Message | Output | Carried:
    """What a frame says, a MESSAGE only if it is one of a table. Raises Malformed."""
    try:
        if frame.kind == MESSAGE:
            return decode(frame.payload, among)
        if frame.kind == OUTPUT:
            worker, stream = _OUTPUT.unpack_from(frame.payload)
            if stream not in (1, 2, STREAM):
                raise Malformed(f"it writes to stream {stream}")
            return Output(worker, stream, frame.payload[_OUTPUT.size :])
        if frame.kind == RELAY:
            (connection,) = _RELAY.unpack_from(frame.payload)
            return Carried(connection, frame.payload[_RELAY.size :])
    except struct.error as error:
        raise Malformed(f"a frame of kind {frame.kind} ends too soon") from error
    raise Malformed(f"there are no frames of kind {frame.kind}")
