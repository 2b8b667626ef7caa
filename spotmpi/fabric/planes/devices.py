"""The data plane of workers whose arrays lie on devices. It has `SharedMemoryPlane` for all others.

Workers of one host that can open each other's memory sum on the device (`device_sums`). For all
others, what a worker brings is copied to an arena of the host's memory when it is started: there
neighbours add it up, and rings carry it to other hosts. So MPI is never given the address of a
device. While one array travels, the next one is copied; what has come is copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from spotmpi.arrays.backend import DEVICE, HOST, Buffer
from spotmpi.fabric.planes.device_sums import DeviceArena, DeviceSums
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import AddUp, Arena, Between, Handle, Part, Plane, Shape, Ways
from spotmpi.fabric.planes.published_model import ModelForm, PublishedModel
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from spotmpi.fabric.planes.staging import Staging
from spotmpi.protocol.membership import WorkerId

__all__ = ["Devices"]


class _Landing(NamedTuple):
    """Where a sum is to go."""

    source: Buffer
    target: Buffer


class Devices(Plane):
    """For members whose arrays are a device's, or the host's, or of both."""

    def __init__(
        self, ways: Ways, node: Callable[[Ways], SharedMemoryPlane] = SharedMemoryPlane
    ) -> None:
        self.node = node(ways)
        self._arenas: dict[str, DeviceArena] = {}
        """The last one of each name."""
        self._places: dict[int, tuple[DeviceArena, int]] = {}
        """Of their contributions, by `id`."""
        self._landings: dict[Handle, _Landing] = {}
        """Of what the node was given, and is a device's."""
        self._near: dict[Handle, tuple[DeviceArena, int, Part]] = {}
        """What is to be summed on the device. The node knows nothing of these, hence numbers that
        it does not give."""
        self._last_near: Handle = 0
        self._neighbours = DeviceSums(self.node)
        self._made: Staging | None = None

    def card(self) -> bytes:
        """The host's."""
        return self.node.card()

    def reach(self, cards: Mapping[WorkerId, bytes]) -> bool:
        """The memory of hosts."""
        return self.node.reach(cards)

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """From now on these are summed over."""
        self.node.bind(members, together)
        self._neighbours.talk.begin_anew()
        for arena in self._arenas.values():
            arena.near = None

    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """On the device, if all arrays are, with a way through the memory of the host."""
        if (old := self._arenas.pop(name, None)) is not None:
            old.close()
        if layout and name and all(shape.backend is DEVICE for shape in layout):
            host = self.node.arena([shape._replace(backend=HOST) for shape in layout], name)
            self._arenas[name] = made = DeviceArena(layout, host)
            found: Arena = made
        else:
            found = self.node.arena(layout, name, state)
        self._places = {
            id(contribution): (arena, index)
            for arena in self._arenas.values()
            for index, contribution in enumerate(arena.contributions)
        }
        return found

    def start(self, part: Part) -> Handle:
        """Blocks until the contribution is in the memory of the host, if it goes there."""
        if (place := self._places.get(id(part.contribution))) is None:
            return self._given(part)
        arena, index = place
        if arena.near is None:
            arena.near = self._neighbours.reaches_all(arena)
        arena.went_near = arena.near
        if arena.near:
            if not self._near:
                self._neighbours.talk.announce()
            self._last_near -= 1
            self._near[self._last_near] = arena, index, part
            return self._last_near
        there = arena.host.parts[index]._replace(weight=part.weight, narrowing=part.narrowing)
        if part.weight:  # else it does not count, whatever it is
            self._staging.to_host(part.contribution, there.contribution)
        handle = self._given(there)
        self._landings[handle] = _Landing(there.result, part.result)
        return handle

    def _given(self, part: Part) -> Handle:
        """To the node."""
        handle = self.node.start(part)
        self._neighbours.talk.outstanding[handle] = None
        return handle

    def proceed(self) -> None:
        """As far as the host's memory goes: what has come is copied to the device in `wait`."""
        self.node.proceed()

    def wait(self, handles: Sequence[Handle]) -> None:
        """In the order in which they were started. A sum is copied while the next one is made."""
        near: dict[int, tuple[DeviceArena, list[tuple[int, Part]]]] = {}
        for handle in sorted((one for one in handles if one in self._near), reverse=True):
            arena, index, part = self._near[handle]
            near.setdefault(id(arena), (arena, []))[1].append((index, part))
        for arena, parts in near.values():
            self._neighbours.sum(arena, parts)
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
        """For the node."""
        talk = self._neighbours.talk
        self.node.wait([handle for handle in handles if handle not in talk.early])
        for handle in handles:
            talk.early.discard(handle)
            talk.outstanding.pop(handle, None)

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Nothing is under way to or from a device when it returns."""
        talk = self._neighbours.talk
        given = [one for one in handles if one not in self._near]
        self.node.cancel([*given, *talk.give_up()])
        for handle in handles:
            self._near.pop(handle, None)
            self._landings.pop(handle, None)
            talk.early.discard(handle)
            talk.outstanding.pop(handle, None)
        if self._made is not None:
            self._made.settle()
        self._neighbours.settle()

    def interrupt(self) -> None:
        """Wake who sleeps."""
        self.node.interrupt()

    def is_everywhere(self, buffer: Buffer) -> bool:
        """A device's never is."""
        return self.node.is_everywhere(buffer)

    def dead(self) -> Collection[WorkerId]:
        """Whom the node has seen die."""
        return self.node.dead()

    def show(self, board: PublishedModel | None) -> None:
        """In the memory of the host."""
        self.node.show(board)

    def is_near(self, worker: WorkerId) -> bool:
        """The node's."""
        return self.node.is_near(worker)

    def board_of(self, worker: WorkerId, form: ModelForm) -> PublishedModel | None:
        """The node's."""
        return self.node.board_of(worker, form)

    def add_up(self, asked: AddUp) -> int:
        """In the memory of the host."""
        return self.node.add_up(asked)

    def move_on(self) -> None:
        """The node's."""
        self.node.move_on()

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """As they were started last: on the device, or as the arrays in the memory of the host."""
        places = [self._places.get(id(part.contribution)) for part in parts]
        if any(place is not None and place[0].went_near for place in places):
            return None
        return self.node.between(workers, [self._there(part) for part in parts])

    def _there(self, part: Part) -> Part:
        """The same array in the memory of the host."""
        if (place := self._places.get(id(part.contribution))) is None:
            return part
        arena, index = place
        return arena.host.parts[index]

    @property
    def _staging(self) -> Staging:
        if self._made is None:
            self._made = Staging()
        return self._made
