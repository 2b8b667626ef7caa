"""A ring wakes whoever waits, and never holds up whoever rings."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from spotmpi.fabric.doorbell import ADDRESS_BYTES, Doorbell

LONG = 30.0
AT_ONCE = 0.0

NewBell = Callable[[], Doorbell]


@pytest.fixture
def new_bell() -> Iterator[NewBell]:
    with ExitStack() as bells:
        yield lambda: bells.enter_context(closing(Doorbell()))


def test_who_waits_is_woken_by_a_ring(new_bell: NewBell) -> None:
    mine, other = new_bell(), new_bell()
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(mine.wait(LONG)))
    waiter.start()
    other.ring(mine.address)
    waiter.join(LONG)
    assert woken == [True]
    assert not other.wait(AT_ONCE)


def test_a_ring_before_the_wait_is_not_lost(new_bell: NewBell) -> None:
    mine = new_bell()
    mine.ring(mine.address)
    assert mine.wait(LONG)
    assert not mine.wait(AT_ONCE)


def test_nobody_rings_and_the_wait_ends(new_bell: NewBell) -> None:
    assert not new_bell().wait(1e-3)


def test_a_bell_that_nobody_answers_takes_any_number_of_rings(new_bell: NewBell) -> None:
    mine, other = new_bell(), new_bell()
    for _ in range(10_000):
        other.ring(mine.address)
    assert mine.wait(AT_ONCE)


@pytest.mark.parametrize("address", [b"", b"\0", b"\0nobody", b"\xff" * ADDRESS_BYTES, b"x" * 200])
def test_an_address_of_nobody_is_no_error(new_bell: NewBell, address: bytes) -> None:
    new_bell().ring(address)


def test_the_bell_of_a_killed_process_is_gone_and_leaves_no_file(
    new_bell: NewBell, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(tmp_path)
            bell = Doorbell()
            os.write(writer, bell.address)
            signal.pause()
        finally:
            os._exit(1)
    address = os.read(reader, 100)
    assert address in sockets()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    new_bell().ring(address)
    assert address.startswith(b"\0")
    assert address not in sockets()
    assert not list(tmp_path.iterdir())


def test_addresses_are_short_and_differ(new_bell: NewBell) -> None:
    bells = [new_bell() for _ in range(50)]
    addresses = {bell.address for bell in bells}
    assert len(addresses) == len(bells)
    assert max(map(len, addresses)) <= ADDRESS_BYTES
    assert addresses <= sockets()


def sockets() -> set[bytes]:
    """The names of all sockets of the abstract namespace."""
    lines = Path("/proc/net/unix").read_bytes().splitlines()
    return {b"\0" + line.split()[-1][1:] for line in lines if line.split()[-1].startswith(b"@")}
