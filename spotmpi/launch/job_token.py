"""The job's token: who knows it may run workers of the job, or have them run."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from spotmpi.errors import UsageError

__all__ = ["new", "of_file", "of_text"]

_BYTES = 32
_LEAST = 16


def new() -> bytes:
    """A token that nobody can guess."""
    return secrets.token_bytes(_BYTES)


def of_text(text: str) -> bytes:
    """The token that a line of hexadecimal digits says. Raises ValueError."""
    token = bytes.fromhex(text.strip())
    if len(token) < _LEAST:
        raise ValueError(f"a token has at least {2 * _LEAST} hexadecimal digits")
    return token


def of_file(path: Path, make: bool = False) -> bytes:
    """The token in a file that nobody else may read. Raises UsageError.

    With ``make``, a file that is not there is written, with a new token.
    """
    try:
        if make and not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(new().hex() + "\n")
        with path.open() as file:
            found = os.fstat(file.fileno())
            text = file.read(1024)
    except PermissionError as error:
        raise UsageError(
            f"--token-file {path}: {error.strerror}; name a file of your own"
        ) from error
    except OSError as error:
        raise UsageError(
            f"--token-file {path}: {error.strerror}; `spotmpi run --listen` writes one"
        ) from error
    if found.st_uid not in (os.getuid(), 0):
        raise UsageError(
            f"--token-file {path} belongs to user {found.st_uid}, who could run anything as you; "
            "name a file of your own"
        )
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"--token-file {path}: others may read it, and could run anything as you; "
            f"`chmod 600 {path}` and use a new token"
        )
    try:
        return of_text(text)
    except ValueError as error:
        raise UsageError(f"--token-file {path} holds no token: {error}") from error
