"""The hosts that a job is asked to train on, from its first start to its last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from spotmpi.launch.hosts import Host

__all__ = ["Roster"]


class Roster:
    """Those that it was started with, in their order, and then those asked for later.

    It outlives the attempts of a job that waits for hosts when all are lost.
    """

    def __init__(self, hosts: Iterable[Host] = ()) -> None:
        self._hosts = {host.name: host for host in hosts}

    @property
    def hosts(self) -> Mapping[str, Host]:
        """All of them, by their names."""
        return MappingProxyType(self._hosts)

    @property
    def slots(self) -> int:
        """Workers that are asked for."""
        return sum(host.slots for host in self._hosts.values())

    def add(self, host: Host) -> None:
        """Ask for one more, or for one of them with other slots."""
        self._hosts[host.name] = host
