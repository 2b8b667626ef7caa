"""The data plane for arrays of devices. It uses `SharedMemoryPlane` for all others.

Workers of one host that can open each other's memory sum on the device (`device_sums`). For all
others, `start` copies a contribution to an arena in the host's memory. There neighbours (workers of
one host) add it up, and rings carry it to other hosts. So MPI never gets an address of a device.
While one array travels, the next one is copied. `wait` copies the sum back to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spotmpi.arrays.backend import DEVICE, HOST, Buffer
from spotmpi.fabric.planes.device_sums import DeviceArena, DeviceSums
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import Arena, Between, Handle, Part, Plane, Shape, Ways
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from spotmpi.fabric.planes.staging import Staging
from spotmpi.protocol.membership import WorkerId

__all__ = ["Devices"]


class _Landing(NamedTuple):
    """Where a sum is to be copied."""

    source: Buffer
    target: Buffer


class Devices(Plane):
    """Sums arrays of devices and of hosts. Its `node` makes all sums but those on devices."""

    def __init__(
        self, ways: Ways, node: Callable[[Ways], SharedMemoryPlane] = SharedMemoryPlane
    ) -> None:
        self.node = node(ways)
        self.neighbours = self.node.neighbours
        self._arenas: dict[str, DeviceArena] = {}
        """The last arena of each name."""
        self._landings: dict[Handle, _Landing] = {}
        """Where the sums of parts that the node was given go on the device."""
        self._near: dict[Handle, Part] = {}
        """Parts to be summed on the device. The node gives positive handles; these are negative."""
        self._last_near: Handle = 0
        self._device_sums = DeviceSums(self.node)
        self._made: Staging | None = None

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Sum over these members from now on."""
        self.node.bind(members, together)
        self._device_sums.talk.reset()
        for arena in self._arenas.values():
            arena.near = None

    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return an arena on the device, and one on the host beside it, if it has a name and all
        its arrays are of a device; else an arena of the node."""
        if (old := self._arenas.get(name)) is not None:
            self.release(old)
        if layout and name and all(shape.backend is DEVICE for shape in layout):
            on_host = [shape._replace(backend=HOST) for shape in layout]
            host = self.node.arena(on_host, name)
            self._arenas[name] = made = DeviceArena(layout, host)
            made.name = name
            return made
        return self.node.arena(layout, name, state)

    def release(self, arena: Arena) -> None:
        """Forget this arena, unless another one has its name by now."""
        if isinstance(arena, DeviceArena):
            arena.close()
            if self._arenas.get(arena.name) is arena:
                del self._arenas[arena.name]
            arena = arena.host
        self.node.release(arena)

    def start(self, part: Part) -> Handle:
        """Begin to sum ``part``. Blocks until it is in the memory of the host, if it goes there."""
        arena, landing = part.arena, None
        # Of an arena that was replaced, `near` may be of other members: `bind` resets it only in
        # the last arena of each name. And what it opened of the others' memory is closed.
        if isinstance(arena, DeviceArena) and self._arenas.get(arena.name) is arena:
            if arena.near is None:
                arena.near = self._device_sums.reaches_all(arena)
            arena.went_near = arena.near
            if arena.near:
                if not self._near:
                    self._device_sums.talk.announce()
                self._last_near -= 1
                self._near[self._last_near] = part
                return self._last_near
            arena.host.weight = part.weight
            there = self._there(part)._replace(weight=part.weight, narrowing=part.narrowing)
            if part.weight:  # else it does not count
                self._staging.to_host(part.contribution, there.contribution)
            part, landing = there, _Landing(there.result, part.result)
        handle = self.node.start(part)
        self._device_sums.talk.outstanding[handle] = None
        if landing is not None:
            self._landings[handle] = landing
        return handle

    def proceed(self) -> None:
        """Go on with sums in the memory of the host. `wait` copies their results to the device."""
        self.node.proceed()

    def wait(self, handles: Sequence[Handle]) -> None:
        """Wait for these parts: first for sums on the device, then for the node's, in the order of
        their starts. A sum is copied to the device while the node makes the next one."""
        if not (self._near or self._landings):
            self._wait(handles)
            return
        near: dict[DeviceArena, list[Part]] = {}
        for handle in sorted((one for one in handles if one in self._near), reverse=True):
            part = self._near[handle]
            assert isinstance(part.arena, DeviceArena)
            near.setdefault(part.arena, []).append(part)
        for arena, parts in near.items():
            self._device_sums.sum(arena, parts)
        rest = []
        for handle in sorted(one for one in handles if one not in self._near):
            if handle in self._landings:
                self._wait([handle])
                self._staging.to_device(*self._landings.pop(handle))
            else:
                rest.append(handle)
        self._wait(rest)
        for handle in handles:
            self._near.pop(handle, None)

    def _wait(self, handles: Sequence[Handle]) -> None:
        """Wait for these parts of the node."""
        talk = self._device_sums.talk
        self.node.wait([handle for handle in handles if handle not in talk.early])
        for handle in handles:
            talk.early.discard(handle)
            talk.outstanding.pop(handle, None)

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Give these up. When it returns, nothing is under way to or from a device."""
        talk = self._device_sums.talk
        given = [one for one in handles if one not in self._near]
        self.node.cancel([*given, *talk.give_up()])
        for handle in handles:
            self._near.pop(handle, None)
            self._landings.pop(handle, None)
            talk.early.discard(handle)
            talk.outstanding.pop(handle, None)
        if self._made is not None:
            self._made.settle()
        self._device_sums.settle()

    def interrupt(self) -> None:
        """Wake neighbours that sleep."""
        self.node.interrupt()

    def is_everywhere(self, buffer: Buffer) -> bool:
        """Return True if ``buffer`` is the same memory for all members: never on a device."""
        return self.node.is_everywhere(buffer)

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return how these parts were summed last: None if on the device, else as the node says."""
        if any(isinstance(one.arena, DeviceArena) and one.arena.went_near for one in parts):
            return None
        return self.node.between(workers, [self._there(part) for part in parts])

    def _there(self, part: Part) -> Part:
        """Return the part in the memory of the host that stands for this one."""
        if not isinstance(part.arena, DeviceArena):
            return part
        host, number = part.arena.host, part.number
        return Part(host.contributions[number], host.results[number], arena=host, number=number)

    @property
    def _staging(self) -> Staging:
        if self._made is None:
            self._made = Staging()
        return self._made
