"""Beats in UDP datagrams, beside the link of a head and an agent: none waits for one before it.

A link is TCP, or a pipe through ssh and sshd. On a busy host those two processes wait for a core,
though head and agent have a higher priority; and after an outage TCP waits before it sends again.
Datagrams do neither. Where they do not get through, the link's own beats are all there is.

Each end has one socket, bound to the one address that is needed, and connected: the kernel passes
on only what comes from the other's address and port, and `auth` takes each beat once, from who
knows the job's token.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from spotmpi.launch.auth import Seal
from spotmpi.launch.event_loop import Loop

__all__ = ["PATIENCE", "UdpBeats", "own_addresses"]

PATIENCE = 30.0
"""Seconds without a beat of the other end, after which there are to be no more datagrams: a
firewall keeps them out, or an address means another host there than here."""

_LONGEST = 64
"""Bytes that are read of a datagram: a beat has fewer, and one that is longer is none."""

_AT_ONCE = 32
"""Datagrams that are read at a time: whoever sends more than that must wait, as all do."""

_NOBODY = 9
"""A port that nothing is ever sent to: the kernel says from which address it would be."""


class UdpBeats:
    """One end, in an event loop. Nothing that goes wrong here is an error.

    It sends a beat every ``every`` seconds at most. Nothing is sent or heard until there is a
    `meet`.
    """

    def __init__(self, loop: Loop, seal: Seal, every: float) -> None:
        self._loop = loop
        self._seal = seal
        self._every = every
        self._socket: socket.socket | None = None
        self._given_up = False
        self._next = 0.0
        self._met: float | None = None
        self.heard = 0.0
        """When the last authentic beat came, on ``time.monotonic()``'s clock; 0: none did."""

    def offer(self, addresses: list[str]) -> tuple[str, int] | None:
        """Open a socket at the first of these addresses that is this host's; return its name."""
        for address in addresses:
            if self._socket is None and self._open(address, bind=True):
                return self._name()
        return None

    def meet(self, address: str, port: int) -> tuple[str, int] | None:
        """Send to the other end, and hear nobody else, from now on; return this one's name."""
        if self._met is not None or self._given_up:
            return None
        if self._socket is None and not self._open(address, bind=False):
            return None
        assert self._socket is not None
        try:
            self._socket.connect((address, port))
        except OSError:
            self.close()
            return None
        self._met = time.monotonic()
        self.beat(self._met)  # so that firewalls let the other's in
        return self._name()

    def beat(self, now: float) -> None:
        """Say that this end lives, if it is time to."""
        if self._socket is None or self._met is None:
            return
        if now - max(self._met, self.heard) > PATIENCE:
            self.close()
        elif now >= self._next:
            self._next = now + self._every
            with suppress(OSError):  # nobody is there, or no more: the link will tell
                self._socket.send(self._seal.stamp())

    def hear(self) -> None:
        """Take what has come. The loop calls it, and whoever must know at once."""
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                datagram = self._socket.recv(_LONGEST)
            except BlockingIOError:
                return
            except OSError:
                continue  # what was sent before has met nobody
            if self._seal.proves(datagram):
                self.heard = time.monotonic()

    @property
    def at_work(self) -> bool:
        """Whether beats have come by this way, and it was not given up."""
        return self.heard > 0 and self._socket is not None

    def close(self) -> None:
        """Say and hear nothing any more."""
        self._given_up = True
        if self._socket is not None:
            self._loop.leave(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _open(self, address: str, bind: bool) -> bool:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        try:
            made = socket.socket(_family(address), kind)
        except (OSError, ValueError):
            return False
        if bind:
            try:
                made.bind((address, 0))
            except OSError:
                made.close()
                return False
        self._socket = made
        self._loop.watch(made.fileno(), self.hear)
        return True

    def _name(self) -> tuple[str, int]:
        assert self._socket is not None
        address, port, *_ = self._socket.getsockname()
        return str(address), int(port)


def own_addresses(descriptor: int, environ: Mapping[str, str]) -> list[str]:
    """At which the head may reach this host, to which ``descriptor`` leads; the best one first.

    A connection has one. Where it is a pipe, srun and ssh say where they come from. (In a batch job
    the variable of an ssh may be of the login node: nothing can be bound to that.)
    """
    with suppress(OSError), socket.socket(fileno=descriptor) as link:
        try:
            if link.family in (socket.AF_INET, socket.AF_INET6):
                return [str(link.getsockname()[0])]
        finally:
            link.detach()
    found = []
    if (launcher := environ.get("SLURM_SRUN_COMM_HOST")) is not None:
        with (
            suppress(OSError, ValueError),
            socket.socket(_family(launcher), socket.SOCK_DGRAM) as probe,
        ):
            probe.connect((launcher, _NOBODY))
            found.append(str(probe.getsockname()[0]))
    through_ssh = environ.get("SSH_CONNECTION", "").split()
    if len(through_ssh) == 4:
        found.append(through_ssh[2])
    return found


def _family(address: str) -> socket.AddressFamily:
    """Of an address that another host can have. Raises ValueError if it is none, or a name."""
    known = ipaddress.ip_address(address)
    if known.is_multicast or known.is_unspecified or known.is_link_local:
        raise ValueError(f"{address} is not the address of one host")
    return socket.AF_INET if known.version == 4 else socket.AF_INET6
