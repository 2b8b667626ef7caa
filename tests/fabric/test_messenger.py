"""The thread that sees to messages beside the script."""

from __future__ import annotations

import threading

import pytest

from spotmpi.fabric.mpi.messenger import Messenger


def test_an_error_ends_the_thread_and_is_raised_by_the_next_check() -> None:
    gate = threading.Event()

    def look() -> tuple[bool, bool]:
        gate.wait(60)
        raise ValueError("a bug")

    messenger = Messenger("some messages", look)
    messenger.start()
    messenger.start()
    (thread,) = [one for one in threading.enumerate() if one.name == "some messages"]
    messenger.check()
    gate.set()
    thread.join(60)
    with pytest.raises(ValueError, match="a bug"):
        messenger.check()
