"""The loop of the process that watches: ask, say what is new, ask again.

It writes a line of JSON per notice to its output, and a sentence to its error stream when the
service gives no answers. A line ``safe`` on its input says that the host may be taken away. It
ends when its input does: nobody is interested any more.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from spotmpi.errors import NoAnswer
from spotmpi.notice import Notice
from spotmpi.notice.provider import Provider

__all__ = ["SAFE", "Input", "ParentGone", "watch"]

SAFE = b"safe"

_PATIENCE = 3
"""Failures in a row, after which it is said that nothing is heard."""

_AFTER_FAILURE = 1.0
"""Seconds until the next question, at least."""

_LONGEST = 256
"""Bytes of a line on the input."""


class ParentGone(Exception):
    """The input was closed."""


class Input:
    """The process's input, heard at every wait for anything else: its end interrupts that.

    ``safe`` is set when the host was said to be safe; whoever deals with that clears it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun = b""
        self._ended = False
        self.safe = False

    def wait(self, descriptor: int, events: int, seconds: float) -> bool:
        """Wait for another descriptor as `metadata.until_ready` does.

        Raises `ParentGone` when the input ends. That is once: later waits know nothing of it.
        """
        deadline = time.monotonic() + seconds
        while not (ready := self._poll(descriptor, events, deadline)):
            if time.monotonic() >= deadline:
                break
        return ready

    def pause(self, seconds: float) -> None:
        """Wait for time to pass, or for the host to be said to be safe. Raises `ParentGone`."""
        deadline = time.monotonic() + seconds
        before = self.safe
        while True:
            self._poll(None, 0, deadline)
            if self.safe != before or time.monotonic() >= deadline:
                return

    def _poll(self, descriptor: int | None, events: int, deadline: float) -> bool:
        poll = select.poll()
        if descriptor is not None:
            poll.register(descriptor, events)
        if not self._ended:
            poll.register(self._descriptor, select.POLLIN)
        left = max(0.0, deadline - time.monotonic())
        ready = {found for found, _ in poll.poll(math.ceil(1e3 * left))}
        if self._descriptor in ready:
            self._hear()
        return descriptor in ready

    def _hear(self) -> None:
        try:
            data = os.read(self._descriptor, _LONGEST)
        except OSError:
            data = b""
        if not data:
            self._ended = True
            raise ParentGone
        *lines, rest = (self._begun + data).split(b"\n")
        self._begun = rest[-_LONGEST:]
        if any(line.strip() == SAFE for line in lines):
            self.safe = True


def watch(
    provider: Provider, said: Input, tell: Callable[[Notice], None], complain: Callable[[str], None]
) -> None:
    """Watch until the input ends, or nobody reads what is told. Blocking."""
    try:
        _watch(provider, said, tell, complain)
    except BrokenPipeError:
        return
    except ParentGone:
        if said.safe:  # said before it went
            with suppress(NoAnswer):
                provider.safe()


def _watch(
    provider: Provider, said: Input, tell: Callable[[Notice], None], complain: Callable[[str], None]
) -> NoReturn:
    failures = 0
    while True:
        try:
            if said.safe:
                provider.safe()
                said.safe = False
            for notice in provider.poll():
                tell(notice)
        except NoAnswer as error:
            failures += 1
            if failures == _PATIENCE:
                complain(
                    f"{provider.name}'s metadata service gives no usable answer ({error}); "
                    "its notices are not heard until it does"
                )
            said.pause(max(provider.pause, _AFTER_FAILURE))
        else:
            failures = 0
            said.pause(provider.pause)
