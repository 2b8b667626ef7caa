"""Whoever holds the token, and says what it likes to a real head."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from spotmpi import __version__
from spotmpi.launch import link, messages
from spotmpi.launch.auth import NONCE_BYTES, Role, Seal
from spotmpi.launch.decoding import Message, encode
from tests.running import LIMIT


class Hostile:
    """One connection, from an address of its own on the loopback. Blocking."""

    def __init__(self, port: int, token: Path, source: str = "127.0.0.9") -> None:
        self.link = socket.create_connection(
            ("127.0.0.1", port), timeout=LIMIT, source_address=(source, 0)
        )
        secret = bytes.fromhex(token.read_text())
        self._seal = Seal(Role.AGENT, secret, secrets.token_bytes(NONCE_BYTES))
        self.link.sendall(self._seal.greeting())
        while not self._seal.open:
            answer, _ = self._seal.feed(self.link.recv(4096))
            self.link.sendall(answer)

    def send(self, kind: int, payload: bytes) -> None:
        """One frame, whatever is in it."""
        self.link.sendall(self._seal.wrap(kind, payload))

    def tell(self, message: Message) -> None:
        """What an agent might say."""
        self.send(link.MESSAGE, encode(message))

    def join(self, name: str, slots: int = 1) -> None:
        """Become a host of the job."""
        self.tell(messages.Hello(__version__))
        self.tell(messages.Offer(name, slots, None))
        self.hear(messages.Assignment)
        self.tell(messages.Fit())

    def hear(self, kind: type[Message]) -> Message:
        """Read on to the next message of a kind; no answer ever comes to anything else."""
        while True:
            data = self.link.recv(1 << 16)
            assert data, f"closed without {kind}"
            for frame in self._seal.feed(data)[1]:
                if frame.kind == link.MESSAGE:
                    said = link.read(frame, messages.FROM_HEAD)
                    if isinstance(said, kind):
                        return said

    def close(self) -> None:
        """Go."""
        self.link.close()


def silent_connections(port: int, count: int, source: str) -> list[socket.socket]:
    """Connections that say nothing."""
    made = []
    for _ in range(count):
        made.append(
            socket.create_connection(("127.0.0.1", port), LIMIT, source_address=(source, 0))
        )
        os.sched_yield()
    return made
