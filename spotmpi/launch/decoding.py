"""Messages as frozen dataclasses: what comes from outside is checked against their annotations.

A message travels as a JSON object whose key ``event`` names its class. Decoding believes nothing:
a field that is missing, of another type, not finite, too long or out of bounds raises `Malformed`,
whose text says which and why. Fields that nobody asked for are left out.

Annotations: bool, int (64 bits), float (finite), str, Literal, X | None, tuple[X, ...],
dict[str, str], NamedTuples (lists in JSON), other frozen dataclasses (objects), and `Annotated`
with what is asked for beyond the type: the classes of this module that have a method ``check``.
"""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Union

from spotmpi.errors import SpotmpiError

__all__ = [
    "Address",
    "Malformed",
    "Message",
    "Most",
    "OneOf",
    "Page",
    "Printable",
    "Shown",
    "Table",
    "Within",
    "decode",
    "encode",
    "fields",
    "shown",
    "table",
]

_LONGEST = 1 << 17
"""Characters of a text, unless it says otherwise: Linux lets no variable be longer."""

_MOST = 4096
"""Entries of a list, or of a table of variables, unless `Most` says otherwise of a list."""


class Malformed(SpotmpiError):
    """What came is no message of ours; the text says why, as the end of a sentence about it."""


class Message:
    """The base of all messages: frozen dataclasses."""

    event: ClassVar[str] = ""

    def __init_subclass__(cls, event: str, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.event = event


Table = Mapping[str, type[Message]]
"""Messages by their events."""


def table(*kinds: type[Message]) -> Table:
    """All of one direction."""
    return {kind.event: kind for kind in kinds}


def encode(message: Message, key: str = "event") -> bytes:
    """One line of JSON, without its end."""
    return json.dumps({key: message.event} | fields(message)).encode()


def fields(message: Message) -> dict[str, Any]:
    """All fields of a message, as JSON has them."""
    return _object(message)


def decode(data: bytes, among: Table, key: str = "event") -> Message:
    """The message that these bytes are, which must be one of a table. Raises Malformed."""
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed("it is no JSON") from error
    return OneOf(among, key).check(value, "")


def shown(text: str, most: int, lines: bool = False) -> str:
    """What may go to a terminal of a text from outside; ``lines``: it may have several."""
    kept = "\n\t" if lines else ""
    cut = text if len(text) <= most else f"{text[:most]}..."
    return "".join(char if char.isprintable() or char in kept else "?" for char in cut)


class _Check(Protocol):
    def check(self, value: Any, where: str) -> Any:
        """The value as it is to be used. Raises Malformed."""


@dataclass(frozen=True)
class Within:
    """A number, both bounds included."""

    least: float
    most: float

    def check(self, value: Any, where: str) -> Any:
        """The same."""
        if not self.least <= value <= self.most:
            raise Malformed(f"{where} is {value}, not within {self.least} and {self.most}")
        return value


@dataclass(frozen=True)
class Most:
    """A text, list or table of so many characters or entries."""

    count: int

    def check(self, value: Any, where: str) -> Any:
        """The same."""
        if len(value) > self.count:
            raise Malformed(f"{where} is longer than {self.count}")
        return value


@dataclass(frozen=True)
class Printable:
    """A text that can be printed as it is, and is not empty."""

    most: int = 255

    def check(self, value: Any, where: str) -> Any:
        """The same."""
        if not value.isprintable() or not 0 < len(value) <= self.most:
            raise Malformed(f"{where} is {shown(value, 40)!r}, which is no name")
        return value


@dataclass(frozen=True)
class Shown:
    """One line for the user: characters that are none are replaced, and what is too long cut."""

    most: int = 1000

    def check(self, value: Any, where: str) -> Any:
        """What can be shown."""
        return shown(value, self.most)


@dataclass(frozen=True)
class Page:
    """The same, where lines stay."""

    most: int = 20_000

    def check(self, value: Any, where: str) -> Any:
        """What can be shown."""
        return shown(value, self.most, lines=True)


@dataclass(frozen=True)
class Address:
    """An IP address and a port, ``10.0.0.1:99``."""

    def check(self, value: Any, where: str) -> Any:
        """The same."""
        host, _, port = value.rpartition(":")
        try:
            ipaddress.ip_address(host)
            if port.isascii() and port.isdigit() and int(port[:6]) < 1 << 16:
                return value
        except ValueError:
            pass
        raise Malformed(f"{where} is {shown(value, 40)!r}, which is no address and port")


@dataclass(frozen=True)
class OneOf:
    """A message of a table."""

    among: Table
    key: str = "event"

    def check(self, value: Any, where: str) -> Message:
        """The message."""
        what = where or "it"
        if not isinstance(value, dict) or not isinstance(event := value.get(self.key), str):
            raise Malformed(f"{what} is no message")
        kind = self.among.get(event)
        if kind is None:
            raise Malformed(f"{what} is {shown(event, 40)!r}, which is none of its messages")
        found: Message = _made(kind, value, where or event)
        return found


Checked = Callable[[Any, str], Any]


_known: dict[Any, dict[str, tuple[Checked, bool]]] = {}


def _made(kind: Any, value: dict[str, Any], where: str) -> Any:
    """One of a class of messages, or of parts of messages, from its fields."""
    found = {}
    for name, (check, required) in _fields(kind).items():
        place = f"{where}.{name}"
        if name in value:
            found[name] = check(value[name], place)
        elif required:
            raise Malformed(f"{place} is missing")
    return kind(**found)


def _fields(kind: Any) -> dict[str, tuple[Checked, bool]]:
    """How each field of a message is checked, and whether it must be there."""
    if kind not in _known:
        hints = typing.get_type_hints(kind, include_extras=True)
        _known[kind] = {
            one.name: (_checked(hints[one.name]), one.default is dataclasses.MISSING)
            for one in dataclasses.fields(kind)
        }
    return _known[kind]


def _checked(hint: Any, most: int = _MOST) -> Checked:
    """What checks a value against an annotation; a list may have ``most`` entries."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        limits = [one.count for one in inside[1:] if isinstance(one, Most)]
        base = _checked(inside[0], *limits) if limits else _checked(inside[0])
        return _in_turn(base, inside[1:])
    if origin is Literal:
        return functools.partial(_literal, inside)
    if origin in (Union, types.UnionType) and len(inside) == 2 and inside[1] is type(None):
        return functools.partial(_optional, _checked(inside[0]))
    if origin is tuple and len(inside) == 2 and inside[1] is Ellipsis:
        return functools.partial(_several, _checked(inside[0]), most)
    if origin is dict and inside == (str, str):
        return _variables
    if isinstance(hint, type) and issubclass(hint, tuple):
        hints = typing.get_type_hints(hint, include_extras=True)
        return functools.partial(_record, hint, [(n, _checked(h)) for n, h in hints.items()])
    if hint is Message:
        return lambda value, where: value  # `OneOf` makes it one
    if dataclasses.is_dataclass(hint):
        return functools.partial(_part, hint)
    return _SIMPLE[hint]


def _in_turn(first: Checked, asked: tuple[_Check, ...]) -> Checked:
    def check(value: Any, where: str) -> Any:
        value = first(value, where)
        for one in asked:
            value = one.check(value, where)
        return value

    return check


def _bool(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise _wrong(value, where, "true or false")
    return value


def _int(value: Any, where: str) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise _wrong(value, where, "a whole number")
    return value


def _float(value: Any, where: str) -> float:
    if type(value) is int and abs(value) < 1 << 63:
        return float(value)
    if type(value) is not float or not math.isfinite(value):
        raise _wrong(value, where, "a number")
    return value


def _str(value: Any, where: str) -> str:
    if type(value) is not str:
        raise _wrong(value, where, "a text")
    if len(value) > _LONGEST:
        raise Malformed(f"{where} is longer than {_LONGEST}")
    try:
        value.encode(errors="surrogateescape")  # as names of files may have it
    except UnicodeEncodeError as error:
        raise _wrong(value, where, "a text") from error
    return value


_SIMPLE: dict[Any, Checked] = {bool: _bool, int: _int, float: _float, str: _str}


def _literal(allowed: tuple[Any, ...], value: Any, where: str) -> Any:
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise _wrong(value, where, f"one of {', '.join(map(str, allowed))}")
    return value


def _optional(check: Checked, value: Any, where: str) -> Any:
    return None if value is None else check(value, where)


def _several(check: Checked, most: int, value: Any, where: str) -> tuple[Any, ...]:
    if type(value) is not list:
        raise _wrong(value, where, "a list")
    if len(value) > most:
        raise Malformed(f"{where} has {len(value)} entries, more than {most}")
    return tuple(check(one, f"{where}[{at}]") for at, one in enumerate(value))


def _record(make: Any, fields: list[tuple[str, Checked]], value: Any, where: str) -> Any:
    if type(value) is not list or len(value) != len(fields):
        raise _wrong(value, where, f"a list of {len(fields)}")
    return make(
        *(check(one, f"{where}.{name}") for one, (name, check) in zip(value, fields, strict=True))
    )


def _part(kind: Any, value: Any, where: str) -> Any:
    if type(value) is not dict:
        raise _wrong(value, where, "an object")
    return _made(kind, value, where)


def _variables(value: Any, where: str) -> dict[str, str]:
    if type(value) is not dict:
        raise _wrong(value, where, "a table")
    if len(value) > _MOST:
        raise Malformed(f"{where} has {len(value)} entries, more than {_MOST}")
    for name, text in value.items():
        _str(name, where)
        _str(text, f"{where}[{shown(name, 40)!r}]")
        if not name or "=" in name or "\0" in name + text:
            raise Malformed(f"{where} has {shown(name, 40)!r}, which is no variable")
    return value


def _wrong(value: Any, where: str, wanted: str) -> Malformed:
    return Malformed(f"{where} is {shown(repr(value)[:60], 40)}, not {wanted}")


def _no_constant(name: str) -> None:
    raise Malformed(f"a number in it is {name}")


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return {"event": value.event} | _object(value)
    if dataclasses.is_dataclass(value):
        return _object(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


def _object(value: Any) -> dict[str, Any]:
    return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
