"""The thread that sees to messages beside the script."""

from __future__ import annotations

import queue
import threading

import pytest

from spotmpi.fabric.mpi import messenger as module
from spotmpi.fabric.mpi.messenger import Messenger

LIMIT = 60


def test_an_error_ends_the_thread_and_is_raised_by_the_next_check() -> None:
    gate = threading.Event()

    def look() -> tuple[bool, bool]:
        gate.wait(60)
        raise ValueError("a bug")

    messenger = Messenger("some messages", look, 0.005)
    messenger.start()
    messenger.start()
    (thread,) = [one for one in threading.enumerate() if one.name == "some messages"]
    messenger.check()
    gate.set()
    thread.join(60)
    with pytest.raises(ValueError, match="a bug"):
        messenger.check()


def test_a_thread_that_is_woken_looks_at_once_and_one_that_is_to_end_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for nap in ("_NAP", "_NAP_UNDER_WAY"):
        monkeypatch.setattr(module, nap, 10.0 * LIMIT)  # by itself it looks only once
    looks = queue.SimpleQueue[None]()

    def look() -> tuple[bool, bool]:
        looks.put(None)
        return False, False

    messenger = Messenger("some messages", look, 10.0 * LIMIT)
    messenger.start()
    (thread,) = [one for one in threading.enumerate() if one.name == "some messages"]
    looks.get(timeout=LIMIT)
    for _ in range(2):
        messenger.wake()
        looks.get(timeout=LIMIT)
    threading.Thread(target=messenger._end, daemon=True).start()  # it waits until the other ends
    thread.join(LIMIT)
    assert not thread.is_alive()
    messenger.check()
