"""What every worker runs: a script, or a module by its name, as ``python`` and ``python -m`` do."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = ["AS_MODULE", "Program"]

AS_MODULE = "-m"
"""Stands before the name of a module, where else the path of a script stands."""


@dataclass(frozen=True)
class Program:
    """A script or a module, and its arguments."""

    name: str
    """The path of a script, as it was given, or the full name of a module."""
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @classmethod
    def of(cls, task: Sequence[str]) -> Program:
        """The one of this `task`."""
        if task[0] == AS_MODULE and len(task) > 1:
            return cls(task[1], tuple(task[2:]), is_module=True)
        return cls(task[0], tuple(task[1:]))

    @property
    def task(self) -> tuple[str, ...]:
        """The words that stand behind ``python``."""
        return (*([AS_MODULE] if self.is_module else []), self.name, *self.arguments)

    @property
    def called(self) -> str:
        """Without its arguments: ``train.py``, or ``-m package.module``."""
        return f"{AS_MODULE} {self.name}" if self.is_module else self.name

    @property
    def short(self) -> str:
        """The same, without the folder of a script."""
        return self.called if self.is_module else os.path.basename(self.name)

    def missing(self, folder: str, path: Sequence[str] = ()) -> str | None:
        """What is not there, for workers in this working folder; None if it is there, or if only
        its start can tell. ``path``: where they look for modules, beside where this process does.

        Nothing is imported: a package may do anything when it is.
        """
        if not self.is_module:
            script = os.path.join(folder, self.name)
            return None if os.path.isfile(script) else f"script {script}"
        places = [folder, *(os.path.join(folder, one) for one in path)]
        there, _ = _look(self.name, places)
        return None if there else f"module {self.name}"

    def source(self, folder: str) -> bytes:
        """Its text, which tells two of one name apart; empty if that cannot be read."""
        place: str | None = os.path.join(folder, self.name)
        if self.is_module:
            _, found = _look(self.name, [folder])
            place = None if found is None else found.origin
        try:
            return b"" if place is None else Path(place).read_bytes()
        except OSError:
            return b""


class _Found(NamedTuple):
    """A module, or a package."""

    origin: str | None
    """Its file, if it is one."""
    within: list[str] | None
    """Where a package's modules are."""


def _look(module: str, places: Sequence[str]) -> tuple[bool, _Found | None]:
    """Whether there may be one that can be run, and which it is, if that is known."""
    path, name = [*places, *sys.path], ""
    last: _Found | None = None
    # A package is run by the module __main__ in it.
    for word in [*module.split("."), "__main__"]:
        name = f"{name}.{word}".lstrip(".")
        found = _find(name, path) if word else None
        if found is None:
            whole = name == f"{module}.__main__"
            if whole and last is not None and last.within is None:
                return True, last
            return last is not None and _looks_elsewhere(last), None
        last = found
        path = found.within or []
    return True, last


def _find(name: str, path: Sequence[str]) -> _Found | None:
    """As imports do, but for what is told of packages that are not imported."""
    portions: list[str] = []
    for place in path:
        finder = pkgutil.get_importer(place)
        spec = None if finder is None else finder.find_spec(name)
        if spec is None:
            continue
        if spec.loader is not None:
            return _Found(spec.origin, spec.submodule_search_locations)
        portions += spec.submodule_search_locations or []
    if portions:
        return _Found(None, portions)
    # Built-in ones, and packages in development, are found in other ways.
    for other in sys.meta_path if "." not in name else []:
        if (spec := other.find_spec(name, None)) is not None:
            return _Found(spec.origin, spec.submodule_search_locations)
    return None


def _looks_elsewhere(package: _Found) -> bool:
    """Whether it says where its modules are, as some do when they are imported."""
    if package.within is None:
        return False
    try:
        return "__path__" in Path(package.origin or os.devnull).read_text(errors="replace")
    except OSError:
        return True
