"""When checkpoints are written, and by which worker: by the leader at that time.

At the boundary where a checkpoint is due the leader copies the state. When the next round is
complete this state is stable, and the copy is written in the background while training goes on. All
parameters are looked at there: a checkpoint that is not finite removes none that is. Once it is on
the disk, the next control word tells all workers. If its writer dies first, the next leader writes
a checkpoint with its present state. One that the disk refused is tried again later, also with the
present state. A worker that leaves or exits waits for what it is writing; an abort does not wait.

When training ends or stops, no worker goes before the last state is on the disk: all are in a round
meanwhile, and a leader that dies in it has a successor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spotmpi.training.keeping.checkpoint_writer import CheckpointWriter, Copy

MOST_TRIES = 60
"""Tries to write the last checkpoint, if the disk refuses: for ten minutes."""

_LONGEST_PAUSE_AT_THE_END = 10.0
"""Longest pause between two tries of the last checkpoint, in seconds. The first is one second."""

State = Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Copies the state to host memory. Also returns what a reader needs beside it, as JSON values."""


def _rest_after(tries: int) -> float:
    """Return the seconds to wait after this many refused tries of the last checkpoint."""
    return min(2.0 ** (tries - 1), _LONGEST_PAUSE_AT_THE_END)


class Checkpoints:
    """One worker's side of checkpoints. Without a folder it does nothing."""

    def __init__(
        self,
        writer: CheckpointWriter,
        every: int | None,
        state: State,
        clock: Callable[[], float],
    ) -> None:
        """``every``: steps from one checkpoint to the next, if they are written by themselves."""
        self._writer = writer
        self.asked = False
        """True if the script asks for a checkpoint. The next control word says so."""
        self.published = False
        """True if this worker has written the checkpoint due last. The control word says so."""
        self._every = every
        self._state = state
        self._clock = clock
        self._due: int | None = None
        """Round at whose end a checkpoint was due that no worker has confirmed yet."""
        self._copy: Copy | None = None
        """What is to be written, until it is stable."""
        self._tries = 0
        """Number of refused tries of the last checkpoint, after the end of training."""

    def due(self, before: int, after: int) -> bool:
        """Return True if steps ``before`` to ``after`` make a checkpoint due by its interval. It
        belongs to the round that they end with."""
        return self._every is not None and after // self._every > before // self._every

    def committed(
        self,
        number: int,
        step: int,
        wanted: bool,
        confirmed: bool,
        leader: bool,
        level: bool = True,
    ) -> None:
        """Note that round ``number`` is committed and ``step`` steps are done. ``wanted``: a
        checkpoint is due. ``confirmed``: the one due is on the disk. ``level``: all hold the same
        state now, as a step has left it.

        Blocks only if a checkpoint must be written while the last one still is. What went wrong
        with the last one is raised here, or in the next call.
        """
        if self._writer.folder is None:
            return
        if self._writer.through:
            self.wait()
        if self._copy is not None:
            self._write(self._copy)
        if confirmed:  # the one due is on the disk; `published` ends when another is due
            self._due = None
        if wanted:
            self._due, self.published = number, False
        writes = leader and level and not (self.published or self._writer.writes(self._due))
        if self._due is None or not leader:
            self._copy = None
        elif writes and self._writer.may_begin:
            self._copy = self._copied(self._due, step)

    def joins(self, number: int) -> None:
        """Note that this worker has learnt everything by round ``number``. It assumes that a
        checkpoint is due that no worker has confirmed, and writes one if all others die."""
        if self._writer.folder is not None:
            self._due = number

    def keep(self, step: int, complete: bool) -> bool:
        """Write the state as it is, unless that is done. Return True if it is on disk. Blocking.

        The leader calls it when all workers are at the boundary before ``step`` and nothing of it
        can be taken back. ``complete``: training is over.
        """
        self._copy = None
        self.wait()
        if self._writer.last != (step, complete):
            self._write(self._copied(-1, step), complete)
            self.wait()
        return self._writer.last == (step, complete)

    def refused_end(self) -> None:
        """Count a refused try to keep the end of the training. All workers know of it."""
        self._tries += 1

    @property
    def given_up(self) -> bool:
        """True if the end of the training could not be kept in `MOST_TRIES` tries."""
        return self._tries >= MOST_TRIES

    def pause(self, rest: Callable[[float], None]) -> None:
        """Wait, by ``rest``, before the next try, if the last one was refused. Blocking."""
        if self._tries:
            rest(_rest_after(self._tries))

    def wait(self) -> None:
        """Wait until nothing is being written. Raise what went wrong, unless the disk refused."""
        written = self._writer.wait()
        if written is not None:  # another may be due by now
            self.published = self.published or written.due == self._due

    def _copied(self, due: int, step: int) -> Copy:
        began = self._clock()
        state, about = self._state()
        return Copy(due, step, state, about, self._clock() - began)

    def _write(self, copy: Copy, complete: bool = False) -> None:
        self._copy = None
        self.wait()
        tries = range(self._tries + 1, MOST_TRIES)
        self._writer.begin(copy, complete, sum(map(_rest_after, tries)) if complete else None)
