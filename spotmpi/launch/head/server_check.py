"""Whether mpirun's PMIx server answers.

It has hung (5.0, when clients go), and whoever writes half a message to its port holds it up.
Those that train need nothing of it, but nobody can join any more, and nothing else would say so. It
is asked by a connection that ends before it has begun: the server closes that in its turn.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from spotmpi.launch.event_loop import WRITE, Loop
from spotmpi.launch.limits import Limits

__all__ = ["ServerCheck"]


class ServerCheck:
    """Asks now and then. ``make`` returns a TCP socket that reaches the server.

    ``told`` is called with True when an answer is overdue, and with False should it come after all.
    """

    def __init__(
        self,
        loop: Loop,
        make: Callable[[], socket.socket],
        told: Callable[[bool], None],
        limits: Limits,
    ) -> None:
        self._loop = loop
        self._make = make
        self._told = told
        self._limits = limits
        self._link: socket.socket | None = None
        self._asked: float | None = None
        self._next: float | None = None
        self._mute = False

    def tend(self, port: int, now: float) -> None:
        """Ask, if it is time to; see how long there was no answer. Does not block."""
        if self._next is None:
            self._next = now + self._limits.question
        if self._link is None and now >= self._next:
            self._ask(port)
            self._asked = now
        elif self._asked is not None and now - self._asked > self._limits.answer and not self._mute:
            self._mute = True
            self._told(True)

    def close(self) -> None:
        """Ask no more."""
        if self._link is not None:
            self._loop.leave(self._link.fileno())
            self._link.close()
            self._link = None

    def _ask(self, port: int) -> None:
        self._link = self._make()
        self._link.setblocking(False)
        # Refused, or no room in its queue: both are told by the same event.
        self._link.connect_ex(("127.0.0.1", port))
        self._loop.watch(self._link.fileno(), self._connected, WRITE)

    def _connected(self) -> None:
        if self._link is None:
            return
        self._loop.watch(self._link.fileno(), self._answered)
        try:
            self._link.shutdown(socket.SHUT_WR)
        except OSError:
            self._answered()  # refused: mpirun has ended, which others find

    def _answered(self) -> None:
        if self._link is None:
            return
        self.close()
        self._asked = self._next = None
        if self._mute:
            self._mute = False
            self._told(False)
