"""The file that names a job's hosts. Pure.

One host a line, ``name [slots=2] [gpus=1] [python=/path]``; ``#`` begins a comment. ``slots`` is
the number of workers there (1 if it is not given), ``python`` the interpreter that has spotmpi on
that host (the launcher's own path if it is not given). ``localhost`` is the launcher's own host.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from spotmpi.errors import UsageError
from spotmpi.launch.messages import MOST_SLOTS
from spotmpi.launch.wording import count

__all__ = ["Change", "HostLine", "difference", "parse"]


@dataclass(frozen=True)
class HostLine:
    """A host as its user wrote it down."""

    name: str
    slots: int = 1
    gpus: int | None = None
    python: str | None = None

    @property
    def local(self) -> bool:
        """Whether it is the launcher's own host, by name."""
        return self.name == "localhost"


@dataclass(frozen=True)
class Change:
    """What is different in a list of hosts, each in the list's order."""

    came: tuple[HostLine, ...] = ()
    gone: tuple[HostLine, ...] = ()
    changed: tuple[HostLine, ...] = ()
    """As they are now."""

    def sentence(self, source: str, there: Container[str]) -> str:
        """What it means for a job that has the hosts that are ``there``."""
        new = [host for host in self.came if host.name not in there]
        known = [host for host in self.came if host.name in there]
        parts = (
            (f"asked for {count(sum(host.slots for host in new))}", new),
            ("there already", known),
            ("not tried again when they are not there", self.gone),
            ("changed from the next time that they come", self.changed),
        )
        told = [f"{what}: {', '.join(host.name for host in of)}" for what, of in parts if of]
        return f"{source} was read again; {'; '.join(told) or 'no host is new, gone or changed'}"


def difference(before: Iterable[HostLine], after: Iterable[HostLine]) -> Change:
    """What is different in ``after``; the order is not."""
    old, new = ({host.name: host for host in hosts} for hosts in (before, after))
    return Change(
        came=tuple(host for name, host in new.items() if name not in old),
        gone=tuple(host for name, host in old.items() if name not in new),
        changed=tuple(host for name, host in new.items() if old.get(name, host) != host),
    )


def parse(lines: Iterable[str], source: str) -> tuple[HostLine, ...]:
    """Read a hosts file; ``source`` names it in messages. Raises UsageError."""
    hosts: dict[str, HostLine] = {}
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


def _host(words: list[str], where: str) -> HostLine:
    name, *options = words
    # ssh would take a name that begins with a dash for an option of its own.
    if name.startswith("-") or "=" in name or not name.isprintable():
        raise UsageError(f"{where}: {name!r} is no name of a host; write name [slots=2]")
    given: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition("=")
        if (
            key not in ("slots", "gpus", "python")
            or not value.isprintable()
            or not value
            or key in given
        ):
            raise UsageError(
                f"{where}: {option!r} is not understood; "
                "write name [slots=2] [gpus=1] [python=/path]"
            )
        given[key] = value
    return HostLine(
        name,
        slots=_count(given["slots"], 1, MOST_SLOTS, f"{where}: slots") if "slots" in given else 1,
        gpus=_count(given["gpus"], 0, MOST_SLOTS, f"{where}: gpus") if "gpus" in given else None,
        python=given.get("python"),
    )


def _count(text: str, least: int, most: int, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:9]) <= most:
        raise UsageError(f"{what}={text} is not a whole number from {least} to {most}")
    return int(text)
