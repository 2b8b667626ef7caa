"""The port at which agents come in by themselves: `spotmpi agent --head HOST:PORT`.

Whoever cannot prove that it knows the token gets nothing but time, and of that little: few may be
about to prove it at a time, few of them from one address, and when there are more, those who have
been silent for longest go first. So whoever knows the token, and says so at once, always gets in.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable

from spotmpi.launch.auth import NONCE_BYTES, Role, Seal
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.head.agents import Agents
from spotmpi.launch.link import HostLink, hasten

__all__ = ["AgentListener", "Refusals", "bind"]

_FOR_PROOF = 3.0
"""Seconds until a connection must have proved that it knows the token."""

_MOST = 64
_MOST_OF_ONE = 8
"""Connections that may be about to prove it at a time, in all and from one address."""

_REMEMBERED = 1024
"""Addresses, of hosts that came and of who was refused."""

_BETWEEN_LINES = 30.0
"""Seconds between two lines about who was refused."""

_NAMED = 3
"""Addresses that such a line names."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    listener = socket.create_server((host, port), backlog=_MOST)
    listener.setblocking(False)
    return listener


class Refusals:
    """Says who was refused: the first at once, all others together, and not often. Pure."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: float | None = None
        self._unsaid: Counter[str] = Counter()
        self._last = ""

    def add(self, source: str, why: str, now: float) -> None:
        """A connection was refused."""
        if self._said is None or (not self._unsaid and now - self._said >= _BETWEEN_LINES):
            self._say(f"refused a connection from {source}: {why}")
            self._said = now
            return
        full = len(self._unsaid) >= _REMEMBERED and source not in self._unsaid
        self._unsaid["other addresses" if full else source] += 1
        self._last = why
        self.tend(now)

    def tend(self, now: float) -> None:
        """Say how many more there were, if it is time to."""
        if self._said is None or not self._unsaid or now - self._said < _BETWEEN_LINES:
            return
        named = self._unsaid.most_common(_NAMED)
        rest = self._unsaid.total() - sum(times for _, times in named)
        parts = [f"{times} from {source}" for source, times in named]
        parts += [f"{rest} from elsewhere"] * bool(rest)
        self._say(
            f"refused {self._unsaid.total()} more connections in {now - self._said:.0f} s "
            f"({', '.join(parts)}); the last one: {self._last}"
        )
        self._said = now
        self._unsaid.clear()


class AgentListener:
    """Takes connections, and hands them to the fleet. ``say`` tells the user who was refused."""

    def __init__(
        self,
        loop: Loop,
        fleet: Agents,
        listener: socket.socket,
        token: bytes,
        say: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._listener = listener
        self._token = token
        self._say = say
        self._callers: dict[HostLink, str] = {}
        """Whoever is no host yet, and the network it calls from; the first one came first."""
        self._known: dict[str, None] = {}
        """Networks that hosts came from; the last one last."""
        self._refusals = Refusals(say)
        loop.watch(listener.fileno(), self._accept)
        loop.every(1.0, self, self._tend)

    def _tend(self) -> None:
        self._refusals.tend(time.monotonic())

    def _accept(self) -> None:
        try:
            link, address = self._listener.accept()
        except OSError:
            return
        source = str(address[0])
        network = _network(source)
        if not self._make_room(network):
            link.close()
            self._refusals.add(source, "too many others wait", time.monotonic())
            return
        hasten(link)
        seal = Seal(Role.HEAD, self._token, secrets.token_bytes(NONCE_BYTES))
        descriptor = link.detach()
        ends = (descriptor, descriptor)
        caller = self._fleet.meet(
            ends, seal, _FOR_PROOF, lambda why: self._failed(caller, source, why)
        )
        self._callers[caller] = network

    def _failed(self, caller: HostLink, source: str, why: str) -> None:
        self._callers.pop(caller, None)
        if caller.proven:  # one of ours that does not fit: there are few of these
            self._say(f"refused a connection from {source}: {why}")
        else:
            self._refusals.add(source, why, time.monotonic())

    def _make_room(self, network: str) -> bool:
        """Part from whoever has been silent for longest, if there are too many."""
        self._note_hosts()
        silent = [one for one in self._callers if not one.proven]
        same = [one for one in silent if self._callers[one] == network]
        if len(same) >= _MOST_OF_ONE:
            leaving = same
        elif len(silent) < _MOST:
            return True
        else:
            leaving = [one for one in silent if self._callers[one] not in self._known]
            if network in self._known:
                leaving = leaving or silent
        if leaving:
            self._fleet.part(leaving[0], "it said nothing while others waited")
        return bool(leaving)

    def _note_hosts(self) -> None:
        """Who is no guest any more, and has not failed, has become a host."""
        guests = self._fleet.guests
        for caller in [one for one in self._callers if one not in guests]:
            network = self._callers.pop(caller)
            self._known.pop(network, None)
            self._known[network] = None
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]


def _network(source: str) -> str:
    """Who counts as one: an address; of IPv6 all that a single customer has."""
    address = ipaddress.ip_address(source.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return source
