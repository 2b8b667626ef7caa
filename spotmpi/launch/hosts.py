"""The file that names a job's hosts. Pure.

One host a line, ``name [slots=2] [gpus=1] [python=/path]``; ``#`` begins a comment. ``slots`` is
the number of workers there (1 if it is not given), ``python`` the interpreter that has spotmpi on
that host (the launcher's own path if it is not given). ``localhost`` is the launcher's own host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spotmpi.errors import UsageError

__all__ = ["Host", "parse"]


@dataclass(frozen=True)
class Host:
    """A host as its user wrote it down."""

    name: str
    slots: int = 1
    gpus: int | None = None
    python: str | None = None

    @property
    def local(self) -> bool:
        """Whether it is the launcher's own host, by name."""
        return self.name == "localhost"


def parse(lines: Iterable[str], source: str) -> tuple[Host, ...]:
    """Read a hosts file; ``source`` names it in messages. Raises UsageError."""
    hosts: dict[str, Host] = {}
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}, line {number}"
        host = _host(words, where)
        if host.name in hosts:
            raise UsageError(f"{where}: {host.name} is there twice; give it slots=2 instead")
        hosts[host.name] = host
    if not hosts:
        raise UsageError(f"{source} names no host; write one a line: name [slots=2]")
    return tuple(hosts.values())


def _host(words: list[str], where: str) -> Host:
    name, *options = words
    # ssh would take a name that begins with a dash for an option of its own.
    if name.startswith("-") or "=" in name:
        raise UsageError(f"{where}: {name!r} is no name of a host; write name [slots=2]")
    given: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if key not in ("slots", "gpus", "python") or not equals or not value or key in given:
            raise UsageError(
                f"{where}: {option!r} is not understood; "
                "write name [slots=2] [gpus=1] [python=/path]"
            )
        given[key] = value
    return Host(
        name,
        slots=_count(given["slots"], 1, f"{where}: slots") if "slots" in given else 1,
        gpus=_count(given["gpus"], 0, f"{where}: gpus") if "gpus" in given else None,
        python=given.get("python"),
    )


def _count(text: str, least: int, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"{what}={text} is not a whole number of at least {least}")
    return int(text)
