"""Which TCP connections of a host's workers get no answer, as its kernel knows.

Two hosts may both reach the head and not each other: their workers wait for each other without
end, and their agents' beats say that all is well. Nothing is sent to find that out. The kernel
counts how often it has sent the same bytes again; that of a living host acknowledges bytes for a
worker that is slow, or stopped.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

__all__ = ["Link", "ends", "unanswered"]

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_ESTABLISHED, _OPENING, _LISTENING = 0x01, 0x02, 0x0A

_AGAIN = 3
"""Bytes sent so often again are not answered: after 1.4 s or more, where 0.2 s are the first wait,
and each one is twice as long as the one before. An answer sets the count to zero."""

_OPENING_AGAIN = 2
"""The same while a connection is opened, where the first wait is a second."""


class Link(NamedTuple):
    """A TCP connection, as one end of it sees it."""

    here: str
    """Address and port."""
    there: str
    """Address and port."""
    opening: bool
    """It is not established yet."""


class _Row(NamedTuple):
    here: str
    there: str
    state: int
    again: int
    inode: int


def unanswered(processes: Iterable[int]) -> set[Link]:
    """Connections of these processes of which nothing was acknowledged for a second or more.

    Reads the kernel's tables: milliseconds, and blocks for nothing else.
    """
    suspects = {row.inode: row for row in _rows() if _is_unanswered(row)}
    if not suspects:
        return set()
    owned = _sockets(processes)
    return {
        Link(row.here, row.there, row.state == _OPENING)
        for inode, row in suspects.items()
        if inode in owned
    }


def ends(links: Collection[Link], processes: Iterable[int]) -> set[Link]:
    """Those of another host's links whose other end one of these processes has.

    A worker that is gone has none: its former peers may send to it in vain for minutes.
    """
    wanted = {(link.there, link.here): link for link in links if not link.opening}
    doors = {link.there.rpartition(":")[2]: link for link in links if link.opening}
    found = {}
    for row in _rows():
        link = None
        if row.state == _ESTABLISHED:
            link = wanted.get((row.here, row.there))
        elif row.state == _LISTENING:
            link = doors.get(row.here.rpartition(":")[2])
            if link is not None and not _is_mine(link.there.rpartition(":")[0]):
                link = None  # every host has a worker that listens at this port
        if link is not None:
            found[row.inode] = link
    owned = _sockets(processes) if found else set()
    return {link for inode, link in found.items() if inode in owned}


def _is_unanswered(row: _Row) -> bool:
    if row.state == _OPENING:
        return row.again >= _OPENING_AGAIN
    return row.state == _ESTABLISHED and row.again >= _AGAIN


def _rows() -> Iterator[_Row]:
    for table in _TABLES:
        with suppress(OSError), open(table) as lines:  # there may be no IPv6
            next(lines)
            for line in lines:
                _, here, there, state, _, _, again, _, _, inode, *_ = line.split()
                yield _Row(
                    _endpoint(here), _endpoint(there), int(state, 16), int(again, 16), int(inode)
                )


def _endpoint(text: str) -> str:
    """``0B004D0A:0400``, words of the host's byte order, to ``10.77.0.11:1024``."""
    words, port = text.split(":")
    packed = b"".join(struct.pack("=I", int(word, 16)) for word in re.findall(".{8}", words))
    address = ipaddress.ip_address(packed)
    return f"{getattr(address, 'ipv4_mapped', None) or address}:{int(port, 16)}"


def _sockets(processes: Iterable[int]) -> set[int]:
    """The inodes of all sockets that these processes have open."""
    found = set()
    for process in processes:
        with suppress(OSError):  # it has ended
            for entry in os.scandir(f"/proc/{process}/fd"):
                with suppress(OSError):
                    name = os.readlink(entry.path)
                    if name.startswith("socket:["):
                        found.add(int(name[8:-1]))
    return found


def _is_mine(address: str) -> bool:
    """Whether this host has this address: nothing else can be bound to."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
