"""What several commands do alike with their options and their help."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from spotmpi.errors import UsageError

__all__ = ["at_least", "exit_codes"]


def at_least(options: argparse.Namespace, **least: int) -> None:
    """UsageError if one of these options is below its least value, or is no number."""
    for name, value in least.items():
        if not getattr(options, name) >= value:
            raise UsageError(f"--{name} is {getattr(options, name)}, expected at least {value}")


def exit_codes(meanings: Mapping[int, str]) -> str:
    """The lines of a command's help that say what its exit codes mean."""
    return "exit codes:\n" + "\n".join(f"  {code:<3}  {told}" for code, told in meanings.items())
