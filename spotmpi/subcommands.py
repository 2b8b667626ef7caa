"""A command that is made of commands: ``spotmpi bench recovery``, ``spotmpi simulate cluster``."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from typing import Protocol

__all__ = ["Command", "Help", "add", "run"]


class Command(Protocol):
    """What a module of one of them has."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Describe it."""

    def main(self, options: argparse.Namespace, /) -> int:
        """Do it, and return its exit code. Blocking."""


class Help(argparse.RawDescriptionHelpFormatter):
    """Help whose lines stay as they are written, but for those that are too long."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            indent + line if line.startswith(" ") else textwrap.fill(line, width)
            for line in text.splitlines()
        )


def add(
    parser: argparse.ArgumentParser, what: str, commands: Mapping[str, tuple[str, Command]]
) -> None:
    """Give the parser these commands, each with its summary; ``what``: their kind, in the help."""
    kinds = parser.add_subparsers(metavar=what, required=True)
    for name, (summary, command) in commands.items():
        one = kinds.add_parser(
            name,
            help=summary,
            formatter_class=Help,
            allow_abbrev=False,
        )
        command.add_arguments(one)
        one.set_defaults(run=command.main)


def run(options: argparse.Namespace) -> int:
    """Run the one that was asked for, and return its exit code. Blocking."""
    code: int = options.run(options)
    return code
