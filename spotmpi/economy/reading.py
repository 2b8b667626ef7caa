"""Files of a user: YAML and CSV as a tree of values that know their line.

The one door to YAML. A document is composed, never constructed: nothing in a file becomes anything
but text, lists and mappings, aliases are refused, tags mean nothing, and complaints name the line.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import yaml

from spotmpi.economy.quantities import duration
from spotmpi.errors import UsageError

__all__ = ["Field", "from_json", "load", "text_of"]

_LARGEST = 1 << 24
"""Bytes. A price list or a profile has a few kilobytes; a file this large is some other file."""

_NULL = {"", "~", "null"}


class Field:
    """One value of a file: a text, a list or a mapping, with its place in the file."""

    def __init__(
        self, path: Path, line: int, name: str, value: str | list[Field] | dict[str, Field]
    ) -> None:
        self._path = path
        self.line = line
        self.name = name
        """What leads to it, as in ``instances.K80.spot``; empty for the whole file."""
        self._value = value

    def wrong(self, problem: str) -> NoReturn:
        """Raise UsageError: the place, and ``problem``."""
        raise UsageError(f"{self._path}, line {self.line}: {problem}")

    # Mappings.

    @property
    def is_mapping(self) -> bool:
        """Whether it has names with values, and is no text or list."""
        return isinstance(self._value, dict)

    def items(self) -> Iterator[tuple[str, Field]]:
        """What is in a mapping, in the file's order."""
        if not isinstance(self._value, dict):
            self.wrong(f"{self._called} is {self._shown}, expected a mapping of names to values")
        yield from self._value.items()

    def only(self, *names: str) -> None:
        """Complain about a key that is none of ``names``."""
        for name, field in self.items():
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
                field.wrong(f"{field._called} is not known here; {hint}")

    def get(self, name: str) -> Field | None:
        """The value under a name, None if there is none or if it is null."""
        field = dict(self.items()).get(name)
        return None if field is None or field._empty else field

    def need(self, name: str) -> Field:
        """The value under a name, which must be there."""
        field = self.get(name)
        if field is None:
            where = f" of {self.name}" if self.name else ""
            self.wrong(f"there is no {name}{where}, which is needed")
        return field

    # Lists.

    def elements(self) -> list[Field]:
        """What is in a list."""
        if not isinstance(self._value, list):
            self.wrong(f"{self._called} is {self._shown}, expected a list")
        return self._value

    # Plain values.

    def text(self, *choices: str) -> str:
        """A text, one of ``choices`` if there are any."""
        if not isinstance(self._value, str) or self._empty:
            self.wrong(f"{self._called} is {self._shown}, expected a text")
        if choices and self._value not in choices:
            self.wrong(f"{self._called} is {self._value!r}, expected {' or '.join(choices)}")
        return self._value

    def number(
        self,
        unit: str = "",
        *,
        above: float | None = None,
        least: float | None = None,
        most: float | None = None,
    ) -> float:
        """A finite number within bounds. ``unit`` is for the complaint."""
        wanted = f"expected a number{f' of {unit}' if unit else ''}"
        try:
            number = float(self._value) if isinstance(self._value, str) else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.wrong(f"{self._called} is {self._shown}, {wanted}")
        got = f"{self._called} is {number:g}{f' {unit}' if unit else ''}"
        if above is not None and not number > above:
            self.wrong(f"{got}, expected more than {above:g}")
        if least is not None and not number >= least:
            self.wrong(f"{got}, expected at least {least:g}")
        if most is not None and not number <= most:
            self.wrong(f"{got}, expected at most {most:g}")
        return number

    def whole(self, *, least: int = 0, most: int | None = None) -> int:
        """A whole number within bounds."""
        number = self.number(least=least, most=most)
        if number != int(number):
            self.wrong(f"{self._called} is {number:g}, expected a whole number")
        return int(number)

    def seconds(self, *, above: float | None = None) -> float:
        """A duration with its unit, as `quantities.duration` reads it."""
        try:
            seconds = duration(self.text(), self._called)
        except UsageError as error:
            self.wrong(str(error))
        if above is not None and not seconds > above:
            self.wrong(f"{self._called} is {seconds:g} s, expected more than {above:g}")
        return seconds

    @property
    def _empty(self) -> bool:
        return isinstance(self._value, str) and self._value in _NULL

    @property
    def _called(self) -> str:
        return self.name or "the file"

    @property
    def _shown(self) -> str:
        if isinstance(self._value, str):
            return repr(self._value[:40]) if not self._empty else "empty"
        return "a list" if isinstance(self._value, list) else "a mapping"


