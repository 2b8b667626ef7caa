"""Sums on the device, among workers of one host that can open each other's memory there.

Each adds up its slice of all contributions, in the order of the members, into its own result. Then
it copies the other slices from the others' results. Of a small array each adds up the whole, and
copies nothing. So what a worker needs after a death lies in its own memory: CUDA leaves undefined
what becomes of memory that a dead process has shared.

All meet after each reading of others' memory, and nobody goes on unless all have come. After a
meeting a worker knows that all others were alive when it came, so after it had read. Otherwise it
may have read rubbish, without an error.

Workers tell each other numbers by the node (a `SharedMemoryPlane`): as sums of short arrays in the
memory of the host, in which each worker has a row. So a loss is noticed there, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from spotmpi.arrays.backend import DEVICE, Buffer
from spotmpi.arrays.word_view import WORDS_OF
from spotmpi.fabric.planes.device_memory import HANDLE, DeviceMemory, Opened
from spotmpi.fabric.planes.plane import Arena, Handle, Part, Shape
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from spotmpi.protocol.host_ring import cut

__all__ = ["DeviceArena", "DeviceSums", "HostTalk"]

_LOG = logging.getLogger(__name__)

_ENOUGH = 1024
"""Elements of an array that workers of a host always sum in shared memory."""


_WHOLE = 64 << 20
"""Bytes of all contributions to an array, up to which each worker adds up the whole of it. On one
device that pays up to eight times as many; devices that read over a link pay for each byte."""


class HostTalk:
    """How members tell each other numbers: each gets a row of every member. Collective."""

    def __init__(self, node: SharedMemoryPlane) -> None:
        self._node = node
        self._arena: Arena | None = None
        self._herald: Arena | None = None
        self.outstanding: dict[Handle, None] = {}
        """Parts that were started with the node and not waited for."""
        self.early: set[Handle] = set()
        """Parts that were waited for before the caller asked for it."""
        self._own: list[Handle] = []
        """Parts that this object has started itself, and that are under way."""

    def reset(self) -> None:
        """Forget all arenas and parts. The members have changed, so nobody can say which of an
        arena's two results is the open one."""
        self._arena = self._herald = None
        self.outstanding, self.early, self._own = {}, set(), []

    def announce(self) -> None:
        """Start a large part of the node, of zeros: something is to be summed on the device. The
        node does not see that, and small arrays meet in shared memory only beside large ones."""
        if self._herald is None:
            self._herald = self._node.arena([Shape("float64", _ENOUGH)], "herald of devices")
        handle = self._node.start(self._herald.parts[0])
        self.outstanding[handle] = None
        self._own.append(handle)

    def say(self, numbers: Sequence[float]) -> list[list[float]]:
        """Tell all members these numbers; return the numbers of each, in the order of members. All
        tell equally many. Waits first for all that was started before. Raises PeersLost."""
        node, width = self._node, len(numbers)
        count, place = len(node.neighbours.present), node.neighbours.place
        size = max(_ENOUGH, count * width)
        if self._arena is None or self._arena.layout[0].size < size:
            self._arena = node.arena([Shape("float64", size)], "devices")
        (row,) = self._arena.contributions
        row[:] = 0
        row[place * width : (place + 1) * width] = numbers
        said = node.start(self._arena.parts[0])
        self.outstanding[said] = None
        self._own.append(said)
        # Parts are summed in order: once this one is done, all before it are.
        self.catch_up()
        heard = self._arena.results[0][: count * width].reshape(count, width).tolist()
        self._arena.turn()
        found: list[list[float]] = heard
        return found

    def catch_up(self) -> None:
        """Wait for all that is outstanding. Collective. Raises PeersLost."""
        self._node.wait(list(self.outstanding))
        self.early.update(one for one in self.outstanding if one not in self._own)
        self.outstanding, self._own = {}, []

    def give_up(self) -> list[Handle]:
        """Return the parts that this object has started itself; nobody waits for them any more."""
        own, self._own = self._own, []
        for handle in own:
            self.outstanding.pop(handle, None)
        return own


class DeviceArena(Arena):
    """An arena on the device, in memory that others can open. It has one for the same arrays in the
    memory of the host, ``host``: sums go there if workers cannot open each other's memory."""

    def __init__(self, layout: Sequence[Shape], host: Arena) -> None:
        self.host = host
        self.memory = DeviceMemory(layout)
        sets = iter(self.memory.sets)
        super().__init__(layout, lambda: next(sets), in_place=False)
        self.weighs = host.weighs
        self.open = 0
        """Which set holds the open round's results: 0 or 1."""
        self.near: bool | None = None
        """True if sums are made on the device; None if that must be found out."""
        self.went_near = False
        """The value of `near` when a part of this arena was last started."""
        self.opened: dict[bytes, Opened] = {}
        self.others: list[tuple[Opened | None, int]] = []
        """For each member: its memory, None for this worker; and 1 if its open results are in
        another set than this worker's, else 0."""

    def turn(self) -> None:
        """Make the open round's sums the record: the round is committed."""
        super().turn()
        self.host.turn()
        self.open = 1 - self.open

    def close(self, but: Sequence[bytes] = ()) -> None:
        """Close all memory of others but for the handles ``but``."""
        for handle in self.opened.keys() - set(but):
            self.opened.pop(handle).close()


