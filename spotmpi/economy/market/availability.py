"""How many nodes there were: traces of availability, read from files of three formats.

`read` tells them apart by what is in them:

- ``ms,add|remove,node`` (CSV): a node comes or goes at a time in milliseconds.
- ``ms,count`` (CSV): from that time on there are so many.
- ``{"metadata": {"gap_seconds": G}, "data": [n0, n1, ...]}`` (JSON): so many in each gap.

A CSV may have a line of column names, blank lines, and lines that start with ``#``. Its times are
whole numbers, may start at any of them and never go back; the last line only says when the trace
ends, for nobody knows how long its nodes stayed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from spotmpi.economy.reading import from_json, text_of
from spotmpi.errors import UsageError

__all__ = ["Availability", "find", "read"]

_SHIPPED = ("p3",)

_LARGEST = 1 << 26
"""Bytes. Two million lines; a trace this large is some other file."""

_MOST = 10**9 - 1
"""Nodes."""

_LONGEST = 1e12
"""Seconds, in which a double still tells milliseconds apart."""

_WHOLE = re.compile(r"\s*(-?\d{1,15})\s*", re.ASCII)


@dataclass(frozen=True, eq=False)
class Availability:
    """A number of nodes that changes in steps, known for ``length_s`` seconds.

    UsageError unless the times start at 0, ascend and end before ``length_s``, and each has a count
    that is not negative.
    """

    times_s: NDArray[np.float64]
    """When the number changes; the first is 0."""
    counts: NDArray[np.int64]
    """How many there are from that time on."""
    length_s: float

    def __post_init__(self) -> None:
        times, counts = self.times_s, self.counts
        if len(times) != len(counts) or len(times) == 0 or times[0] != 0:
            raise UsageError(
                f"a trace has {len(times)} times and {len(counts)} counts, expected as many of"
                " both, from the time 0 on"
            )
        if not (np.diff(times) > 0).all() or not times[-1] < self.length_s < math.inf:
            raise UsageError(
                "the times of a trace do not ascend to its length; sort them, each once"
            )
        if counts.min() < 0:
            raise UsageError(f"a trace has {counts.min()} nodes, expected 0 or more")

    @property
    def together(self) -> float:
        """The part of the nodes that went at one moment with another one, of all that went; 0 if
        none went. The end of the trace is no loss."""
        lost = -np.minimum(np.diff(self.counts), 0)
        return float(lost[lost > 1].sum() / lost.sum()) if lost.any() else 0.0

    def from_offset(self, offset_s: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Times and counts as they are for somebody who comes ``offset_s`` into the trace.

        One whole length from there, the times counted from there: behind its end the trace begins
        anew. Offsets beyond the length wrap around too. The counts of neighbours may be equal
        where it begins anew.
        """
        offset = math.fmod(offset_s, self.length_s)
        offset = offset if offset >= 0 else offset + self.length_s
        if offset >= self.length_s:  # of one a hair below 0
            offset = 0.0
        at = int(np.searchsorted(self.times_s, offset, side="right")) - 1
        ahead = self.times_s[at + 1 :] - offset
        again = self.times_s[: at + 1] + (self.length_s - offset)
        again = again[again < self.length_s]  # the last, if the offset is at a change
        times = np.concatenate([[0.0], ahead, again])
        return times, np.concatenate([self.counts[at:], self.counts[: len(again)]])


def find(name: str) -> Availability:
    """The trace of a file, or a shipped one where there is no such file: ``p3``."""
    if Path(name).suffix or Path(name).exists():
        return read(Path(name))
    if name not in _SHIPPED:
        raise UsageError(
            f"there is no trace {name!r}: name a file, or one that is shipped, "
            f"{' or '.join(_SHIPPED)}"
        )
    with as_file(files("spotmpi.economy") / "data" / f"trace-{name}.csv") as path:
        return read(path)


def read(path: Path) -> Availability:
    """The trace of a file, in the three formats above. Local, blocking.

    UsageError, with the line, for whatever is wrong in it: a node that comes while it is there or
    goes while it is not, a time that goes back, a count that is none, a trace of one moment only.
    """
    text = text_of(path, _LARGEST)
    if text.lstrip()[:1] in ("{", "["):
        return _from_json(path, text)
    return _from_csv(path, text)


def _wrong(path: Path, line: int, problem: str) -> NoReturn:
    raise UsageError(f"{path}, line {line}: {problem}")


def _steps(times: NDArray[np.float64], counts: NDArray[np.int64], length_s: float) -> Availability:
    """Of equal neighbours only the first."""
    changes = np.concatenate([[True], np.diff(counts) != 0])
    return Availability(times[changes], counts[changes], length_s)


# CSV.

_Row = tuple[int, int, list[str]]
"""The line, the time in ms, and what else is there."""


