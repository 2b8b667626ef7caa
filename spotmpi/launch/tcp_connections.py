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
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Annotated, NamedTuple

from spotmpi.launch.decoding import Address
from spotmpi.launch.processes import descendants

__all__ = ["TcpConnection", "ends", "unanswered"]

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_ESTABLISHED, _OPENING, _LISTENING = 0x01, 0x02, 0x0A

_AGAIN = 3
"""Bytes sent so often again are not answered: after 1.4 s or more, where 0.2 s are the first wait,
and each one is twice as long as the one before. An answer sets the count to zero."""

_OPENING_AGAIN = 2
"""The same while a connection is opened, where the first wait is a second."""


class TcpConnection(NamedTuple):
    """A TCP connection, as one end of it sees it."""

    here: Annotated[str, Address()]
    there: Annotated[str, Address()]
    opening: bool
    """It is not established yet."""


class _Row(NamedTuple):
    here: str
    there: str
    state: int
    again: int
    inode: int


def unanswered(root: int) -> set[TcpConnection]:
    """Connections of a process, and of all below it, that nobody has acknowledged for a second.

    Reads the kernel's tables: milliseconds, and blocks for nothing else.
    """
    suspects = [row for row in _rows() if _is_unanswered(row)]
    owned = _sockets(root) if suspects else set()
    return {
        TcpConnection(row.here, row.there, row.state == _OPENING)
        for row in suspects
        if row.inode in owned
    }


def ends(links: Collection[TcpConnection], root: int) -> set[TcpConnection]:
    """Those of another host's links whose other end a process has, or one below it.

    A worker that is gone has none: its former peers may send to it in vain for minutes.
    """
    established = {(link.there, link.here): link for link in links if not link.opening}
    # Every host has a worker that listens at the same port: the address tells.
    opening = [link for link in links if link.opening and _is_mine(_split(link.there)[0])]
    found: list[tuple[int, TcpConnection]] = []
    for row in _rows():
        if row.state == _ESTABLISHED and (link := established.get((row.here, row.there))):
            found.append((row.inode, link))
        elif row.state == _LISTENING:
            port = _split(row.here)[1]
            found += [(row.inode, link) for link in opening if _split(link.there)[1] == port]
    owned = _sockets(root) if found else set()
    return {link for inode, link in found if inode in owned}


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


def _split(endpoint: str) -> tuple[str, str]:
    """Address and port."""
    address, _, port = endpoint.rpartition(":")
    return address, port


def _sockets(root: int) -> set[int]:
    """The inodes of all sockets that a process has open, or one below it."""
    found = set()
    for process in (root, *descendants(root)):
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
