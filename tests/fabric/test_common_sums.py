"""`fabric.neighbours.common_sums`: workers of a host add to the same memory, without locks."""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from spotmpi.errors import SpotmpiError
from spotmpi.fabric import AddUp
from spotmpi.fabric.neighbours.common_sums import CommonSums, _Sums
from spotmpi.fabric.neighbours.published_model import ModelForm
from spotmpi.fabric.neighbours.shared_header import SharedHeader
from spotmpi.fabric.neighbours.shared_memory import Found
from tests.boxed import BOXED, boxes
from tests.fabric import adding
from tests.fabric.adding import arrays
from tests.fabric.crew import LIMIT, company, go_on, lose, meet
from tests.fabric.crew import Worker as Member

EVERYBODY = [0, 1, 2, 3]


def add(worker: Member, value: float, number: int = 0, size: int = 9) -> float | None:
    """What it finds when that is its part; None if it adds up with nobody."""
    total = [np.zeros(size, np.float32)]
    asked = AddUp([np.full(size, value, np.float32)], total, number, EVERYBODY)
    if worker.plane.neighbours.add_up(asked) == 1:
        assert not total[0].any()
        return None
    (found,) = {*total[0].tolist()}
    return float(found)


def test_each_finds_what_all_have_added() -> None:
    first, second, third = company(3)
    assert add(second, 10) == 10
    assert add(first, 1) == 11
    assert add(third, 100) == 111
    assert add(second, 20) == 121, "in place of what it had there"
    assert add(third, 100) == 121
    assert add(first, 0) == 120


def test_each_round_has_a_sum_of_its_own() -> None:
    workers = company(3)
    for number in range(5):
        found = [add(worker, 10.0**worker.me, number) for worker in workers]
        assert found == [1, 11, 111]


def test_a_round_in_which_nobody_adds_leaves_nothing_of_an_earlier_one() -> None:
    first, second = company(2)
    for number in (0, 2, 5, 6, 8):
        assert add(second, 5, number) == 5
        assert add(first, 1, number) == 6
        assert add(second, 5, number) == 6


def test_of_those_that_add_one_is_enough_to_begin_the_next_round() -> None:
    first, second = company(2)
    assert (add(first, 1, 0), add(second, 2, 0)) == (1, 3)
    assert add(first, 1, 1) == 1
    assert (add(second, 2, 2), add(first, 1, 2)) == (2, 3)


def test_who_makes_memory_at_the_same_time_as_another_comes_to_the_first_one_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = first, second, third = company(3)
    monkeypatch.setattr(CommonSums, "_shown", lambda self, form, key, headers: iter(()))
    assert [add(worker, 10.0**worker.me) for worker in workers] == [1, 10, 100]
    monkeypatch.undo()
    assert add(third, 100) == 101
    assert add(second, 20) == 121
    assert add(first, 1) == 121
    for number in (1, 2):
        assert [add(one, 10.0**one.me, number) for one in workers] == [1, 11, 111]


def test_who_changes_its_memory_takes_out_what_it_had_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, third = company(3)
    shown = CommonSums._shown
    assert (add(second, 10), add(third, 100)) == (10, 110)
    monkeypatch.setattr(CommonSums, "_shown", lambda self, form, key, headers: iter(()))
    assert add(first, 1) == 1
    monkeypatch.setattr(
        CommonSums, "_shown", lambda self, form, key, headers: shown(self, form, key, headers[1:])
    )
    assert add(third, 100) == 110
    monkeypatch.undo()
    assert add(second, 10) == 11
    monkeypatch.setattr(
        CommonSums, "_shown", lambda self, form, key, headers: shown(self, form, key, headers[2:])
    )
    assert add(third, 100) == 100, "without that of the second one"
    assert add(second, 10) == 110
    monkeypatch.undo()
    assert add(second, 10) == 11


@pytest.mark.parametrize("which", [0, 1, 2])
def test_memory_outlives_whoever_made_it(which: int) -> None:
    workers = company(3)
    for worker in workers:
        add(worker, 10.0**worker.me)
    lose(workers, which)
    assert add(workers[0], 1000) is not None, "nobody waits for anything"
    go_on(workers)
    rest = {1, 10, 100} - {10**which}
    for worker in workers:
        found = add(worker, 10.0**worker.me)
    assert found == 111, "until the round, with what the lost one has added"
    assert [add(one, 10.0**one.me, 1) for one in workers] == [min(rest), sum(rest)]


def test_a_newcomer_adds_to_what_the_others_have() -> None:
    workers = company(2)
    for worker in workers:
        add(worker, 10.0**worker.me)
    newcomer = Member(3)
    newcomer.furnish()
    workers.append(newcomer)
    meet(workers)
    assert add(newcomer, 1000, 1) == 1000
    assert [add(worker, 10.0**worker.me, 1) for worker in workers] == [1001, 1011, 1011]


