"""The result of a `once` as bytes: the value that it returns, or the exception that it raises."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from spotmpi.errors import OnceError
from spotmpi.protocol.plain_values import pack, unpack

__all__ = ["answer_of", "name_of", "outcome_of"]


def name_of(work: Callable[[], Any]) -> str:
    """Return the name of ``work`` in the script: equal on all workers, and in a resumed job."""
    while isinstance(work, partial):
        work = work.func
    return str(getattr(work, "__qualname__", type(work).__qualname__))


def outcome_of(work: Callable[[], Any], where: str) -> bytes:
    """Run ``work``; pack its value, or its exception with ``where`` in front. Local."""
    try:
        return pack([True, work()])
    except Exception as error:  # noqa: BLE001 - all workers raise it
        return pack([False, f"{where}:\n{_told(error)}"])


def answer_of(outcome: bytes) -> Any:
    """Return the value. Raises `OnceError` if ``work`` raised an exception."""
    fine, said = unpack(outcome)
    if not fine:
        raise OnceError(said)
    return said


def _told(error: Exception) -> str:
    """Return the error as text, with the script's lines. No other worker has these."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    said = "".join(traceback.format_exception(type(error), error, trace))
    return said.removeprefix("Traceback (most recent call last):\n").rstrip("\n")
