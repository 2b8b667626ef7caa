"""Blocks of a script in which it says that it is at work."""

from __future__ import annotations

from types import TracebackType

from spotmpi.errors import UsageError
from spotmpi.launcher_channel import Busy, LauncherChannel
from spotmpi.protocol.membership import WorkerId

__all__ = ["BusyBlock"]

_LONGEST = 64
"""Bytes that are kept of what a script says."""


class BusyBlock:
    """A block in which this worker counts as at work, even if its processes seem idle. Local.

    ``trainer.busy("...")`` makes it, for use in one thread. ``what`` is shown to users who ask what
    the others wait for. Blocks may be nested: the inner one counts.
    """

    def __init__(self, channel: LauncherChannel, worker: WorkerId, what: str) -> None:
        if not isinstance(what, str) or not what:
            raise UsageError(f"busy() needs a word for what the script does, not {what!r}")
        self._channel = channel
        self._worker = worker
        self._says = Busy(True, 0, what.encode(errors="replace")[:_LONGEST])
        self._outer: Busy | None = None
        """What was said before it began; None when it has not begun, and when it is over."""

    def beat(self) -> None:
        """Say that the work goes on. Returns at once.

        After the first beat more must follow: a worker that gives none for ``--stall-timeout``
        seconds, and does nothing else either, is revoked. After the block it does nothing.
        """
        if self._outer is None:
            return
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
        assert self._outer is not None
        self._channel.vouch(self._worker, self._outer)
        self._outer = None
