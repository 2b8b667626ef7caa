"""How workers of one host wait for each other, by the numbers in their headers (`SharedHeader`)."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.errors import PeersLost
from spotmpi.fabric.neighbours.shared_header import SharedHeader

__all__ = ["HostBarrier"]

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}.get(platform.machine(), 0)
"""The number of the system call futex; 0 where it is not known."""

_NAP = 1_000_000
"""Nanoseconds that a worker with a core of its own sleeps at most before it looks for losses."""

_LOOKS = 200_000
"""Times that a worker with a core of its own looks at another's number before it sleeps. On the
processor of docs/adr/0075 they take as long as to sleep and to be woken, on older ones more."""

_YIELDS = 100
"""Times that a worker that shares its core looks for the others before it sleeps. It yields the
core after each look, so the others come sooner."""


class HostBarrier:
    """One worker's side. A waiting worker sleeps; after each sleep it asks if it must leave off."""

    possible = bool(_FUTEX)
    """True if this machine has the system call."""

    def __init__(self, hopeless: Callable[[], bool]) -> None:
        self._hopeless = hopeless
        self._present: Sequence[SharedHeader] = ()
        self._loops: SimpleNamespace | None = None
        self._all_ready = self._all_done = self._all_brought = _numbers([])
        self._bell = self._looks = self._yields = 0
        self._told = 0
        """The number that `done` has told last."""
        self._telling = threading.Lock()
        self._nap = HOST.zeros("int64", 2)
        """The limit of a sleep, in seconds and nanoseconds."""
        self._nap_at = int(self._nap.ctypes.data)  # NumPy takes a microsecond to tell

    @property
    def loaded(self) -> bool:
        """True if Numba is loaded: there was something large enough to sum."""
        return self._loops is not None

    def load(self) -> None:
        """Load Numba, if it is not loaded yet. Takes as long as Numba does."""
        if self._loops is None:
            from spotmpi.fabric.neighbours import barrier_loops

            self._loops = barrier_loops.compiled()
            self.join(self._present)

    def join(self, present: Sequence[SharedHeader]) -> None:
        """Wait for the workers of these headers from now on, in their order."""
        self._present = present
        if self._loops is None or not present:
            return
        count = len(present)
        self._all_ready = _numbers([header.ready for header in present])
        self._all_done = _numbers([header.done for header in present])
        self._all_brought = _numbers([header.brought for header in present])
        self._bell = present[0].bell
        crowd = -(-count // len(os.sched_getaffinity(0)))
        self._looks, self._yields = (_LOOKS // count, 0) if crowd == 1 else (0, _YIELDS)
        self._nap[1] = min(_NAP * crowd, 999_999_999)

    def ready(self, header: SharedHeader, number: int) -> None:
        """Tell that this worker, the owner of ``header``, has started the part of this number."""
        self._tell(header.ready, number, self._all_ready)

    def done(self, header: SharedHeader, number: int) -> None:
        """Tell that this worker has summed its slices of all parts up to this number. Does nothing
        if a later one was told: the thread that sums may be ahead of who waits."""
        with self._telling:
            if number > self._told:
                self._told = number
                self._tell(header.done, number, self._all_done)

    def all_ready(self, number: int) -> None:
        """Return when all have started this part. Raises PeersLost if this worker must leave off,
        because a worker is lost or has met a loss."""
        self._meet(self._all_ready, number)

    def all_done(self, number: int) -> None:
        """Return when all have summed up to this part. Raises PeersLost as `all_ready`."""
        self._meet(self._all_done, number)

    def all_bring(self, header: SharedHeader, number: int) -> None:
        """Tell that this worker, the owner of ``header``, has brought its row to the small sum of
        this number; return when all have. Raises PeersLost as `all_ready`."""
        self._tell(header.brought, number, self._all_brought)
        self._meet(self._all_brought, number)

    def wake(self) -> None:
        """Wake all that sleep: they look if they must leave off."""
        if self._present and self._loops is not None:
            self._loops.ring(self._bell, _FUTEX)

    def publish(self, address: int, number: int) -> None:
        """Write the number after all that was written before."""
        assert self._loops is not None
        self._loops.publish(address, number)

    def _tell(self, where: int, number: int, everybody: Buffer) -> None:
        assert self._loops is not None
        self._loops.post(where, number, everybody, self._bell, _FUTEX)

    def _meet(self, everybody: Buffer, number: int) -> None:
        assert self._loops is not None
        meet, bell, nap = self._loops.meet, self._bell, self._nap_at
        looks, yields = self._looks, self._yields
        while not meet(everybody, number, bell, looks, yields, nap, _FUTEX):
            if self._hopeless():
                raise PeersLost("a worker of this host is lost, or has met a loss")
            looks = yields = 0  # a worker that is so late computes, perhaps on this core


def _numbers(given: Sequence[int]) -> Buffer:
    """Return an array of these, for compiled loops."""
    made = HOST.zeros("uint64", len(given))
    made[:] = given
    return made
