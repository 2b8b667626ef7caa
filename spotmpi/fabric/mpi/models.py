"""Models that workers publish and fetch, over MPI.

Neighbours (workers that share memory) read each other's published models
(`neighbours.published_model`). Any other worker is asked for its model, and a thread of that worker
answers, even while its script is busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from spotmpi.arrays.backend import HOST, Backend, Buffer, backend_of
from spotmpi.fabric import Fetch, Fetched
from spotmpi.fabric.mpi.asks import Answering, Asking, Came
from spotmpi.fabric.mpi.calls import Path, threads
from spotmpi.fabric.mpi.given_up import GivenUp
from spotmpi.fabric.mpi.messenger import Messenger
from spotmpi.fabric.neighbours.neighbours import Neighbours
from spotmpi.fabric.neighbours.published_model import ModelForm, PublishedModel
from spotmpi.protocol.membership import WorkerId

__all__ = ["MpiModels"]


@dataclass
class _Room:
    """Memory for one model that comes."""

    flat: Buffer
    """All bytes of the model, in the memory of the host."""
    model: list[Buffer]
    """Its arrays: in ``flat``, or on the device if this worker's own model is there."""


class MpiModels:
    """One worker's side of publishing and fetching models."""

    def __init__(
        self,
        neighbours: Neighbours,
        way: Callable[[], Path],
        members: Callable[[], Collection[WorkerId]],
    ) -> None:
        """``way`` returns the present data path. ``members`` returns the other members that are
        not known to be dead."""
        self._neighbours = neighbours
        self._way = way
        self._members = members
        self._published_model: PublishedModel | None = None
        """This worker's published model. None as long as nothing is published."""
        self._replied = self._free = _Room(HOST.zeros("uint8", 0), [])
        """Rooms of the last reply, and of the next model that comes from another host."""
        self._turn = threading.Lock()
        """Guards the three fields below, and MPI for them. A thread that holds it may then take
        ``_word``, but not the other way round."""
        given_up = self._given_up = GivenUp()
        self._asking, self._answering = Asking(given_up), Answering(given_up)
        self._word = threading.Lock()
        """Guards the two fields below. Held for a moment only."""
        self._wanted: Fetch | None = None
        """Ask to begin next, if any."""
        self._came: Came | None = None
        """Model that has come to ``_free`` and was not fetched yet, if any."""
        self._messenger = Messenger("spotmpi models", self._look_for_messages, longest=0.005)

    def publish(self, model: Sequence[Buffer]) -> None:
        """Perform `Publish`."""
        self._messenger.check()
        form = ModelForm.of(model)
        if self._published_model is None or self._published_model.form != form:
            self._furnish(form, [backend_of(array) for array in model])
        assert self._published_model is not None
        self._published_model.write(model)
        self._attend()

    def fetch(self, request: Fetch) -> Fetched | None:
        """Perform ``request``."""
        worker = request.worker
        self._messenger.check()
        if self._published_model is None:
            return None
        members = self._members()
        with self._word:
            came, self._came = self._came, None
            if came is not None:
                self._replied, self._free = self._free, self._replied
            if worker in members and not self._neighbours.is_near(worker):
                self._wanted = request
                self._messenger.wake()
        self._attend()
        if came is not None and came.worker in members:
            return self._reply(*came)
        near = self._neighbours.model_of(worker, self._form) if worker in members else None
        number = None if near is None else near.read(self._replied.flat, request.unread)
        return None if number is None else self._reply(worker, number)

    def move_on(self) -> None:
        """Begin another training, in which nothing is published yet."""
        with self._turn:
            self._forget()
            self._published_model = None
        self._neighbours.show(None)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Give up what is under way, and use no MPI during this block."""
        with self._turn:
            self._give_up()
            yield
        self._attend()

    @property
    def _form(self) -> ModelForm:
        assert self._published_model is not None
        return self._published_model.form

    def _furnish(self, form: ModelForm, backends: Sequence[Backend]) -> None:
        """Make a published model and rooms for models of this form."""
        with self._turn:
            self._forget()
            before = 0 if self._published_model is None else self._published_model.published
            self._published_model = PublishedModel.new(form, before)
            self._replied, self._free = _room(form, backends), _room(form, backends)
        self._neighbours.show(self._published_model)

    def _forget(self) -> None:
        """Let asks and replies that are under way not count any more."""
        self._asking.leave()
        self._answering.forget()
        with self._word:
            self._wanted = self._came = None

    def _give_up(self) -> None:
        self._asking.give_up()
        self._answering.give_up()

    def _reply(self, worker: WorkerId, number: int) -> Fetched:
        room = self._replied
        for target, here in zip(room.model, self._form.arrays_in(room.flat), strict=True):
            backend = backend_of(target)
            if backend is not HOST:
                backend.from_host(target, here)
        return Fetched(worker, number, room.model)

    # Work beside the script.

    def _attend(self) -> None:
        """Make sure that workers of other hosts get answers."""
        if self._published_model is None or all(map(self._neighbours.is_near, self._members())):
            return
        if threads():
            self._messenger.start()
        else:
            self._look_for_messages()

    def _look_for_messages(self) -> tuple[bool, bool]:
        """Return True if anything could be done, and True if anything is under way."""
        with self._turn:
            return self._proceed(), self._asking.busy or self._answering.busy

    def _proceed(self) -> bool:
        """Do what can be done now. Returns True if that was anything."""
        self._given_up.free()
        comm, members = self._way()
        if comm.Is_revoked():
            self._give_up()
            return False
        answered = self._answering.proceed(comm, lambda: self._published_model)
        came = self._asking.proceed(comm)
        with self._word:
            self._came = came or self._came
            wanted = self._wanted
            if (
                wanted is not None
                and self._asking.silent
                and wanted.worker != self._asking.under_way
            ):
                self._asking.leave()  # and the wanted worker is asked meanwhile
            if self._asking.under_way is None and self._came is None:
                self._wanted = None
            else:
                wanted = None
        if wanted is not None and wanted.worker in members:
            rank = members.index(wanted.worker)
            self._asking.begin(comm, wanted, rank, self._form, self._free.flat)
        return answered or came is not None or wanted is not None


def _room(form: ModelForm, backends: Sequence[Backend]) -> _Room:
    flat = form.room()
    model = [
        here if backend is HOST else backend.zeros(dtype, size)
        for here, backend, (dtype, size) in zip(
            form.arrays_in(flat), backends, form.arrays, strict=True
        )
    ]
    return _Room(flat, model)