def load(path: Path) -> Field:
    """The root of a YAML file (a mapping or a list), or of a ``.csv`` (a list of mappings).

    A CSV's first line names the columns. Local, blocking. UsageError for a file that cannot be
    read or is neither; the complaint names the line.
    """
    text = text_of(path, _LARGEST)
    try:
        return _from_csv(path, text) if path.suffix.lower() == ".csv" else _from_yaml(path, text)
    except RecursionError:
        raise UsageError(f"{path}: the values in it are nested too deeply") from None


def text_of(path: Path, largest: int) -> str:
    """The text of a file of at most ``largest`` bytes. UsageError if it is none, or not there."""
    try:
        if path.stat().st_size > largest:
            raise UsageError(f"{path} has more than {largest >> 20} MB; is it the right file?")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8; is it the right file?") from error
    except ValueError as error:  # a zero byte or half a character; a file may name other files
        raise UsageError(f"{str(path)!r} cannot be the name of a file") from error


def from_json(path: Path, text: str) -> object:
    """The value that a JSON text is. UsageError, with the line, for anything else, NaN included."""
    try:
        value: object = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise UsageError(f"{path}: the values in it are nested too deeply") from None
    except ValueError as error:  # ours, and of a number with more digits than Python reads
        raise UsageError(f"{path}: not JSON: {error}") from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def _from_yaml(path: Path, text: str) -> Field:
    loader = None
    try:
        # SafeLoader's events and nodes only; get_single_node constructs no objects.
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise UsageError(f"{path}, line {line}: not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{path}, line {line}: not YAML: {str(error).splitlines()[0]}") from None
    except (OverflowError, ValueError):  # of "\UFFFFFFFF", and of %YAML with 5000 digits
        line = loader.line + 1 if loader is not None else 1
        raise UsageError(f"{path}, line {line}: not YAML: a number in it is too large") from None
    finally:
        if loader is not None:
            loader.dispose()
    if node is None or isinstance(node, yaml.ScalarNode):
        raise UsageError(
            f"{path}, line 1: expected names and values, and there is nothing of it (the name of a "
            "CSV file must end in .csv)"
        )
    return _field(path, node, "", set())


def _field(path: Path, node: yaml.Node, name: str, seen: set[int]) -> Field:
    line = node.start_mark.line + 1
    here = Field(path, line, name, "")
    if id(node) in seen:  # an alias: one value in two places, or in itself
        here.wrong(f"{name or 'the file'} repeats another value by an alias; write it out")
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        return Field(path, line, name, str(node.value))
    if isinstance(node, yaml.SequenceNode):
        elements = [_field(path, n, f"{name}[{i}]", seen) for i, n in enumerate(node.value)]
        return Field(path, line, name, elements)
    found: dict[str, Field] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            here.wrong("a name must be a plain text")
        text = str(key.value)
        below = f"{name}.{text}" if name else text
        if text in found:
            Field(path, key.start_mark.line + 1, below, "").wrong(f"{below} is there twice")
        found[text] = _field(path, value, below, seen)
        found[text].line = key.start_mark.line + 1
    return Field(path, line, name, found)


def _from_csv(path: Path, text: str) -> Field:
    # Not splitlines: it ends lines where no editor does, and takes them out of quoted texts.
    reader = csv.reader(io.StringIO(text, newline="\n"), strict=True)
    rows: list[Field] = []
    columns: list[str] = []
    try:
        for cells in reader:
            row = [cell.strip() for cell in cells]
            here = Field(path, reader.line_num, "", "")
            if not any(row) or row[0].startswith("#"):
                continue
            if not columns:
                columns = row
                if len(set(columns)) < len(columns) or "" in columns:
                    here.wrong("the first line must name each column, and each name once")
                continue
            if len(row) != len(columns):
                here.wrong(f"{len(row)} values, expected {len(columns)}: {', '.join(columns)}")
            fields = {
                column: Field(path, reader.line_num, column, cell)
                for column, cell in zip(columns, row, strict=True)
            }
            rows.append(Field(path, reader.line_num, f"[{len(rows)}]", fields))
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    return Field(path, 1, "", rows)
