"""``spotmpi agent``: its arguments, and its way to the head."""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import signal
import socket
import sys
import time
from pathlib import Path

from spotmpi import job_folder
from spotmpi.errors import UsageError
from spotmpi.launch import job_token, notices, processes
from spotmpi.launch.auth import NONCE_BYTES, Role, Seal
from spotmpi.launch.host.agent import Agent, ServiceEnd
from spotmpi.launch.link import hasten
from spotmpi.launch.messages import MOST_NAME, MOST_SLOTS
from spotmpi.options import exit_codes
from spotmpi.settings import Watch

__all__ = ["add_arguments", "main", "parse_address"]

_LONGEST_TOKEN = 256
_FOR_CONNECTING = 5.0
_PAUSE = 0.5
"""Seconds between two attempts to reach the head."""

_PERSISTENCE = 120.0
"""Seconds without a head after which an agent gives up."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi agent --head HOST:PORT --token-file F [options]"
    parser.description = (
        "Run workers on this host for a job that `spotmpi run --listen` started elsewhere. A file "
        "here must hold the token of that job, and nobody else may be able to read it."
    )
    parser.epilog = (
        "example: spotmpi agent --head head.cluster:7700 --token-file ~/.job-token --slots 2\n\n"
        + exit_codes(
            {
                0: "the job is over",
                1: "the head is gone, it refused this host, or this host is to be taken away",
                2: "wrong arguments",
                143: "SIGTERM (it then ends by SIGTERM, after its workers have left)",
            }
        )
    )
    parser.add_argument("--head", metavar="HOST:PORT", help="the address that the job listens at")
    parser.add_argument("--token-file", metavar="F", type=Path, help="file with the job's token")
    parser.add_argument(
        "--pipe",
        action="store_true",
        help="the launcher is at this command's input and output (`spotmpi run --hosts` does this)",
    )
    parser.add_argument(
        "--near",
        action="store_true",
        help="the launcher is on this host: its silence says nothing, only the end of --pipe does",
    )
    parser.add_argument("--slots", metavar="N", default="1", help="workers here (default: 1)")
    parser.add_argument(
        "--name", metavar="NAME", default=platform.node(), help="what to call this host"
    )
    notices.add_arguments(parser)


def main(options: argparse.Namespace) -> int:
    """Serve one job; see the exit codes above. Blocking."""
    slots = options.slots
    if not (slots.isascii() and slots.isdigit()) or not 1 <= int(slots[:9]) <= MOST_SLOTS:
        raise UsageError(f"--slots {slots}: give a number of workers, 1 to {MOST_SLOTS}")
    if not options.name.isprintable() or not 0 < len(options.name) <= MOST_NAME:
        raise UsageError(f"--name {options.name!r}: give a name of 1 to {MOST_NAME} characters")
    if options.pipe == (options.head is not None) or (options.near and not options.pipe):
        raise UsageError("give --head HOST:PORT, where the job's launcher listens")
    watch = notices.chosen(options)
    job_folder.remove_abandoned()
    processes.raise_priority()
    if options.pipe:
        outcome = _serve_pipe(options.name, int(slots), watch, options.near)
    else:
        if options.token_file is None:
            raise UsageError("give --token-file F, with the token that `spotmpi run` has written")
        secret = job_token.of_file(options.token_file)
        host, port = parse_address(options.head, "--head")
        outcome = _serve_head(host, port, secret, options.name, int(slots), watch)
    if outcome.why:
        print(f"spotmpi agent on {options.name}: {outcome.why}", file=sys.stderr, flush=True)
    if outcome.told:
        # A batch script must be able to tell that it was preempted.
        signal.raise_signal(signal.SIGTERM)
    return 0 if outcome.over and not outcome.why else 1


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 address stands in brackets. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"{option} {text}: give HOST:PORT, with a port of at most 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _serve_pipe(name: str, slots: int, watch: Watch, near: bool) -> ServiceEnd:
    reading, writing = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # nothing else may be written to what is the head's
    secret = _token_line(reading)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return _serve((reading, writing), secret, name, slots, watch, near)


def _serve_head(
    host: str, port: int, secret: bytes, name: str, slots: int, watch: Watch
) -> ServiceEnd:
    last = time.monotonic()
    told = ""
    while True:
        why = ""
        try:
            link = socket.create_connection((host, port), timeout=_FOR_CONNECTING)
        except OSError as error:
            why = f"the head at {host}:{port} does not answer ({error.strerror or error})"
        else:
            hasten(link)
            descriptor = link.detach()
            outcome = _serve((descriptor, descriptor), secret, name, slots, watch)
            if outcome.over:
                return outcome
            why = outcome.why
            if outcome.served:
                last = time.monotonic()
        if time.monotonic() - last > _PERSISTENCE:
            return ServiceEnd(True, f"{why}; given up after {_PERSISTENCE:.0f} s")
        if why != told:
            print(f"spotmpi agent on {name}: {why}; trying again", file=sys.stderr, flush=True)
            told = why
        time.sleep(_PAUSE)


def _serve(
    descriptors: tuple[int, int],
    secret: bytes,
    name: str,
    slots: int,
    watch: Watch,
    near: bool = False,
) -> ServiceEnd:
    seal = Seal(Role.AGENT, secret, secrets.token_bytes(NONCE_BYTES))
    return Agent(descriptors, seal, name, slots, watch, near).run()


def _token_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_TOKEN:
        byte = os.read(descriptor, 1)  # not one more: what follows belongs to the trunk
        if not byte:
            break
        line += byte
    try:
        return job_token.of_text(line.decode())
    except ValueError as error:
        raise UsageError(
            f"the first line of the input is no token ({error}): `spotmpi run` starts such agents"
        ) from error
