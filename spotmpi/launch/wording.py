"""Words that the launcher's sentences share. Pure."""

from __future__ import annotations

import signal

__all__ = ["count", "remaining", "signal_name"]


def count(workers: object) -> str:
    """So many workers, as one says it."""
    return f"{workers} worker" if workers == 1 else f"{workers} workers"


def remaining(workers: object) -> str:
    """So many remain: not "left", which is what a worker has that was told to leave."""
    return f"{count(workers)} {'remains' if workers == 1 else 'remain'}"


def signal_name(number: int) -> str:
    """Return SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
