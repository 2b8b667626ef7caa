"""State in two copies that exchange places."""

import os
import threading
from pathlib import Path

import numpy as np

from spotmpi.fabric.neighbours.shared_memory import PAGE, Segment
from spotmpi.fabric.planes import double_buffer
from spotmpi.fabric.planes.double_buffer import DoubleBuffer

LAYOUT = [("float32", 5000), ("float64", 3)]


def test_this_kernel_can_do_it() -> None:
    assert double_buffer.possible()


def test_alone_the_next_state_counts_after_an_exchange_at_the_same_addresses() -> None:
    both = DoubleBuffer(LAYOUT)
    where = [flat.ctypes.data for flat in both.live]
    assert [flat.shape for flat in both.live] == [(5000,), (3,)]
    both.stand()
    for number in range(1, 5):
        for flat in both.next:
            flat[:] = number
        both.stand()
        both.exchange()
        assert all((flat == number).all() for flat in both.live)
        assert all((flat == number - 1).all() for flat in both.next)
    both.unshare()
    assert all((flat == 4).all() for flat in both.live)
    assert [flat.ctypes.data for flat in both.live] == where


def test_workers_that_share_both_copies_see_each_their_own_turn() -> None:
    first, other = DoubleBuffer(LAYOUT), DoubleBuffer(LAYOUT)
    segment = Segment(PAGE + 2 * first.bytes)
    for one in (first, other):
        for flat in one.live:
            flat[:] = 1
    first.write_to(segment, PAGE + first.bytes)
    for one in (first, other):
        one.share(segment, PAGE + first.bytes, PAGE)
    first.next[0][:2500] = 2
    other.next[0][2500:] = 2
    assert (first.live[0] == 1).all()
    first.exchange()
    assert (first.live[0] == 2).all()
    assert (other.live[0] == 1).all()
    other.exchange()
    assert (other.live[0] == 2).all()
    other.unshare()
    first.next[0][:] = 3
    first.exchange()
    first.next[0][:] = 4
    assert (other.live[0] == 2).all()
    assert (other.live[1] == 0).all()


def test_a_reader_beside_an_exchange_finds_one_state_or_the_other() -> None:
    both = DoubleBuffer([("float32", 1 << 20)])
    segment = Segment(PAGE + 2 * both.bytes)
    both.share(segment, PAGE, PAGE + both.bytes)
    both.next[0][:] = 1
    over, found = threading.Event(), set()

    def read() -> None:
        while not over.is_set():
            found.update(np.unique(both.live[0][:: 1 << 10]).tolist())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(500):
        both.exchange()
    over.set()
    reader.join()
    assert found <= {0.0, 1.0}


def test_memory_is_given_back_with_the_last_array_that_lies_in_it() -> None:
    before = _mapped()
    both = DoubleBuffer([("float32", 1 << 22)])
    segment = Segment(PAGE + 2 * both.bytes)
    both.share(segment, PAGE, PAGE + both.bytes)
    both.exchange()
    kept = both.live[0]
    del both
    kept[:] = 1
    del kept
    assert _mapped() - before < 1 << 22
    del segment
    both = DoubleBuffer([("float32", 1 << 22)])
    segment = Segment(PAGE + 2 * both.bytes)
    both.share(segment, PAGE, PAGE + both.bytes)
    both.exchange()
    both.unshare()
    named = f"/proc/self/fd/{segment.descriptor}"
    inode = os.stat(named).st_ino
    assert f" {inode} " not in _maps()


def _maps() -> str:
    return Path("/proc/self/maps").read_text()


def _mapped() -> int:
    line = Path("/proc/self/statm").read_text().split()[0]
    return int(line) * 4096
