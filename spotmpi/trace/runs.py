"""What is in a trace: one training, or several one after the other, of which one may have resumed.

Whoever reads a file that somebody else gives must not take its records for what they should be:
here it is looked at once that each has the fields that all others count on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from spotmpi.errors import TraceError
from spotmpi.trace.records import Record, read

__all__ = ["alone", "is_number", "of_file", "printable", "split"]

_Types = tuple[type, ...]
_NUMBER: _Types = (int, float)
_WHOLE: _Types = (int,)
_TEXT: _Types = (str, type(None))
_MAYBE: _Types = (int, float, type(None))
_LIST: _Types = (list, tuple)

_NEEDED: dict[str, dict[str, _Types]] = {
    "start": {"workers": _LIST},
    "step": {"step": _WHOLE, "workers": _LIST, "seconds": _NUMBER},
    "recovery": {
        "generation": _WHOLE,
        "step": _WHOLE,
        "lost": _LIST,
        "verdict": (str,),
        "total_ms": _MAYBE,
        **dict.fromkeys([f"{p}_ms" for p in ("detect", "revoke", "reconcile")], _MAYBE),
        **dict.fromkeys([f"{p}_ms" for p in ("accept", "restart")], _MAYBE),
    },
    "recovered": {
        "generation": _WHOLE,
        "worker": _WHOLE,
        "step": _WHOLE,
        "total_ms": _MAYBE,
        "lost_steps": _WHOLE,
        "recomputed_gradients": _WHOLE,
        **dict.fromkeys([f"{p}_ms" for p in ("detect", "revoke", "reconcile")], _MAYBE),
        **dict.fromkeys([f"{p}_ms" for p in ("accept", "restart")], _MAYBE),
    },
    "change": {"generation": _WHOLE, "step": _WHOLE, "joined": _LIST, "left": _LIST},
    "cause": {"worker": _WHOLE, "cause": (str,), "why": (str,)},
    "checkpoint": {"step": _WHOLE, "seconds": _NUMBER, "worker": _WHOLE},
    "timing": {
        "worker": _WHOLE,
        "steps": _LIST,
        "committed": _NUMBER,
        "script_ms": _LIST,
        "round_ms": _LIST,
    },
    "resume": {"step": _WHOLE},
    "strategy": {"step": _WHOLE},
    "survey": {"step": _WHOLE, "strategy": (str,), "decides": _TEXT, "figures": (dict,)},
    "batches": {"step": _WHOLE, "loop": _WHOLE, "n": _WHOLE, "passes": _WHOLE},
    "gap": {"step": _WHOLE, "steps": _WHOLE},
    "end": {"step": _WHOLE, "workers": _LIST, "outcome": (str,)},
}
"""Of each event: the fields that are used without asking, and what they may be."""

_IF_THERE: dict[str, _Types] = {
    "at": _MAYBE,
    "began": _MAYBE,
    "between": (dict,),
    "came_ms": _MAYBE,
    "committed": _MAYBE,
    "copy_ms": _MAYBE,
    "cpu_ms": _LIST,
    "digest": _TEXT,
    "generation": _WHOLE,
    "left_early": _LIST,
    "loop": (int, type(None)),
    "loss": _MAYBE,
    "messages_sent": (dict,),
    "pass": (int, type(None)),
    "pause_ms": _MAYBE,
    "round": _WHOLE,
    "starved_ms": _LIST,
    "time": _MAYBE,
    "wait_ms": _MAYBE,
}
"""Of all events: what a field may be, where it is there."""

_MOST = 10**15
"""Of a number."""

_OF_WHOLES = ("workers", "lost", "joined", "left", "left_early")


def of_file(path: str | os.PathLike[str]) -> list[list[Record]]:
    """The trainings in a file, each with its resumes. Raises TraceError, with one sentence, for
    what is no trace, for an empty one, and for a record that lacks what it must have."""
    records = list(read(path))
    if not records:
        raise TraceError(
            f"{path} holds no record: either nothing was trained yet, or this is no trace"
        )
    for number, record in enumerate(records, 1):
        if wrong := _wrong(record):
            raise TraceError(f"{path}, record {number}: {wrong}; was it written by spotmpi?")
    if not any(record["event"] in ("start", "step") for record in records):
        raise TraceError(
            f"{path} tells of no training: it has {len(records)} records, and neither a start nor "
            "a step"
        )
    return split(records)


def alone(path: str | os.PathLike[str]) -> list[Record]:
    """The one training in a file. TraceError as `of_file`, and if there are several."""
    found = of_file(path)
    if len(found) > 1:
        raise TraceError(
            f"{path} holds {len(found)} trainings one after another, and this is about one: cut "
            'the file at its lines that begin with {"event":"start"'
        )
    return found[0]


def split(records: Iterable[Record]) -> list[list[Record]]:
    """The same, training by training: one begins with a start after which nothing is resumed."""
    found: list[list[Record]] = []
    known = list(records)
    for number, record in enumerate(known):
        if not found or (record["event"] == "start" and not _resumes(known[number + 1 :])):
            found.append([])
        found[-1].append(record)
    return found


def printable(text: str) -> str:
    """The same for a terminal: what a file holds may be meant to command it."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _resumes(after: Sequence[Record]) -> bool:
    """Whether what begins here goes on with an earlier run: a resume follows at once."""
    return bool(after) and after[0]["event"] == "resume"


def _wrong(record: Record) -> str:
    event = record["event"]
    needed = _NEEDED.get(event, {})
    for field, types in {**_IF_THERE, **needed}.items():
        if field not in record:
            if field in needed:
                return f"{_shown(event)} has no {field}"
        elif not (isinstance(record[field], types) and _sane(record[field])):
            return f"{field} of {_shown(event)} is {_shown(record[field])}"
    for field in _OF_WHOLES:
        if not all(type(one) is int and _sane(one) for one in record.get(field) or ()):
            return f"{field} of {_shown(event)} holds {_shown(record[field])}, no whole numbers"
    if "seconds" in needed and record["seconds"] < 0:
        return f"seconds of {_shown(event)} is {_shown(record['seconds'])}, less than none"
    if event == "timing" and not all(type(one) is int and _sane(one) for one in record["steps"]):
        return f"steps of {_shown(event)} holds {_shown(record['steps'])}, no whole numbers"
    for field in ("script_ms", "round_ms", "cpu_ms", "starved_ms"):
        if not all(type(one) in (int, float) and _sane(one) for one in record.get(field, ())):
            return f"{field} of {_shown(event)} holds {_shown(record[field])}, no numbers"
    if not all(isinstance(one, list) for one in record.get("between", {}).values()):
        return f"between of {_shown(event)} is {_shown(record['between'])}"
    if not all(type(one) is int for one in record.get("messages_sent", {}).values()):
        return f"messages_sent of {_shown(event)} is {_shown(record['messages_sent'])}"
    return ""


def is_number(value: Any) -> bool:
    """True if the value of a field is a number that can be counted with."""
    return isinstance(value, int | float) and _sane(value)


def _sane(value: Any) -> bool:
    """Whether, if it is a number, it is one that can be counted with."""
    if isinstance(value, int | float):
        return not isinstance(value, bool) and -_MOST < value < _MOST
    return True


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
