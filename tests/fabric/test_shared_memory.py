"""Memory that processes share, and nobody else."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.neighbours.shared_memory import PAGE, Found, Memory, Segment, bytes_of

LENGTH = 3 * PAGE

ANOTHER = """
import os, sys
from spotmpi.fabric.neighbours.shared_memory import Found, Memory, Segment
user, length, *found = map(int, sys.argv[1:])
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
try:
    memory = Memory(length, Segment.reach(Found(*found), length))
except OSError as error:
    print(type(error).__name__)
else:
    numbers = memory.array("uint64", length // 8)
    print(numbers[100])
    numbers[101] = 7
"""


def another(segment: Segment, user: int = 0) -> str:
    """What another process, of this or another user, reads there; it writes a 7, too."""
    arguments = map(str, (user, segment.size, *segment.here))
    return subprocess.run(
        [sys.executable, "-c", ANOTHER, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_another_process_reads_and_writes_it() -> None:
    segment = Segment(LENGTH)
    numbers = Memory(LENGTH, segment).array("uint64", LENGTH // 8)
    numbers[100] = 42
    assert another(segment) == "42"
    assert numbers[101] == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_does_not() -> None:
    assert another(Segment(LENGTH), user=65534) == "PermissionError"


def maps() -> int:
    """Mappings of such memory in this process, in which other tests may have left some."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:spotmpi")


def test_it_is_gone_with_the_last_who_has_it_and_has_no_name_before() -> None:
    before = set(os.listdir("/dev/shm"))
    mapped = maps()
    segment = Segment(LENGTH)
    here = segment.here
    reached = Segment.reach(here, LENGTH)
    array = Memory(LENGTH, reached).array("float32", 4, PAGE)
    assert set(os.listdir("/dev/shm")) == before
    del segment, reached
    array[:] = 1  # is mapped, though no descriptor is left
    with pytest.raises(FileNotFoundError):
        Segment.reach(here, LENGTH)
    assert maps() == mapped + 1
    del array
    assert maps() == mapped


def test_nothing_else_is_taken_for_it(tmp_path: Path) -> None:
    segment = Segment(LENGTH)
    process, descriptor, mark = segment.here
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(LENGTH)
        for found, length in [
            (Found(process, file.fileno(), mark), LENGTH),
            (Found(process, descriptor, mark + 1), LENGTH),
            (Found(process, descriptor, mark), LENGTH + PAGE),
            (Found(1 << 30, descriptor, mark), LENGTH),
        ]:
            with pytest.raises(FileNotFoundError):
                Segment.reach(found, length)


def test_nobody_can_take_it_away_from_who_reads_it() -> None:
    segment = Segment(LENGTH)
    with pytest.raises(PermissionError):
        os.ftruncate(segment.descriptor, 0)


def test_memory_shows_a_segment_or_parts_from_it_at_the_same_addresses() -> None:
    segment = Segment(LENGTH)
    theirs = Memory(PAGE, segment, PAGE).array("float64", 4)
    memory = Memory(PAGE)
    mine = memory.array("float64", 4)
    assert mine.tolist() == [0] * 4
    theirs[:] = 3
    memory.show(segment, PAGE)
    assert mine.tolist() == [3] * 4
    mine[0] = 4
    assert theirs[0] == 4
    memory.unshare()
    assert mine.tolist() == [4, 3, 3, 3]
    mine[:] = 5
    assert theirs.tolist() == [4, 3, 3, 3]


def test_what_is_not_there_is_refused_with_its_size() -> None:
    with pytest.raises(SpotmpiError, match="no room for 1125899907 MB of memory for rounds"):
        Memory(1 << 50)


def test_sizes_are_whole_pages() -> None:
    assert [bytes_of("float32", n) for n in (0, 1, 1024, 1025)] == [PAGE, PAGE, PAGE, 2 * PAGE]
    assert np.dtype("float64").itemsize * 512 == bytes_of("float64", 512)
