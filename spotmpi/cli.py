"""The command line: a table of commands, each of which lives in its own module.

A command's module has ``add_arguments(parser)`` and ``main(options) -> exit code``, and is
imported when the command is used: ``spotmpi --help`` must not wait for NumPy.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from spotmpi.errors import SpotmpiError, UsageError
from spotmpi.subcommands import Help

__all__ = ["main", "parsers"]

_USAGE = 2


class _Command(NamedTuple):
    name: str
    module: str
    summary: str


_COMMANDS = (
    _Command("demo", "spotmpi.demo", "watch a training survive the loss of half its workers"),
    _Command(
        "run", "spotmpi.launch.commands.run", "train with several workers, on this host or on many"
    ),
    _Command("jobs", "spotmpi.launch.commands.jobs", "list your running jobs"),
    _Command("status", "spotmpi.launch.commands.status", "show how a running job stands"),
    _Command(
        "stop",
        "spotmpi.launch.commands.stop",
        "end a running job, with a checkpoint if it keeps any",
    ),
    _Command("grow", "spotmpi.launch.commands.grow", "add a host to a running job"),
    _Command("shrink", "spotmpi.launch.commands.shrink", "take a worker out of a running job"),
    _Command(
        "agent", "spotmpi.launch.commands.agent", "run workers of a job that another host launches"
    ),
    _Command(
        "doctor", "spotmpi.launch.commands.doctor", "show what a run would use, and what is wrong"
    ),
    _Command(
        "check", "spotmpi.afterwards.check", "check from its trace what a training has kept to"
    ),
    _Command("why", "spotmpi.afterwards.why", "say what interrupted a training, and its goodput"),
    _Command("report", "spotmpi.afterwards.report", "write a page about a training"),
    _Command("plot", "spotmpi.afterwards.plot", "draw a training from its trace"),
    _Command("plan", "spotmpi.economy.planning", "choose a cluster: its time, its cost, its risk"),
    _Command(
        "prices",
        "spotmpi.economy.market.listing",
        "make a price list of what a cloud's own commands print",
    ),
    _Command(
        "profile",
        "spotmpi.economy.models.profiling",
        "learn how long a step takes, and predict it",
    ),
    _Command("bench", "spotmpi.bench.command", "measure recovery or overhead on this machine"),
    _Command(
        "simulate",
        "spotmpi.simulation.command",
        "try a cluster, or the protocol, before it costs money",
    ),
)


class _Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong with an argument, and how to learn more."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # A value such as -1h is no option, so that the command itself says what is wrong with it.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    code = 0
    try:
        try:
            code = _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read it has enough (`| head`); the interpreter must not complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _run(arguments: Sequence[str] | None) -> int:
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or [""]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(import_module("spotmpi").__version__)
        return 0
    command = next((one for one in _COMMANDS if one.name == name), None)
    if command is None:
        said = f"spotmpi: there is no command {name!r}\n\n" if name else ""
        print(f"{said}{_help()}", file=sys.stderr)
        return _USAGE
    prog = f"spotmpi {name}"
    module = import_module(command.module)
    try:
        return int(module.main(_parser(command).parse_args(rest)))
    except UsageError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return _USAGE
    except SpotmpiError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def parsers() -> list[tuple[str, str, argparse.ArgumentParser]]:
    """Name, summary and parser of each command: what docs/cli.md is written from."""
    return [(command.name, command.summary, _parser(command)) for command in _COMMANDS]


def _parser(command: _Command) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"spotmpi {command.name}", formatter_class=Help, allow_abbrev=False)
    import_module(command.module).add_arguments(parser)
    return parser


def _help() -> str:
    width = max(len(command.name) for command in _COMMANDS)
    return "\n".join(
        [
            "usage: spotmpi COMMAND [ARGUMENTS...]",
            "",
            "Data-parallel training on nodes that can vanish at any moment.",
            "",
            "commands:",
            *(f"  {command.name:<{width}}  {command.summary}" for command in _COMMANDS),
            "",
            "`spotmpi COMMAND --help` says more. example: spotmpi run -n 4 train.py",
        ]
    )
