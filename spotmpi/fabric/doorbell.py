"""Wakes a worker that waits for a token, so that no worker has to look for one all the time.

MPI has no blocking wait that a dead peer, a revocation and a message all end. A worker that waits
for all of them must look again and again, and sixteen workers that look on two cores slow down the
one that has work to do. So waiting workers sleep, and the sender of a token rings. A ring carries
no data and no promise: a needless one costs a look, a missing one the pause until the next look.
"""

from __future__ import annotations

import contextlib
import select
import socket

ADDRESS_BYTES = 16
"""Longest address, in bytes. `token_bytes` pads shorter ones."""


class Doorbell:
    """This process's bell: a datagram socket of Linux's abstract namespace, which leaves no file
    behind. Any process of this host may ring it; a ring without a token only costs a look."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("")  # the kernel chooses a free name
        self.address: bytes = self._socket.getsockname()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def ring(self, address: bytes) -> None:
        """Wake the owner of ``address``. It may be gone, or awake already. Never blocks."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", address)

    def wait(self, seconds: float) -> bool:
        """Sleep until a ring comes, for at most ``seconds``. Returns True if one came. Each call
        takes one ring; rings that come while nobody waits are kept for the next calls."""
        if not self._poll.poll(1e3 * seconds):
            return False
        with contextlib.suppress(BlockingIOError):
            self._socket.recv(1)
        return True

    def close(self) -> None:
        """Close the bell. The end of the process does the same."""
        self._socket.close()
