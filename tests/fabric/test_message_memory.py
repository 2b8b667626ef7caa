"""Memory for messages is used again, and never while somebody has a view of it."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from spotmpi.fabric.mpi import message_memory as module
from spotmpi.fabric.mpi.message_memory import _LARGE, _MOST_KNOWN, MessageMemory


def address(view: memoryview) -> int:
    """Where it is."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_is_used_again_when_nobody_has_a_view_of_it() -> None:
    memory = MessageMemory()
    first = memory.take(2 * _LARGE)
    array = np.frombuffer(first[5:], np.uint8).view(np.int8)
    where = address(first)
    del first
    second = memory.take(2 * _LARGE)
    assert address(second) != where, "the array still has it"
    del array
    gc.collect()
    third = memory.take(_LARGE)
    assert address(third) == where
    assert len(third) == _LARGE
    third[:] = b"x" * _LARGE
    assert not any(second)


def test_a_small_message_does_not_take_the_memory_of_a_large_one() -> None:
    memory = MessageMemory()
    where = address(memory.take(100 * _LARGE))
    small = memory.take(_LARGE)
    assert address(small) != where
    assert address(memory.take(100 * _LARGE)) == where


def test_it_keeps_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 100 * _LARGE)
    memory = MessageMemory()
    views = [memory.take(_LARGE) for _ in range(3 * _MOST_KNOWN)]
    assert len({address(view) for view in views}) == len(views)
    assert len(memory._known) == _MOST_KNOWN
    views = [memory.take(40 * _LARGE) for _ in range(7)]
    assert [len(one) for one in memory._known] == 2 * [40 * _LARGE]
    views = [memory.take(200 * _LARGE) for _ in range(7)]
    assert [len(one) for one in memory._known] == 2 * [200 * _LARGE]
    last = {address(view) for view in views[-2:]}
    views.clear()
    assert address(memory.take(200 * _LARGE)) in last
    assert not any(memory.take(_LARGE))
    assert [len(one) for one in memory._known] == [200 * _LARGE, _LARGE]


def test_little_messages_have_memory_of_their_own() -> None:
    memory = MessageMemory()
    assert len(memory.take(3)) == 3
    assert len(memory.take(0)) == 0
    assert not memory._known
