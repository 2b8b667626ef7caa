"""When checkpoints are written, and by whom: by the leader of the day, whoever that is.

At the boundary where one is due the leader takes a copy of the state. When the next round is
complete that state is stable, and the copy is written. The control word of the round after says
so to all; a checkpoint that was never confirmed, because its writer died, is written by the next
leader with the state of its own day.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spotmpi import checkpoint
from spotmpi.channel import Channel
from spotmpi.errors import CheckpointError
from spotmpi.membership import WorkerId
from spotmpi.trace import Trace

State = Callable[[], Mapping[str, Any]]


class Keeper:
    """One worker's side of checkpointing; without a folder it does nothing."""

    def __init__(
        self,
        folder: Path | None,
        every: int | None,
        state: State,
        trace: Trace,
        channel: Channel,
        me: WorkerId,
    ) -> None:
        self.folder = folder
        self.asked = False
        """The script asks for a checkpoint: goes out with the next control word."""
        self.published = False
        """This worker has written the one that was due last: goes out likewise."""
        self._every = every
        self._state = state
        self._trace = trace
        self._channel = channel
        self._me = me
        self._due: int | None = None
        """Round at whose end a checkpoint was due that nobody has confirmed yet."""
        self._copy: tuple[int, dict[str, Any]] | None = None
        self._last: int | None = None

    def due(self, step: int) -> bool:
        """A checkpoint belongs at the end of this step, without anybody asking."""
        return self._every is not None and step % self._every == 0

    def committed(
        self, number: int, step: int, wanted: bool, confirmed: bool, leader: bool
    ) -> None:
        """Round ``number`` is committed and ``step`` steps are done. Blocks while it writes."""
        if self.folder is None:
            return
        if self._copy is not None:
            self._write(*self._copy)
        if confirmed and self._due is not None and self._due <= number - 2:
            self._due = None
        if wanted:
            self._due, self.published = number, False
        if self._due is None or not leader:
            self._copy = None
        elif not self.published:
            self._copy = step, _copied(self._state())

    def finish(self, step: int, leader: bool, must: bool = False) -> None:
        """All is stable now: write what is still due. ``must``: raise if it cannot be written."""
        if self.folder is None or self._due is None or not leader or self.published:
            return
        if self._last != step:
            self._write(*(self._copy or (step, self._state())))
        if must and self._last != step:
            raise CheckpointError(
                f"the job stops at step {step} but its checkpoint could not be written into "
                f"{self.folder}: see the warning above"
            )

    def _write(self, step: int, state: Mapping[str, Any]) -> None:
        assert self.folder is not None
        self._copy = None
        self.published = True
        begin = time.monotonic()
        try:
            path = checkpoint.save(self.folder, step, state, {"step": step, "written_by": self._me})
        except CheckpointError as error:
            # Training is worth more than one checkpoint; the last good one is untouched.
            warnings.warn(f"worker {self._me}, step {step}: {error}", RuntimeWarning, stacklevel=2)
            return
        self._last = step
        seconds = time.monotonic() - begin
        self._trace.write("checkpoint", step=step, path=str(path), seconds=seconds, worker=self._me)
        self._channel.tell("checkpoint", step=step, path=str(path), worker=self._me)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.copy() if hasattr(value, "copy") else value for key, value in state.items()}
