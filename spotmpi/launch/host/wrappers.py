"""An agent's side of its wrappers, and a launcher's of its stand-ins: who is there, what they say,
and when they are gone."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from spotmpi.launch import messages
from spotmpi.launch import wrapper_socket as wire
from spotmpi.launch.decoding import Malformed, Message, decode
from spotmpi.launch.event_loop import Loop
from spotmpi.launcher_channel import (
    IN_SCRIPT,
    LIMIT,
    Busy,
    JobBoard,
    Order,
    Progress,
    R,
    busy,
    orders,
    progress,
)

__all__ = ["Wrappers", "WorkerEvent", "in_order", "peer"]

_LAST: tuple[type[Message], ...] = (
    *(messages.RuntimeEnds, messages.Ended, messages.Cleared),
    *(messages.Vanished, messages.HostLost),
)
"""Ends, in the order in which they are passed on: mpirun's doing before what follows from it."""


@dataclass(frozen=True)
class WorkerEvent:
    """One message of a worker or its wrapper."""

    worker: int
    said: Message


@dataclass
class _Wrapper:
    link: socket.socket
    pidfd: int
    ended: bool = False
    since: float = field(default_factory=time.monotonic)


class Wrappers:
    """All wrappers of an agent, or all stand-ins of a job.

    ``watch`` is given each worker, and the descriptors of its output (1), error (2) and log (3).
    """

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        watch: Callable[[int, int, int], None],
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._watch = watch
        self._expected: set[int] = set()
        self._wrappers: dict[int, _Wrapper] = {}
        self._strangers: list[socket.socket] = []
        self._met: set[int] = set()
        self._ending = False
        self._listener = wire.listen(folder)
        loop.watch(self._listener.fileno(), self._accept)

    @property
    def met(self) -> frozenset[int]:
        """The workers whose wrapper has been there."""
        return frozenset(self._met)

    @property
    def all_met(self) -> bool:
        """Whether every worker's wrapper has been there."""
        return self._met == self._expected

    @property
    def at_rest(self) -> bool:
        """Whether no worker lives under the wrappers that are there."""
        return all(wrapper.ended for wrapper in self._wrappers.values())

    @property
    def gone(self) -> bool:
        """Whether no wrapper is there any more."""
        return not self._wrappers

    def expect(self, workers: Iterable[int]) -> None:
        """Let the wrappers of these workers in, once each."""
        self._expected.update(workers)

    def revoke(self, worker: int) -> None:
        """Have a worker killed, as if its host had been taken away."""
        if worker in self._wrappers:
            self._signal(worker, signal.SIGTERM)

    def order(self, worker: int, order: Order) -> None:
        """Put an order where the worker finds it in its next round. Raises OSError."""
        with closing(orders(self._folder, writing=True)) as board:
            board.write(worker, order)

    def progress(self) -> dict[int, Progress]:
        """How far the workers have come that live; who has said nothing is in its script."""
        begun = {
            worker: Progress(0, 0, IN_SCRIPT, wrapper.since)
            for worker, wrapper in self._wrappers.items()
            if not wrapper.ended
        }
        return begun | self._on(progress)

    def busy(self) -> dict[int, Busy]:
        """What the scripts of workers that live say of themselves."""
        return self._on(busy)

    def _on(self, open_board: Callable[[Path], JobBoard[R]]) -> dict[int, R]:
        living = [one for one, wrapper in self._wrappers.items() if not wrapper.ended]
        try:
            with closing(open_board(self._folder)) as board:
                said = {worker: board.read(worker) for worker in living}
        except OSError:
            return {}  # somebody has removed the folder: that is for others to find
        return {worker: one for worker, one in said.items() if one is not None}

    def kill(self, worker: int) -> None:
        """Kill the wrapper itself: what mpirun and MPI take for the worker's death."""
        if worker in self._wrappers:
            self._signal(worker, signal.SIGKILL)

    def end(self) -> None:
        """Have every wrapper kill its worker, but stay itself: MPI must see no death in this."""
        self._ending = True
        for wrapper in self._wrappers.values():
            if not wrapper.ended:
                wire.say(wrapper.link, wire.END)

    def dismiss(self) -> None:
        """Let every wrapper go, and meet no new ones."""
        for wrapper in self._wrappers.values():
            wire.say(wrapper.link, wire.LEAVE)
        for stranger in self._strangers:
            self._refuse(stranger)
        self._strangers.clear()
        self._ignore(self._listener)
        self._listener.close()

    def hear(self) -> list[WorkerEvent]:
        """Return all that was said, ends last.

        An end that is known was preceded by whatever led to it on other connections: a worker
        dies in a step only after all the others had told that they are ready for it.
        """
        heard = [met for stranger in list(self._strangers) for met in self._meet(stranger)]
        # Seen now, acted upon after the last words were read.
        dead = [one for one, wrapper in self._wrappers.items() if _ended(wrapper.pidfd)]
        heard += [
            WorkerEvent(worker, message)
            for worker, wrapper in self._wrappers.items()
            for message in self._messages(wrapper.link)
        ]
        for said in heard:
            if isinstance(said.said, messages.Ended | messages.Cleared):
                self._wrappers[said.worker].ended = True
        heard += [
            WorkerEvent(one, messages.Vanished()) for one in dead if not self._wrappers[one].ended
        ]
        for one in dead:
            self._part(self._wrappers.pop(one))
        return in_order(heard)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            return
        link.setblocking(False)
        self._strangers.append(link)
        self._loop.watch(link.fileno(), _woken)

    def _meet(self, link: socket.socket) -> Iterator[WorkerEvent]:
        try:
            message, descriptors, _, _ = socket.recv_fds(link, LIMIT + 1, 3)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        self._strangers.remove(link)
        try:
            met = decode(message, messages.FROM_STRANGER)
        except Malformed:
            met = None
        pid, user = peer(link)
        if (
            not isinstance(met, messages.Met)
            or met.worker not in self._expected - self._met
            or user != os.getuid()
            or len(descriptors) not in (0, 2, 3)  # a stand-in has no streams, and not all keep logs
        ):
            self._refuse(link)
            for descriptor in descriptors:
                os.close(descriptor)
            return
        worker = met.worker
        self._met.add(worker)
        for stream, descriptor in enumerate(descriptors, start=1):
            self._watch(worker, descriptor, stream)
        # Not the end of the connection tells of a wrapper's death: the worker's children may
        # have inherited it. The wrapper is mpirun's child, which reaps it, so it may be gone.
        pidfd = _pidfd(pid)
        self._wrappers[worker] = _Wrapper(link, pidfd)
        self._loop.watch(pidfd, _woken)
        if self._ending:
            wire.say(link, wire.END)
        yield WorkerEvent(worker, met)

    def _signal(self, worker: int, number: signal.Signals) -> None:
        with suppress(OSError):  # it may have ended
            signal.pidfd_send_signal(self._wrappers[worker].pidfd, number)

    def _messages(self, link: socket.socket) -> Iterator[Message]:
        while True:
            try:
                message = link.recv(LIMIT + 1)
            except OSError:
                return
            if not message:
                self._ignore(link)
                return
            try:
                if len(message) > LIMIT:
                    raise Malformed(f"it has more than {LIMIT} bytes")
                yield decode(message, messages.FROM_WORKER)
            except Malformed as wrong:  # the script's doing, and its own affair
                yield messages.Garbled(str(wrong))

    def _part(self, wrapper: _Wrapper) -> None:
        self._ignore(wrapper.link)
        wrapper.link.close()
        self._loop.leave(wrapper.pidfd)
        os.close(wrapper.pidfd)

    def _refuse(self, link: socket.socket) -> None:
        self._ignore(link)
        link.close()

    def _ignore(self, link: socket.socket) -> None:
        self._loop.leave(link.fileno())


def in_order(heard: Iterable[WorkerEvent]) -> list[WorkerEvent]:
    """The same, ends last."""
    return sorted(
        heard, key=lambda one: _LAST.index(type(one.said)) if type(one.said) in _LAST else -1
    )


def _woken() -> None:
    """What woke the launcher up is dealt with in `hear`."""


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        # Dead and reaped: a descriptor that is readable from the start stands for it.
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def peer(link: socket.socket) -> tuple[int, int]:
    """Return process and user id of whoever connected, as the kernel knows them."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iii"))
    pid, user, _ = struct.unpack("=iii", credentials)
    return pid, user