def _from_csv(path: Path, text: str) -> Availability:
    lines = _lines(text)
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{path}: there is no trace in it; is it the right file?")
    lines = chain([first], lines)
    if len(first[1]) == 3:
        seen = _events(path, _rows(path, lines, "ms,add|remove,node"))
    elif len(first[1]) == 2:
        seen = _counts(path, _rows(path, lines, "ms,count"))
    else:
        _wrong(path, first[0], f"{first[1]}, expected ms,add|remove,node or ms,count")
    moments, counts = np.array(list(seen), dtype=np.int64).T
    length_s = (int(moments[-1]) - int(moments[0])) / 1000.0
    if length_s == 0:
        raise UsageError(
            f"{path}: all of it is at {moments[0]} ms; add a line with the time at which it ends"
        )
    if length_s > _LONGEST:
        raise UsageError(f"{path} lasts {length_s:g} s; are its times in milliseconds?")
    # Of one moment the last count; of the trace's end none.
    lasting = np.diff(moments) > 0
    times = (moments[:-1] - moments[0]) / 1000.0
    return _steps(times[lasting], counts[:-1][lasting], length_s)


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The lines with something on them, and their cells, without column names."""
    first = True
    for line, raw in enumerate(text.split("\n"), 1):
        row = raw.strip()
        if not row or row.startswith("#"):
            continue
        cells = row.split(",")
        if not (first and _are_names(cells)):
            yield line, cells
        first = False


def _are_names(cells: list[str]) -> bool:
    """Whether a first line has column names, and is no data with a mistake."""
    second = cells[1].strip() if len(cells) > 1 else "0"
    data = second in ("add", "remove") or any(c.isdigit() for c in cells[0] + second)
    return not data


def _rows(path: Path, lines: Iterable[tuple[int, list[str]]], columns: str) -> Iterator[_Row]:
    """Each line with its time, which never goes back, and the other cells."""
    width = columns.count(",") + 1
    before = None
    for line, cells in lines:
        if len(cells) != width:
            _wrong(path, line, f"{len(cells)} values, expected {width}: {columns}")
        match = _WHOLE.fullmatch(cells[0])
        if match is None:
            _wrong(path, line, f"the time is {cells[0]!r}, expected whole milliseconds")
        moment = int(match[1])
        if before is not None and moment < before:
            _wrong(path, line, f"the time goes back, from {before} to {moment} ms; sort the lines")
        before = moment
        yield line, moment, cells[1:]


def _events(path: Path, rows: Iterator[_Row]) -> Iterator[tuple[int, int]]:
    """The time (ms) and the number of nodes after each event."""
    since: dict[str, int] = {}
    for line, moment, (action, name) in rows:
        node = name.strip()
        if not node:
            _wrong(path, line, "the node has no name, expected ms,add|remove,node")
        if action.strip() == "add":
            if node in since:
                _wrong(path, line, f"node {node!r} is added, but is there since line {since[node]}")
            since[node] = line
        elif action.strip() == "remove":
            if since.pop(node, None) is None:
                _wrong(path, line, f"node {node!r} is removed, but is not there; add it before")
        else:
            _wrong(path, line, f"{action!r} happens to node {node!r}, expected add or remove")
        yield moment, len(since)


def _counts(path: Path, rows: Iterator[_Row]) -> Iterator[tuple[int, int]]:
    """The time (ms) and the number of nodes in each line."""
    for line, moment, (cell,) in rows:
        match = _WHOLE.fullmatch(cell)
        if match is None or not 0 <= int(match[1]) <= _MOST:
            _wrong(path, line, f"the count is {cell!r}, expected a whole number from 0 to {_MOST}")
        yield moment, int(match[1])


# JSON.


def _from_json(path: Path, text: str) -> Availability:
    root = from_json(path, text)
    metadata = root.get("metadata") if isinstance(root, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    data = root.get("data") if isinstance(root, dict) else None
    if gap is None or not isinstance(data, list) or not data:
        raise UsageError(
            f'{path}: expected {{"metadata": {{"gap_seconds": G}}, "data": [n0, n1, ...]}}'
        )
    if type(gap) not in (int, float) or not 1e-3 <= gap <= _LONGEST / len(data):
        raise UsageError(
            f"{path}: metadata.gap_seconds is {_shown(gap)}, expected seconds, at least 0.001 and"
            f" less than {_LONGEST:g} in all"
        )
    for i, count in enumerate(data):
        if type(count) is not int or not 0 <= count <= _MOST:  # true is an int for isinstance
            raise UsageError(
                f"{path}: data[{i}] is {_shown(count)}, expected a whole number from 0 to {_MOST}"
            )
    times = np.arange(len(data), dtype=np.float64) * float(gap)
    return _steps(times, np.array(data, dtype=np.int64), len(data) * float(gap))


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return json.dumps(value)[:40]
