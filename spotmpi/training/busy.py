"""What a script says of itself between two steps: that it is at work."""

from __future__ import annotations

from types import TracebackType

from spotmpi.errors import UsageError
from spotmpi.launcher_channel import Busy, LauncherChannel
from spotmpi.protocol.membership import WorkerId

__all__ = ["BusyBlock"]

_LONGEST = 64
"""Bytes that are kept of what a script says."""


class BusyBlock:
    """Inside it this worker is at work, whatever its processes seem to do. Local; made by
    ``trainer.busy("...")``, for use in one thread.

    ``what`` is shown to whoever asks what the others wait for. Blocks may be nested: the inner one
    counts.
    """

    def __init__(self, channel: LauncherChannel, worker: WorkerId, what: str) -> None:
        if not isinstance(what, str) or not what:
            raise UsageError(f"busy() needs a word for what the script does, not {what!r}")
        self._channel = channel
        self._worker = worker
        self._says = Busy(True, 0, what.encode(errors="replace")[:_LONGEST])
        self._outer = Busy()

    def beat(self) -> None:
        """Say that the work goes on. Returns at once.

        From the first beat on more must come: a worker that has not said so for ``--stall-timeout``
        seconds, and does nothing else either, is revoked.
        """
        self._says = self._says._replace(beats=self._says.beats + 1)
        self._channel.vouch(self._worker, self._says)

    def __enter__(self) -> BusyBlock:
        self._outer = self._channel.vouch(self._worker, self._says)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.vouch(self._worker, self._outer)
