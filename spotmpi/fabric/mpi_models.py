"""Models that workers publish and fetch, over MPI: neighbours read each other's boards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from spotmpi.arrays.backend import HOST, Backend, Buffer, backend_of
from spotmpi.fabric import Fetched
from spotmpi.fabric.planes.boards import Board, Form
from spotmpi.fabric.planes.plane import Plane
from spotmpi.protocol.membership import WorkerId

__all__ = ["MpiModels"]


class MpiModels:
    """One worker's side."""

    def __init__(self, plane: Plane, members: Callable[[], Collection[WorkerId]]) -> None:
        """``members``: those of now, that are not known to be dead, and not this one."""
        self._plane = plane
        self._members = members
        self._board: Board | None = None
        """None as long as nothing is published."""
        self._room = HOST.zeros("uint8", 0)
        """Where what is fetched comes to ..."""
        self._model: list[Buffer] = []
        """... and what is replied: arrays there, or where this worker has its own."""

    def publish(self, model: Sequence[Buffer]) -> None:
        """As `Publish`."""
        form, backends = Form.of(model), [backend_of(array) for array in model]
        if self._board is None or self._board.form != form:
            before = 0 if self._board is None else self._board.published
            self._board = Board.new(form, before)
            self._room = form.room()
            self._model = _arrays(form, self._room, backends)
            self._board.write(model)
            self._plane.show(self._board)
        else:
            self._board.write(model)

    def fetch(self, worker: WorkerId) -> Fetched | None:
        """As `Fetch`."""
        if self._board is None or worker not in self._members():
            return None
        board = self._plane.board_of(worker, self._board.form)
        number = None if board is None else board.read(self._room)
        return None if number is None else self._reply(worker, number)

    def move_on(self) -> None:
        """Nothing was published in this training yet."""
        self._board = None
        self._plane.show(None)

    def _reply(self, worker: WorkerId, number: int) -> Fetched:
        assert self._board is not None
        for target, here in zip(self._model, self._board.form.arrays_in(self._room), strict=True):
            backend = backend_of(target)
            if backend is not HOST:
                backend.from_host(target, here)
        return Fetched(worker, number, self._model)


def _arrays(form: Form, room: Buffer, backends: Sequence[Backend]) -> list[Buffer]:
    return [
        here if backend is HOST else backend.zeros(dtype, size)
        for here, backend, (dtype, size) in zip(
            form.arrays_in(room), backends, form.arrays, strict=True
        )
    ]