def test_those_that_do_not_share_memory_add_up_nothing() -> None:
    workers = first, second = company(2)
    assert (add(first, 1), add(second, 2)) == (1, 3)
    for worker in workers:
        worker.plane.bind([0, 1], False)
    assert (add(first, 1), add(second, 2)) == (None, None)
    meet(workers)
    assert add(first, 1, 1) == 1


def test_a_training_that_begins_finds_nothing_of_the_one_before() -> None:
    workers = first, second = company(2)
    assert (add(first, 1), add(second, 2)) == (1, 3)
    for worker in workers:
        worker.plane.neighbours.move_on()
    assert (add(second, 2), add(first, 1)) == (2, 3)


def test_models_of_another_form_have_a_sum_of_their_own() -> None:
    first, second = company(2)
    assert (add(first, 1), add(second, 2)) == (1, 3)
    assert add(first, 1, size=10) == 1
    assert (add(second, 2), add(second, 2, size=10)) == (3, 3)


def test_memory_that_is_not_used_any_more_is_given_back() -> None:
    workers = first, second = company(2)
    before = _mapped()
    for number in (0, 3, 9):
        add(first, 1, number)
        add(second, 2, number)
    for worker in workers:
        worker.plane.neighbours.move_on()
    assert _mapped() == before


def _mapped() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:spotmpi")


def test_no_room_for_a_model_is_said_with_its_size() -> None:
    with pytest.raises(SpotmpiError, match="no room for 4611686018427 MB of memory"):
        _Sums.new(ModelForm((("float64", 1 << 58),)), 0)


def test_arrays_of_another_library_are_added_in_the_memory_of_the_host() -> None:
    with boxes():
        part, total = BOXED.zeros("float32", 5), BOXED.zeros("float32", 5)
        BOXED.fill(part, 3)
        header = SharedHeader.new()
        CommonSums(header).add([part], [total], 0, [header])
        assert BOXED.to_host(total).tolist() == [3.0] * 5


# With processes.

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start such processes, which end with the test."""
    made: list[subprocess.Popen[str]] = []

    def run(*headers: str) -> subprocess.Popen[str]:
        command = [sys.executable, adding.__file__, *headers]
        pipe = subprocess.PIPE
        made.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return made[-1]

    yield run
    for process in made:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """What it says next."""
    said: IO[str] | None = process.stdout
    assert said is not None
    assert select.select([said], [], [], LIMIT)[0], "no word from it"
    return said.readline().strip()


def tell(process: subprocess.Popen[str], what: str) -> None:
    """Tell it that."""
    assert process.stdin is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()


def test_who_is_killed_in_the_middle_leaves_a_part_of_it_until_the_round(start: Start) -> None:
    """And the memory was its own."""
    process = start()
    header, total = SharedHeader.new(), arrays(0)
    there = _header(line(process))
    sums = CommonSums(header)

    def found(value: float, number: int) -> list[Any]:
        sums.add(arrays(value), total, number, [there, header])
        return [{*flat.tolist()} for flat in total]

    tell(process, "add 1")
    assert line(process) == "1.0 1.0"
    assert found(10, 0) == [{11}, {11}]
    tell(process, "half 5")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert found(10, 0) == [{15}, {11}]
    assert found(20, 0) == [{25}, {21}]
    assert found(20, 1) == [{20}, {20}]


@pytest.mark.parametrize("adds", [0, 3, 10])
def test_who_is_killed_at_any_moment_leaves_nothing_in_the_next_round(
    start: Start, adds: int
) -> None:
    process = start()
    there, header, total = _header(line(process)), SharedHeader.new(), arrays(0)
    sums = CommonSums(header)
    tell(process, "add 1")
    line(process)
    sums.add(arrays(2), total, 0, [there, header])
    assert [{*flat.tolist()} for flat in total] == [{3}, {3}]
    tell(process, "many 0")
    for _ in range(adds):
        sums.add(arrays(2), total, 0, [there, header])
    process.kill()
    process.wait()
    sums.add(arrays(4), total, 0, [header])
    for number in (1, 2):
        sums.add(arrays(5), total, number, [header])
        assert [{*flat.tolist()} for flat in total] == [{5}, {5}]


def test_two_that_add_as_fast_as_they_can_find_numbers_that_were_added(start: Start) -> None:
    first = start()
    header = line(first)
    second = start(header)
    line(second)
    for process in (first, second):
        tell(process, "many 0")
    there, own, total = _header(header), SharedHeader.new(), arrays(0)
    sums = CommonSums(own)
    for number in range(60):
        sums.add(arrays(number % 7), total, 0, [there, own])
        for flat in total:  # what is lost is lost, and nothing else comes of it
            assert np.isfinite(flat).all()
    for process in (first, second):
        tell(process, "add 0")
        line(process)
    sums.add(arrays(3), total, 1, [there, own])
    assert [{*flat.tolist()} for flat in total] == [{3}, {3}], "nothing of it in the next round"


def _header(said: str) -> SharedHeader:
    return SharedHeader.of(Found(*map(int, said.split())))
