"""Writes checkpoints in the background, while training goes on, and reports what came of it."""

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

Finite = Callable[[Mapping[str, Any]], bool]
"""Returns True if the model in a copy of the state is finite. Any thread may call it."""
Save = Callable[[Path, int, Mapping[str, Any], Mapping[str, Any], bool], Path]
"""Writes a checkpoint, as `checkpoint_file.save`."""


def save(
    folder: Path, step: int, state: Mapping[str, Any], about: Mapping[str, Any], finite: bool
) -> Path:
    """Call `checkpoint_file.save`. It needs HDF5, whose import takes a tenth of a second."""
    from spotmpi.training.keeping import checkpoint_file

    return checkpoint_file.save(folder, step, state, about, finite)


class Copy(NamedTuple):
    """A copy of the state, for a checkpoint."""

    due: int
    """Round at which the checkpoint was due; -1 for the state at an end."""
    step: int
    state: Mapping[str, Any]
    about: Mapping[str, Any]
    """What a reader needs beside the state, as JSON values."""
    seconds: float
    """Seconds that it took to copy."""


class _Writing(NamedTuple):
    """A checkpoint on its way to the disk."""

    copy: Copy
    complete: bool
    """True if training is over."""
    patience: float | None
    """Seconds for which it would be tried again, if that is limited."""
    began: float
    work: Background[tuple[Path, float]]
    """Returns the path, and the seconds that the write took."""


class CheckpointWriter:
    """Writes one worker's checkpoints, one at a time."""

    def __init__(
        self,
        folder: Path | None,
        finite: Finite,
        save: Save,
        trace: Trace,
        channel: LauncherChannel,
        fabric: Fabric,
    ) -> None:
        """``folder``: where to write; None: nowhere."""
        self.folder = folder
        self._finite = finite
        self._save = save
        self._trace = trace
        self._channel = channel
        self._fabric = fabric
        self._writing: _Writing | None = None
        self._again = self._pause = 0.0
        """When a refused checkpoint may be tried again, and the length of that pause."""
        self.last: tuple[int, bool] | None = None
        """Step of the checkpoint that was written last, and True if training was over."""

    @property
    def through(self) -> bool:
        """True if `wait` would return at once, with news."""
        return self._writing is not None and self._writing.work.through

    @property
    def may_begin(self) -> bool:
        """False in the pause after a refused checkpoint."""
        return self._fabric.clock() >= self._again

    def writes(self, due: int | None) -> bool:
        """Return True if the checkpoint that was due at this round is being written."""
        return self._writing is not None and self._writing.copy.due == due

    def begin(self, copy: Copy, complete: bool = False, patience: float | None = None) -> None:
        """Begin to write a checkpoint; nothing else is being written. ``complete``: training is
        over. ``patience``: seconds for which it would be tried again, if that is limited."""
        assert self.folder is not None
        known = {"step": copy.step, "written_by": self._fabric.me, "complete": complete}
        write = partial(self._save, self.folder, copy.step, copy.state, {**copy.about, **known})
        clock, began, finite = self._fabric.clock, self._fabric.clock(), self._finite
        work = self._fabric.background(
            lambda: (write(finite(copy.state)), clock() - began), f"spotmpi-checkpoint-{copy.step}"
        )
        self._writing = _Writing(copy, complete, patience, began, work)

    def wait(self) -> Copy | None:
        """Wait until nothing is being written. Return what was written meanwhile, if anything was.
        Raise what went wrong with it.

        A disk that refuses is only reported: training is worth more than one checkpoint, and the
        last good one is untouched.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return None
        copy, me, began = writing.copy, self._fabric.me, self._fabric.clock()
        try:
            path, seconds = writing.work.wait()
        except CheckpointError as error:
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            self._again = self._fabric.clock() + self._pause
            what = f"worker {me}, step {copy.step}: {error}"
            _LOG.info("%s", what)
            self._channel.tell("unsaved", step=copy.step, why=str(error), patience=writing.patience)
            if self._channel.mute:
                warnings.warn(what, RuntimeWarning, stacklevel=4)
            return None
        self._again = self._pause = 0.0
        _LOG.info("step %d: %s was written in %.3f s", copy.step, path, seconds)
        self.last = copy.step, writing.complete
        known = {"path": str(path), "seconds": seconds, "worker": me, "began": writing.began}
        waited = 1e3 * (self._fabric.clock() - began)
        known |= {"copy_ms": round(1e3 * copy.seconds, 3), "wait_ms": round(waited, 3)}
        self._trace.write("checkpoint", step=copy.step, **known)
        self._channel.tell("checkpoint", step=copy.step, path=str(path), worker=me)
        return copy
