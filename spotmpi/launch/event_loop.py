"""The event loop of a launcher or an agent: what happens calls back, one thing at a time.

In one *turn* several descriptors may be ready and several times may have come. Whatever was let go
of by what came before it in the same turn is not called: neither a descriptor that was closed, even
if its number was given out again since, nor a time that was cancelled.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["READ", "WRITE", "Action", "Loop"]

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Action = Callable[[], object]
"""What to do when something happens; raises only what is to end the process."""


@dataclass(eq=False)
class _Watched:
    """What is done for a descriptor; another one for each time that one is watched anew."""

    action: Action
    events: int


class Loop:
    """Descriptors that are waited for, and times."""

    def __init__(self) -> None:
        self._select = selectors.PollSelector()  # epoll would refuse regular files
        self._watched: dict[int, _Watched] = {}
        self._times: dict[Hashable, tuple[float, Action]] = {}

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._watched

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, descriptor: int, action: Action, events: int = READ) -> None:
        """Do something whenever a descriptor can be read from (or written to), from now on.

        Replaces what was to be done, and when.
        """
        known = self._watched.get(descriptor)
        if known is None or known.action != action:
            self.leave(descriptor)
            self._watched[descriptor] = _Watched(action, events)
            self._select.register(descriptor, events, self._watched[descriptor])
        elif known.events != events:
            known.events = events
            self._select.modify(descriptor, events, known)

    def leave(self, descriptor: int) -> None:
        """Wait for a descriptor no more, if it was waited for. To be called before it is closed."""
        if self._watched.pop(descriptor, None) is not None:
            self._select.unregister(descriptor)

    def after(self, seconds: float, name: Hashable, action: Action) -> None:
        """Do something once, later; instead of what was to be done under this name."""
        self._times[name] = time.monotonic() + seconds, action

    def every(self, seconds: float, name: Hashable, action: Action) -> None:
        """Do something again and again, from ``seconds`` on."""

        def again() -> None:
            self.after(seconds, name, again)
            action()

        self.after(seconds, name, again)

    def cancel(self, name: Hashable) -> None:
        """Do not do what was to be done under this name, if anything was."""
        self._times.pop(name, None)

    def cancel_all(self) -> None:
        """Do nothing of what was to be done later."""
        self._times.clear()

    def waits(self, name: Hashable) -> bool:
        """Whether something is to be done under this name."""
        return name in self._times

    def turn(self, patience: float | None = None, between: Action | None = None) -> int:
        """Wait for something to happen, for so many seconds at most, and deal with all of it.

        Descriptors first, then what is to be done ``between``, then times: a process that was
        paused hears what came meanwhile before it finds that it has waited too long. Returns how
        many descriptors were ready.
        """
        first = min((at for at, _ in self._times.values()), default=None)
        if first is not None:
            pause = max(0.0, first - time.monotonic())
            patience = pause if patience is None else min(patience, pause)
        ready = self._select.select(patience)
        for key, happened in ready:
            watched: _Watched = key.data
            if self._watched.get(key.fd) is watched and happened & watched.events:
                watched.action()
        if between is not None:
            between()
        now = time.monotonic()
        for name, due in sorted(self._times.items(), key=lambda item: item[1][0]):
            if due[0] <= now and self._times.get(name) is due:
                del self._times[name]
                due[1]()
        return len(ready)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._select.close()
        self._times.clear()
