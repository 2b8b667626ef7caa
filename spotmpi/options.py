"""What the options of several commands must keep to."""

from __future__ import annotations

import argparse

from spotmpi.errors import UsageError

__all__ = ["at_least"]


def at_least(options: argparse.Namespace, **least: int) -> None:
    """UsageError if one of these options is below its least value, or is no number."""
    for name, value in least.items():
        if not getattr(options, name) >= value:
            raise UsageError(f"--{name} is {getattr(options, name)}, expected at least {value}")
