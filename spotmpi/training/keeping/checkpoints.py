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

import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.errors import CheckpointError
from spotmpi.fabric import Background, Fabric
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.trace.records import Trace

_LOG = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a refused checkpoint is tried again: the first and the longest. They double."""

MOST_TRIES = 60
"""Tries to write the last checkpoint, if the disk refuses: for ten minutes."""

_LONGEST_PAUSE_AT_THE_END = 10.0
"""Longest pause between two tries of the last checkpoint, in seconds. The first is one second."""

State = Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Copies the state to host memory. Also returns what a reader needs beside it, as JSON values."""
Finite = Callable[[Mapping[str, Any]], bool]
"""Returns True if the model in such a copy is finite. Any thread may call it."""
Save = Callable[[Path, int, Mapping[str, Any], Mapping[str, Any], bool], Path]
"""Writes a checkpoint, as `checkpoint_file.save`."""


def save(
    folder: Path, step: int, state: Mapping[str, Any], about: Mapping[str, Any], finite: bool
) -> Path:
    """Call `checkpoint_file.save`. It needs HDF5, whose import takes a tenth of a second."""
    from spotmpi.training.keeping import checkpoint_file

    return checkpoint_file.save(folder, step, state, about, finite)


def _rest_after(tries: int) -> float:
    """Return the seconds to wait after this many refused tries of the last checkpoint."""
    return min(2.0 ** (tries - 1), _LONGEST_PAUSE_AT_THE_END)


class _Writing(NamedTuple):
    """A checkpoint on its way to the disk."""

    due: int
    step: int
    complete: bool
    began: float
    copied: float
    """Seconds that the copy of the state took."""
    work: Background[tuple[Path, float]]
    """Returns the path, and the seconds that the write took."""


class Checkpoints:
    """One worker's side of checkpoints. Without a folder it does nothing."""

    def __init__(
        self,
        folder: Path | None,
        every: int | None,
        state: State,
        finite: Finite,
        save: Save,
        trace: Trace,
        channel: LauncherChannel,
        fabric: Fabric,
    ) -> None:
        self.folder = folder
        self.asked = False
        """True if the script asks for a checkpoint. The next control word says so."""
        self.published = False
        """True if this worker has written the checkpoint due last. The control word says so."""
        self._every = every
        self._state = state
        self._finite = finite
        self._save = save
        self._trace = trace
        self._channel = channel
        self._fabric = fabric
        self._due: int | None = None
        """Round at whose end a checkpoint was due that no worker has confirmed yet."""
        self._copy: tuple[int, int, Mapping[str, Any], Mapping[str, Any]] | None = None
        """Round at which it was due, its step, state and description, until the state is stable."""
        self._copied = 0.0
        """Seconds that the last copy took."""
        self._writing: _Writing | None = None
        self._again = self._pause = 0.0
        """When a refused checkpoint may be tried again, and the length of that pause."""
        self._last: tuple[int, bool] | None = None
        """Step of the checkpoint that this worker wrote last, and True if training was over."""
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
        state now.

        Blocks only if a checkpoint must be written while the last one still is. What went wrong
        with the last one is raised here, or in the next call.
        """
        if self.folder is None:
            return
        if self._writing is not None and self._writing.work.through:
            self.wait()
        if self._copy is not None:
            self._write(*self._copy)
        if confirmed:  # the one due is on the disk; `published` ends when another is due
            self._due = None
        if wanted:
            self._due, self.published = number, False
        writes = leader and level and not (self.published or self._is_writing)
        if self._due is None or not leader:
            self._copy = None
        elif writes and self._fabric.clock() >= self._again:
            self._copy = self._due, step, *self._copied_state()

    def joins(self, number: int) -> None:
        """Note that this worker has learnt everything by round ``number``. It assumes that a
        checkpoint is due that no worker has confirmed, and writes one if all others die."""
        if self.folder is not None:
            self._due = number

    def keep(self, step: int, complete: bool) -> bool:
        """Write the state as it is, unless that is done. Return True if it is on disk. Blocking.

        The leader calls it when all workers are at the boundary before ``step`` and nothing of it
        can be taken back. ``complete``: training is over.
        """
        self._copy = None
        self.wait()
        if self._last != (step, complete):
            self._write(-1, step, *self._copied_state(), complete)
            self.wait()
        return self._last == (step, complete)

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
        """Wait until nothing is being written. Raise what went wrong with it.

        A disk that refuses is only reported: training is worth more than one checkpoint, and the
        last good one is untouched.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        step, me, began = writing.step, self._fabric.me, self._fabric.clock()
        try:
            path, seconds = writing.work.wait()
        except CheckpointError as error:
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            self._again = self._fabric.clock() + self._pause
            what = f"worker {me}, step {step}: {error}"
            _LOG.info("%s", what)
            patience = None
            if writing.complete:
                patience = sum(map(_rest_after, range(self._tries + 1, MOST_TRIES)))
            self._channel.tell("unsaved", step=step, why=str(error), patience=patience)
            if self._channel.mute:
                warnings.warn(what, RuntimeWarning, stacklevel=3)
            return
        self._again = self._pause = 0.0
        self.published = self.published or writing.due == self._due  # another may be due by now
        _LOG.info("step %d: %s was written in %.3f s", step, path, seconds)
        self._last = step, writing.complete
        known = {"path": str(path), "seconds": seconds, "worker": me, "began": writing.began}
        waited = 1e3 * (self._fabric.clock() - began)
        known |= {"copy_ms": round(1e3 * writing.copied, 3), "wait_ms": round(waited, 3)}
        self._trace.write("checkpoint", step=step, **known)
        self._channel.tell("checkpoint", step=step, path=str(path), worker=me)

    def _copied_state(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        began = self._fabric.clock()
        state = self._state()
        self._copied = self._fabric.clock() - began
        return state

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and self._writing.due == self._due

    def _write(
        self,
        due: int,
        step: int,
        state: Mapping[str, Any],
        known: Mapping[str, Any],
        complete: bool = False,
    ) -> None:
        assert self.folder is not None
        self._copy = None
        self.wait()
        about = {**known, "step": step, "written_by": self._fabric.me, "complete": complete}
        save, finite = partial(self._save, self.folder, step, state, about), self._finite
        clock, begin = self._fabric.clock, self._fabric.clock()
        work = self._fabric.background(
            lambda: (save(finite(state)), clock() - begin), f"spotmpi-checkpoint-{step}"
        )
        self._writing = _Writing(due, step, complete, begin, self._copied, work)
