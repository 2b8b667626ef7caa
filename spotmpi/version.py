"""Which spotmpi this is. Looking it up is a quarter of a worker's start: only on demand."""

from __future__ import annotations


def version() -> str:
    """As it is installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("spotmpi")
    except PackageNotFoundError:  # a bare checkout that nobody installed
        return "0+checkout"
