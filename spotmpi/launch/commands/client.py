"""Asking a running job: finding it among this user's on this host, and talking to its socket."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import select
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

from spotmpi import job_folder
from spotmpi.errors import SpotmpiError, UsageError
from spotmpi.launch import control_messages
from spotmpi.launch.decoding import Malformed, Message, decode, encode
from spotmpi.launch.head.control_socket import DESK
from spotmpi.launch.host.wrappers import peer
from spotmpi.launch.wording import moment

__all__ = [
    "ASKED",
    "Gone",
    "JobEnd",
    "add_job_argument",
    "ask",
    "described",
    "find",
    "reports",
    "request",
    "running",
    "show_anything",
    "status",
    "until_end",
]

ASKED = {
    0: "the job has been asked",
    1: "there is no such job, or it does not answer",
    2: "wrong arguments, or the job cannot do that",
}
"""Exit codes of a command that asks a job for something."""

_PATIENCE = 10.0
"""Seconds for a launcher to answer; it does within milliseconds unless it is stopped."""

_FOR_A_LIST = 2.0
"""The same, where it is only one of several."""

_LONGEST = 1 << 26
"""Bytes of an answer."""


Expected = TypeVar("Expected", bound=Message)


class Gone(SpotmpiError):
    """The job is not there any more, or does not answer."""


def add_job_argument(parser: argparse.ArgumentParser) -> None:
    """Describe ``--job``."""
    parser.add_argument(
        "--job", metavar="NAME", help="which job, if several run; `spotmpi jobs` shows their names"
    )


def find(name: str | None, choose: str = "--job NAME") -> Path:
    """Return the folder of the job of that name, or of the only one; ``choose``: how it is named.

    Raises Gone if there is none, UsageError if it must be named, or is named wrongly.
    """
    if name is not None:
        return _named(name)
    found = running()
    if not found:
        raise Gone("no job of yours runs on this host; ask where `spotmpi run` was started")
    if len(found) > 1:
        listed = "".join(f"\n  {line}" for line in described(found))
        raise UsageError(f"several jobs of yours run on this host; choose by {choose}:{listed}")
    return found[0]


def show_anything() -> None:
    """Let this command print names of files that are no text, on terminals that lack letters."""
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")


def running() -> list[Path]:
    """Return the folders of this user's jobs that run on this host. Blocking, as `ask`."""
    return sorted(folder for folder in job_folder.all_of_mine() if _answers(folder))


def described(folders: Iterable[Path]) -> list[str]:
    """Return a line for each of these jobs: what it is, and since when. Blocking, as `ask`."""
    return [
        f"{folder.name}  {found.script}, since {moment(found.since)}"
        if (found := _standing(folder)) is not None
        else f"{folder.name}  (does not answer)"
        for folder in folders
    ]


def reports(folders: Iterable[Path]) -> list[control_messages.Report]:
    """Return how those of these jobs stand that answer. Blocking, as `ask`."""
    return [found for folder in folders if (found := _standing(folder)) is not None]


def ask(folder: Path, question: Message, kind: type[Expected]) -> Expected:
    """Ask one thing and return the answer, of this kind. Blocking, for ten seconds at most.

    Raises UsageError with what is wrong with the question, Gone if there is no answer to it.
    """
    with _connect(folder) as link:
        _send(link, question)
        return _receive(folder, link, kind)


def status(folder: Path) -> control_messages.Report:
    """Ask how the job stands. Blocking, as `ask`; raises as it."""
    return ask(folder, control_messages.AskStatus(), control_messages.Report)


def request(job: str | None, question: Message) -> None:
    """Ask a job (``--job``) one thing, and show what it said. Blocking, as `ask`; raises as it."""
    folder = find(job)
    print(f"{folder.name}: {ask(folder, question, control_messages.Said).said}")


class JobEnd:
    """The end of a job, which somebody waits for."""

    def __init__(self, folder: Path, link: socket.socket) -> None:
        self._folder = folder
        self._link = link

    def fileno(self) -> int:
        """What `select` may wait for: it can be read when the job has ended."""
        return self._link.fileno()

    def wait(self, seconds: float | None = None) -> control_messages.Report | None:
        """Return how the job ended, None if it has not yet. Raises Gone. Blocking."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        if not poll.poll(None if seconds is None else 1e3 * seconds):
            return None
        try:
            return _receive(self._folder, self._link, control_messages.Report)
        except Gone as gone:
            raise Gone(
                f"the launcher of {self._folder.name} was killed, and the job with it"
            ) from gone


@contextmanager
def until_end(folder: Path) -> Iterator[JobEnd]:
    """Inside, the end of the job can be waited for. Raises Gone if it cannot be reached."""
    with _connect(folder) as link:
        _send(link, control_messages.AskEnd())
        yield JobEnd(folder, link)


def _named(name: str) -> Path:
    short = name.removeprefix(job_folder.PREFIX)
    if not job_folder.is_name(short):
        raise UsageError(
            f"--job {name} is no name of a job, such as {job_folder.PREFIX}0123456789ab"
        )
    folder = job_folder.home() / f"{job_folder.PREFIX}{short}"
    if folder not in job_folder.all_of_mine():
        raise Gone(f"there is no job {folder.name} of yours on this host; it may have ended")
    if not _answers(folder):
        raise Gone(
            f"{folder.name} is what is left of a job whose launcher was killed, or a part of a job "
            "that has another name, or was started on another host"
        )
    return folder


def _answers(folder: Path) -> bool:
    try:
        with _connect(folder):
            return True
    except Gone:
        return False


def _standing(folder: Path) -> control_messages.Report | None:
    """How one of several jobs stands, if it says so soon."""
    try:
        with _connect(folder, _FOR_A_LIST) as link:
            _send(link, control_messages.AskStatus())
            return _receive(folder, link, control_messages.Report)
    except Gone:
        return None


@contextmanager
def _connect(folder: Path, patience: float | None = None) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_PATIENCE if patience is None else patience)
        try:
            link.connect(str(folder / DESK))
        except OSError as error:
            raise Gone(f"{folder.name} cannot be reached: {error.strerror or error}") from error
        if peer(link)[1] != os.getuid():
            raise Gone(f"{folder.name} is served by somebody else")
        yield link


def _send(link: socket.socket, question: Message) -> None:
    # It may be ending, and have an answer for us all the same.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        link.sendall(encode(question, "ask") + b"\n")


def _receive(folder: Path, link: socket.socket, kind: type[Expected]) -> Expected:
    """The answer, of this kind. Raises Gone, or UsageError with what is wrong with the question."""
    line = bytearray()
    try:
        while not line.endswith(b"\n") and len(line) < _LONGEST:
            data = link.recv(1 << 16)
            if not data:
                raise Gone(f"{folder.name} ended without an answer")
            line += data
        answer = decode(bytes(line), control_messages.ANSWERS)
    except TimeoutError as error:
        raise Gone(
            f"{folder.name} does not answer: its launcher is stopped, or this host is overloaded"
        ) from error
    except OSError as error:
        raise Gone(f"{folder.name} broke off in its answer: {error}") from error
    except Malformed as wrong:
        raise Gone(f"{folder.name} gives no answer that can be understood: {wrong}") from wrong
    if isinstance(answer, control_messages.Wrong):
        raise UsageError(answer.wrong)
    if not isinstance(answer, kind):
        raise Gone(f"{folder.name} answers something else than it was asked ({answer.event})")
    return answer
