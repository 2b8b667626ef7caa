"""The header of a checkpoint file: its step, its size, and the sum that shows any damage to it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import NoReturn

from spotmpi.training.keeping.checkpoint_folder import STEP_DIGITS

__all__ = ["HEADER_BYTES", "Damaged", "header_of", "refuse", "title_of", "verify"]

HEADER_BYTES = 512
_CHUNK = 4 << 20


class Damaged(Exception):
    """Says why a file is not usable."""


def refuse(why: str) -> NoReturn:
    """Raise `Damaged`, for this reason."""
    raise Damaged(why)


def title_of(step: int, size: int) -> bytes:
    """Return the header of a file of ``size`` bytes without its sum."""
    return f"spotmpi checkpoint 1\nstep {step:0{STEP_DIGITS}}\nbytes {size:015}\n".encode()


def header_of(title: bytes, checksum: str) -> bytes:
    """Return the whole header. ``checksum``: of the title and of all bytes behind the header."""
    return (title + f"sha256 {checksum}\n".encode()).ljust(HEADER_BYTES, b"\0")


def verify(fd: int, step: int | None) -> int:
    """Verify that the header is, to the bit, the one that belongs to the file's bytes. Return the
    step that it names, which must be ``step`` if that is given."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        refuse("it is not a regular file")
    found = os.pread(fd, HEADER_BYTES, 0)
    if len(found) < HEADER_BYTES:
        refuse(f"truncated: {status.st_size} bytes are less than a header")
    match = re.match(rb"spotmpi checkpoint 1\nstep (\d+)\nbytes (\d+)\n", found)
    if match is None:
        refuse("it does not start as a checkpoint of this version does")
    if int(match[2]) != status.st_size:
        how = "truncated" if status.st_size < int(match[2]) else "too long"
        refuse(f"{how}: {status.st_size} bytes where {int(match[2])} were written")
    written = int(match[1])
    if step is not None and written != step:
        refuse(f"it was written for step {written} and renamed")
    title = title_of(written, status.st_size)
    checksum = hashlib.sha256(title)
    buffer = bytearray(_CHUNK)
    at = HEADER_BYTES
    while count := os.preadv(fd, [buffer], at):
        checksum.update(memoryview(buffer)[:count])
        at += count
    if found != header_of(title, checksum.hexdigest()):
        refuse("its checksum does not match: the file was changed or the disk is failing")
    return written
