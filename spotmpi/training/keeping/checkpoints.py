"""When checkpoints are written, and by whom: by the leader of the day, whoever that is.

At the boundary where one is due the leader takes a copy of the state. When the next round is
complete that state is stable, and the copy is written in the background, while training goes on.
There all parameters are looked at: a checkpoint that is not finite removes none that is.
Once it is on the disk, the next control word says so to all; a checkpoint that was never confirmed,
because its writer died, is written by the next leader with the state of its own day. One that the
disk refused is tried again later, likewise with the state of that day. Whoever ends its part in the
training, in whatever way, waits for what it is writing.

When training ends or stops, nobody goes before the last state is on the disk: all are in a round
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
"""Seconds until a checkpoint is tried again that the disk refused; each time twice as many."""

MOST_TRIES = 60
"""How often the last checkpoint is tried to be written, if the disk refuses: for ten minutes."""

_LONGEST_PAUSE_AT_THE_END = 10.0
"""Seconds between two of these; it begins with one."""

State = Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Makes a copy of the state, in the memory of the host; and says what a reader needs beside it, in
the values of JSON."""
Finite = Callable[[Mapping[str, Any]], bool]
"""Whether the model in such a copy is one to go on from. Any thread may call it."""
Save = Callable[[Path, int, Mapping[str, Any], Mapping[str, Any], bool], Path]
"""As `checkpoint_file.save`."""


def save(
    folder: Path, step: int, state: Mapping[str, Any], about: Mapping[str, Any], finite: bool
) -> Path:
    """`checkpoint_file.save`, which needs HDF5: to import that takes a tenth of a second."""
    from spotmpi.training.keeping import checkpoint_file

    return checkpoint_file.save(folder, step, state, about, finite)


def _rest_after(tries: int) -> float:
    """Seconds until the last checkpoint is tried again that was refused so often."""
    return min(2.0 ** (tries - 1), _LONGEST_PAUSE_AT_THE_END)


class _Writing(NamedTuple):
    """One checkpoint on its way to the disk."""

    due: int
    step: int
    complete: bool
    began: float
    copied: float
    """Seconds that it took to copy the state."""
    work: Background[tuple[Path, float]]
    """What comes of it: its path, and the seconds that it took."""


class Checkpoints:
    """One worker's side of checkpointing; without a folder it does nothing."""

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
        """The script asks for a checkpoint: goes out with the next control word."""
        self.published = False
        """This worker has written the one that was due last: goes out likewise."""
        self._every = every
        self._state = state
        self._finite = finite
        self._save = save
        self._trace = trace
        self._channel = channel
        self._fabric = fabric
        self._due: int | None = None
        """Round at whose end a checkpoint was due that nobody has confirmed yet."""
        self._copy: tuple[int, int, Mapping[str, Any], Mapping[str, Any]] | None = None
        """Round at which it was due, its step and the state, until that is stable."""
        self._copied = 0.0
        """Seconds that the last copy took."""
        self._writing: _Writing | None = None
        self._again = self._pause = 0.0
        """When one may be tried again that the disk refused, and for how long that was put off."""
        self._last: tuple[int, bool] | None = None
        """Step of the one that this worker has written last, and whether training was over."""
        self._tries = 0
        """How often the last one could not be kept when training was over."""

    def due(self, before: int, after: int) -> bool:
        """A checkpoint belongs to one of the steps ``before`` .. ``after``, without anybody
        asking: it is of the round that they end with."""
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
        """Round ``number`` is committed and ``step`` steps are done. ``level``: there is what all
        have, and may be kept.

        Blocks only if the checkpoint before is still being written when one must be. What went
        wrong while it was written is raised here, or in the call after.
        """
        if self.folder is None:
            return
        if self._writing is not None and self._writing.work.through:
            self.wait()
        if self._copy is not None:
            self._write(*self._copy)
        if confirmed:  # of the one that is due: `published` ends when another one is
            self._due = None
        if wanted:
            self._due, self.published = number, False
        writes = leader and level and not (self.published or self._is_writing)
        if self._due is None or not leader:
            self._copy = None
        elif writes and self._fabric.clock() >= self._again:
            self._copy = self._due, step, *self._copied_state()

    def joins(self, number: int) -> None:
        """This worker has learnt everything by round ``number``, but not whether one is due that
        nobody has confirmed. It takes it that one is: should all others die, it writes one."""
        if self.folder is not None:
            self._due = number

    def keep(self, step: int, complete: bool) -> bool:
        """Write the state as it is, if that is not done; whether it is on the disk. Blocking.

        For the leader, when all are at the boundary before ``step`` and nothing of it can be taken
        back. ``complete``: training is over.
        """
        self._copy = None
        self.wait()
        if self._last != (step, complete):
            self._write(-1, step, *self._copied_state(), complete)
            self.wait()
        return self._last == (step, complete)

    def refused_end(self) -> None:
        """Training is over, and its end could not be kept; all know that."""
        self._tries += 1

    @property
    def given_up(self) -> bool:
        """That was so too often."""
        return self._tries >= MOST_TRIES

    def pause(self, rest: Callable[[float], None]) -> None:
        """Before it is tried again. Blocking."""
        if self._tries:
            rest(_rest_after(self._tries))

    def wait(self) -> None:
        """Return when nothing is being written any more; raise what went wrong with it.

        But a disk that refuses is said, and no more: training is worth more than one checkpoint,
        and the last good one is untouched.
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
