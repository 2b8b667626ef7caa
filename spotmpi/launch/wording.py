"""Words that the launcher's sentences share. Pure."""

from __future__ import annotations

import signal

__all__ = [
    "count",
    "duration",
    "milliseconds",
    "moment",
    "number",
    "remaining",
    "signal_name",
    "typed",
]


def count(workers: object) -> str:
    """So many workers, as one says it."""
    return f"{workers} worker" if workers == 1 else f"{workers} workers"


def remaining(workers: int, places: int) -> str:
    """So many remain: not "left", which is what a worker has that was told to leave."""
    return f"{workers} of {count(places)} {'remains' if workers == 1 else 'remain'}"


def duration(seconds: float) -> str:
    """Return a time as people say it: ``12 min 33 s``, in two units at most."""
    whole = int(seconds)
    parts = [whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60]
    named = list(zip(parts, ("d", "h", "min", "s"), strict=True))
    while len(named) > 1 and not named[0][0]:
        del named[0]
    return " ".join(f"{part} {unit}" for part, unit in named[:2])


def moment(iso: str) -> str:
    """Return a time as people read it, of this host's clock: ``2026-11-25 14:03:07``."""
    return iso[:19].replace("T", " ")


def milliseconds(value: float) -> str:
    """Return a short time in three digits: ``0.41 ms``, ``12.3 ms``, ``203 ms``."""
    return f"{value:.0f} ms" if value >= 1000 else f"{value:.3g} ms"


def number(value: float) -> str:
    """Return a measured number with as many digits as people read, and no exponent where that
    helps: ``0.3127``, ``12.3``, ``3150``."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def typed(number: int) -> str:
    """Return what people call a signal that they send to a command: Ctrl-C, or its name."""
    return "Ctrl-C" if number == signal.SIGINT else signal_name(number)


def signal_name(number: int) -> str:
    """Return SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
