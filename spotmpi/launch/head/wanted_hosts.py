"""The hosts that a job is asked to train on, from its first start to its last."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from spotmpi.errors import UsageError
from spotmpi.launch.start.hosts_file import Change, HostLine, difference, parse

__all__ = ["HostsFile", "WantedHosts"]

_Stamp = tuple[int, ...]


class HostsFile:
    """A file of hosts, which may change. ``name`` is as the user gave it.

    Reading blocks for as long as the file system does. Raises UsageError, here and in `look`, with
    what is wrong with the file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._path = Path(name).absolute()
        self._seen = self._read_at = self._stamp()
        self._watched = self._read_at is not None
        """A pipe can be read only once."""
        self.hosts = self._read()
        """As they were when the file could be read last."""

    def look(self) -> Change | None:
        """What is different in it, if it was changed, and then left alone since the last look.

        Whoever writes it may not be through: what is wrong with it is raised once, and it is
        read again when it changes again.
        """
        stamp, seen = self._stamp(), self._seen
        self._seen = stamp
        if not self._watched or stamp == self._read_at or stamp != seen:
            return None
        self._read_at = stamp
        if stamp is None:
            raise UsageError(f"{self.name} is not there any more, or is no file")
        before, self.hosts = self.hosts, self._read()
        return difference(before, self.hosts)

    def _stamp(self) -> _Stamp | None:
        """What changes with a file: also its permissions, so that it may be readable again."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        times = found.st_mtime_ns, found.st_ctime_ns
        return found.st_dev, found.st_ino, found.st_size, *times

    def _read(self) -> tuple[HostLine, ...]:
        try:
            text = self._path.read_bytes().decode()
        except OSError as error:
            raise UsageError(f"{self.name} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise UsageError(
                f"{self.name}, line {line}: this is no text in UTF-8; write name [slots=2]"
            ) from error
        return parse(text.splitlines(), self.name)


class WantedHosts:
    """Those that it was started with, in their order, and then those asked for later.

    It outlives the attempts of a job that waits for hosts when all are lost. ``file`` is where
    they stand, if that may change.
    """

    def __init__(self, hosts: Iterable[HostLine] = (), file: HostsFile | None = None) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._file = file

    @classmethod
    def of(cls, file: HostsFile) -> WantedHosts:
        """Those of a file."""
        return cls(file.hosts, file)

    @property
    def hosts(self) -> Mapping[str, HostLine]:
        """All of them, by their names."""
        return MappingProxyType(self._hosts)

    @property
    def slots(self) -> int:
        """Workers that are asked for."""
        return sum(host.slots for host in self._hosts.values())

    @property
    def source(self) -> str:
        """Where they stand, for messages."""
        return "" if self._file is None else self._file.name

    def add(self, host: HostLine) -> None:
        """Ask for one more, or for one of them with other slots."""
        self._hosts[host.name] = host

    def look(self) -> Change | None:
        """Follow the file, as `HostsFile.look` finds it. Raises UsageError."""
        change = None if self._file is None else self._file.look()
        if change is not None:
            for host in (*change.came, *change.changed):
                self.add(host)
            for host in change.gone:
                self._hosts.pop(host.name, None)
        return change
