"""A network of mpirun's own, into which nobody else on the host or beyond it can connect.

mpirun's runtime listens at two ports, one of them on all interfaces. It believes whoever connects
what they say of themselves, runs what they ask for, and waits for the rest of a message that they
have begun, while it does nothing else. So mpirun and all below it get a network namespace with
nothing in it but a loopback. The workers live outside; their connections to the runtime are carried
by `relay`, the one way in, over sockets that are made inside and handed out.

Sockets with a path in the file system, signals and shared memory do not heed such namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import signal
import socket
import struct
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

__all__ = ["Fence", "Open", "erect", "neighbours"]

_NEWNET, _NEWUSER = 0x40000000, 0x10000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_UP = 0x1
_INTERFACE = struct.Struct("16sh22x")

_AT_A_TIME = 64
"""Sockets that are made when there is none in stock."""

_PEOPLE = range(1000, 60000)
"""Ids of users who log in, on most hosts; others are services."""


class Open:
    """The network that everybody has: where no other can be had. ``why`` that is so."""

    def __init__(self, why: str) -> None:
        self.why = why

    def enter(self) -> None:
        """Move the calling process there. Raises OSError."""

    def holds(self, pid: int) -> None:
        """Take the network that a child has entered: where `socket` makes sockets from now on."""

    def socket(self) -> socket.socket:
        """Return a new TCP socket that can connect to whatever listens there. Raises OSError."""
        return socket.socket()

    def close(self) -> None:
        """Let go of it."""


class Fence(Open):
    """A network of its own for one child of this process and for all below it."""

    def __init__(self) -> None:
        super().__init__("")
        self._held = ExitStack()
        self._namespaces: list[tuple[int, int]] | None = None
        """Descriptors and kinds, in the order in which they are entered; None before `holds`."""
        self._stock: list[socket.socket] = []

    def enter(self) -> None:
        """As in `Open`. For a process with one thread."""
        _leave_network()
        _raise_loopback()

    def holds(self, pid: int) -> None:
        """As in `Open`. The child must not have been waited for. Raises OSError if it has ended."""
        found = []
        for name, kind in (("user", _NEWUSER), ("net", _NEWNET)):
            of_child, own = (Path(f"/proc/{one}/ns/{name}") for one in (pid, "self"))
            # To enter the one that it is in already is refused to a process.
            if not of_child.samefile(own):
                descriptor = os.open(of_child, os.O_RDONLY | os.O_CLOEXEC)
                self._held.callback(os.close, descriptor)
                found.append((descriptor, kind))
        self._namespaces = found

    def socket(self) -> socket.socket:
        """As in `Open`. Blocks now and then, for milliseconds. For a process with one thread."""
        if not self._stock:
            self._stock = _sockets_within(self._namespaces) if self._namespaces else []
            if not self._stock:
                raise OSError("no socket could be made in mpirun's network")
        return self._stock.pop()

    def close(self) -> None:
        """As in `Open`."""
        while self._stock:
            self._stock.pop().close()
        self._held.close()


def erect() -> Open:
    """Return a new fence, or what there is instead where none can be had.

    Blocking, some milliseconds: a child tries it. For a process with one thread.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _try(writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        why = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if not why and status == 0:
        return Fence()
    return Open(why or f"the attempt ended with status {status}")


def neighbours() -> list[str]:
    """Return the names of other users who have processes on this host, sorted."""
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                found.add(entry.stat().st_uid)
    return sorted(_name(user) for user in found if user in _PEOPLE and user != os.getuid())


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _try(writing: int) -> NoReturn:
    try:
        Fence().enter()
    except OSError as error:
        os.write(writing, (error.strerror or str(error)).encode())
    os._exit(0)


def _leave_network() -> None:
    """Move this process into a new network namespace, which has nothing in it."""
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(_NEWNET) == 0:
        return
    # An ordinary user may do so within a user namespace. All ids mean there what they mean here.
    if _LIBC.unshare(_NEWUSER | _NEWNET) != 0:
        raise _error()
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", file).write_text(text)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = _INTERFACE.pack(b"lo", 0)
        _, flags = _INTERFACE.unpack(fcntl.ioctl(control, _SIOCGIFFLAGS, asked))
        fcntl.ioctl(control, _SIOCSIFFLAGS, _INTERFACE.pack(b"lo", flags | _UP))


def _sockets_within(namespaces: list[tuple[int, int]]) -> list[socket.socket]:
    """A stock of sockets of these namespaces: a child that enters them makes them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        # What this process does at a signal is none of the child's business.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            child = os.fork()
            if child == 0:
                _make_sockets(namespaces, theirs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 1, _AT_A_TIME)
        os.waitpid(child, 0)
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def _make_sockets(namespaces: list[tuple[int, int]], link: socket.socket) -> NoReturn:
    with suppress(OSError):  # the parent sees that it gets none
        for descriptor, kind in namespaces:
            if _LIBC.setns(descriptor, kind) != 0:
                raise _error()
        made = [socket.socket() for _ in range(_AT_A_TIME)]
        socket.send_fds(link, [b"."], [one.fileno() for one in made])
    os._exit(0)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
