"""Wakes a worker that waits for a token, so that nobody on its host has to keep looking.

MPI has no blocking wait that a dead peer, a revocation and a message all end; whoever waits for
all of them looks again and again. Sixteen workers that look on two cores hold up the one that has
something to do. So they sleep, and who sends a token rings. A ring says nothing and promises
nothing: one too many costs a look, one too few costs the pause until the next look.
"""

from __future__ import annotations

import contextlib
import select
import socket

ADDRESS_BYTES = 16
"""The longest address; shorter ones are padded by whoever sends them around."""


class Doorbell:
    """This process's bell: a datagram socket of Linux's abstract namespace, which has no file
    that could stay behind. Whoever on this host rings it without a token only costs a look."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("")  # the kernel chooses a free name
        self.address: bytes = self._socket.getsockname()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def ring(self, address: bytes) -> None:
        """Wake the owner of ``address``, or find out that it is gone, or awake. Never blocks."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", address)

    def wait(self, seconds: float) -> bool:
        """Sleep until somebody rings, at most so long; whether somebody did. One call, one ring:
        those that came while nobody waited are heard by the next calls."""
        if not self._poll.poll(1e3 * seconds):
            return False
        with contextlib.suppress(BlockingIOError):
            self._socket.recv(1)
        return True

    def close(self) -> None:
        """Nobody waits for this bell any more; the end of the process does the same."""
        self._socket.close()