class DeviceSums:
    """This worker's sums on the device with others of its host."""

    def __init__(self, node: SharedMemoryPlane) -> None:
        self._node = node
        self.talk = HostTalk(node)
        self._begun = False

    def reaches_all(self, arena: DeviceArena) -> bool:
        """Return True if all members can open each other's memory. Collective. Raises PeersLost."""
        arena.others = []
        if not self._node.neighbours.present or self._node.rings is not None:
            arena.close()
            return False
        if len(self._node.neighbours.present) == 1:
            arena.close()
            arena.others = [(None, 0)]
            return True
        handle = arena.memory.handle()
        told = self.talk.say([handle is not None, arena.open, *(handle or bytes(HANDLE))])
        handles = [bytes(map(int, row[2:])) for row in told]
        try:
            if not all(row[0] for row in told):
                raise OSError("a worker's memory has no handle")
            for place, (row, its) in enumerate(zip(told, handles, strict=True)):
                if place == self._node.neighbours.place:
                    arena.others.append((None, 0))
                    continue
                if its not in arena.opened:
                    arena.opened[its] = Opened(its, arena.layout)
                arena.others.append((arena.opened[its], int(row[1]) ^ arena.open))
            reached = True
        except OSError as error:
            _LOG.info("sums go by the memory of the host: %s", error)
            reached = False
        arena.close(but=handles)
        return all(row[0] for row in self.talk.say([reached]))

    def sum(self, arena: DeviceArena, parts: Sequence[Part]) -> None:
        """Add up these of its arrays. Collective. Raises PeersLost: then results hold rubbish."""
        import cupy

        self._begun = True
        stream = cupy.cuda.get_current_stream()
        stream.synchronize()  # the contributions are complete
        weights = [[part.weight for part in parts]]
        alone = len(arena.others) == 1
        if not alone:
            weights = self.talk.say(weights[0])
        for which, part in enumerate(parts):
            if part.narrowing is not None:
                part.narrowing.begin([])
            mine = self._slice(part, self._node.neighbours.place)
            brought = [
                (self._set_of(arena, place, 2, part.contribution, part.number)[mine], row[which])
                for place, row in enumerate(weights)
                if row[which]  # a contribution of weight 0 may hold anything, NaN too
            ]
            result = part.result[mine]
            if brought and result.size:
                DEVICE.kernels.scaled_sum(result, *map(list, zip(*brought, strict=True)))
            elif result.size:
                DEVICE.fill(result, 0)
        if alone:
            self.talk.catch_up()
            return
        self._meet(stream)
        sliced = [part for part in parts if not self._is_small(part)]
        for part in sliced:
            for place, (_, other) in enumerate(arena.others):
                if place == self._node.neighbours.place:
                    continue
                theirs = self._slice(part, place)
                which = arena.open ^ other
                its = self._set_of(arena, place, which, part.result, part.number)[theirs]
                into = part.result[theirs]
                if into.size:
                    into.data.copy_from_device_async(its.data, into.nbytes, stream)
        if sliced:
            self._meet(stream)

    def _meet(self, stream: Any) -> None:
        """Return when all members' devices have done their work, and all members are alive."""
        stream.synchronize()
        self.talk.say([])

    def settle(self) -> None:
        """Return when this worker's device has done all work for sums."""
        if self._begun:
            import cupy

            cupy.cuda.get_current_stream().synchronize()

    def _is_small(self, part: Part) -> bool:
        """Return True if each worker adds up the whole of this array."""
        dtype, (size,) = DEVICE.describe(part.result)
        return 4 * WORDS_OF[dtype] * size * len(self._node.neighbours.present) <= _WHOLE

    def _slice(self, part: Part, place: int) -> slice:
        """Return what the worker of this place adds up."""
        _, (size,) = DEVICE.describe(part.result)
        if self._is_small(part):
            return slice(0, size)
        return cut(size, place, len(self._node.neighbours.present))

    @staticmethod
    def _set_of(arena: DeviceArena, place: int, which: int, own: Buffer, index: int) -> Buffer:
        opened, _ = arena.others[place]
        return own if opened is None else opened.sets[which][index]
