"""What one worker does for all, as bytes: the value that came of it, or why there is none."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from spotmpi.errors import OnceError
from spotmpi.protocol.plain_values import pack, unpack

__all__ = ["answer_of", "name_of", "outcome_of"]


def name_of(work: Callable[[], Any]) -> str:
    """What ``work`` is called in the script: the same on all workers, and in a resumed job."""
    while isinstance(work, partial):
        work = work.func
    return str(getattr(work, "__qualname__", type(work).__qualname__))


def outcome_of(work: Callable[[], Any], where: str) -> bytes:
    """What ``work`` returns, or what it raises; ``where`` is said with that. Local."""
    try:
        return pack([True, work()])
    except Exception as error:  # noqa: BLE001 - all workers raise it
        return pack([False, f"{where}:\n{_told(error)}"])


def answer_of(outcome: bytes) -> Any:
    """The value; raises `OnceError` in the place of what was raised."""
    fine, said = unpack(outcome)
    if not fine:
        raise OnceError(said)
    return said


def _told(error: Exception) -> str:
    """With the lines of the script that led to it, as nobody else has them."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    said = "".join(traceback.format_exception(type(error), error, trace))
    return said.removeprefix("Traceback (most recent call last):\n").rstrip("\n")
