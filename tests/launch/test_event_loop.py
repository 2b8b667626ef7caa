"""What was let go of earlier in the same turn is not called."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from spotmpi.launch.event_loop import READ, WRITE, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def readable() -> Iterator[Callable[[], int]]:
    """``readable()`` is a descriptor with something to read."""
    open_ones: list[int] = []

    def make() -> int:
        reading, writing = os.pipe()
        open_ones.extend((reading, writing))
        os.write(writing, b"x")
        return reading

    yield make
    for descriptor in open_ones:
        os.close(descriptor)


def test_a_descriptor_that_was_left_in_the_same_turn_is_not_called(loop: Loop, readable) -> None:
    one, other = readable(), readable()
    called: list[int] = []

    def call(me: int, it: int) -> Callable[[], None]:
        def act() -> None:
            called.append(me)
            loop.leave(it)

        return act

    loop.watch(one, call(one, other))
    loop.watch(other, call(other, one))
    assert loop.turn(0) == 2
    assert len(called) == 1
    assert len(loop) == 1


def test_a_number_that_was_given_out_again_is_not_called_for_what_it_was(
    loop: Loop, readable
) -> None:
    first, second, third = readable(), readable(), readable()
    called: list[str] = []

    def replace() -> None:
        called.append("first")
        loop.leave(second)
        os.dup2(third, second)
        loop.watch(second, lambda: called.append("new"))

    loop.watch(first, replace)
    loop.watch(second, lambda: called.append("old"))
    loop.turn(0)
    assert called == ["first"]
    loop.leave(first)
    loop.turn(0)
    assert called == ["first", "new"]


def test_what_is_watched_again_is_watched_for_that_only(loop: Loop, readable) -> None:
    descriptor = readable()
    called: list[str] = []
    loop.watch(descriptor, lambda: called.append("read"))
    loop.watch(descriptor, lambda: called.append("write"), WRITE)
    assert loop.turn(0) == 0
    loop.leave(descriptor)
    loop.leave(descriptor)
    assert descriptor not in loop


def test_another_event_of_a_descriptor_does_not_lose_one_that_has_come(
    loop: Loop, readable
) -> None:
    """It is the same one still: what has come is dealt with in this turn."""
    first, second = readable(), readable()
    called: list[str] = []

    def read() -> None:
        called.append("second")

    def change() -> None:
        called.append("first")
        loop.watch(second, read, READ | WRITE)

    loop.watch(first, change)
    loop.watch(second, read)
    loop.turn(0)
    assert called == ["first", "second"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """``clock(seconds)`` lets time pass."""
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_times_come_in_their_order_and_those_cancelled_not_at_all(loop: Loop, clock) -> None:
    called: list[str] = []

    def second() -> None:
        called.append("second")
        loop.cancel("third")

    loop.after(3, "third", lambda: called.append("third"))
    loop.after(2, "second", second)
    loop.after(9, "first", lambda: called.append("never"))
    loop.after(1, "first", lambda: called.append("first"))
    loop.turn(0)
    assert called == []
    clock(5)
    loop.turn()
    assert called == ["first", "second"]
    assert not loop.waits("third")


def test_what_is_done_again_and_again_may_end_itself(loop: Loop, clock) -> None:
    times: list[int] = []

    def act() -> None:
        times.append(len(times))
        if len(times) == 3:
            loop.cancel("act")

    loop.every(1, "act", act)
    for _ in range(6):
        clock(1)
        loop.turn(0)
    assert times == [0, 1, 2]


def test_a_file_can_be_waited_for(loop: Loop, tmp_path) -> None:
    with (tmp_path / "output").open("w") as file:
        called: list[int] = []
        loop.watch(file.fileno(), lambda: called.append(1), WRITE)
        loop.turn(0)
        assert called
        loop.leave(file.fileno())
