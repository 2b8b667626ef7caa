"""The data plane within a host: in threads of this process, which share its memory in earnest."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.errors import SpotmpiError
from spotmpi.fabric import Arena, Part, Shape
from spotmpi.fabric.neighbours.shared_memory import Segment
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import Ways, private_arena
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from spotmpi.kernels import cpu
from tests.fabric.crew import (
    DATA,
    LIMIT,
    WORD,
    Worker,
    at_once,
    brought,
    check,
    company,
    expected,
    go_on,
    lose,
    lost,
    meet,
    no_memory_to_share,
    same,
)

KILLED = Path(__file__).with_name("killed.py")


@pytest.fixture(autouse=True, params=[False, True], ids=["waiting", "ahead"])
def _ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether workers sum while they wait, or before that."""
    monkeypatch.setattr(Worker, "ahead", request.param)


@pytest.mark.parametrize("weights", [(3.0, 1.0, 5.0), (3.0, 0.0, 5.0), (0.0, 0.0, 0.0)])
def test_what_is_brought_counts_as_often_as_its_weight_says(weights: tuple[float, ...]) -> None:
    workers = company(3)
    assert all(worker.data.weighs and not worker.word.weighs for worker in workers)
    for worker, weight in zip(workers, weights, strict=True):
        worker.bring(7)
        worker.data.weight = weight
        if not weight:
            for flat in worker.data.contributions:
                flat[...] = np.nan
    for found in at_once(workers, Worker.round):
        for index, flat in enumerate(found[: len(DATA)]):
            total = np.zeros_like(flat)
            for worker, weight in zip(workers, weights, strict=True):
                if weight:
                    total = total + flat.dtype.type(weight) * brought(worker.me, 7, index, flat)
            assert same([flat], [total])


def test_a_worker_may_bring_something_to_one_array_only() -> None:
    """The others' contributions are not read: they may be anything."""
    workers = company(3)
    for worker in workers:
        worker.bring(7)
        for index, flat in enumerate(worker.data.contributions):
            if index != worker.me:
                flat[...] = np.nan
        worker.data.bring_only(worker.me)
    for found in at_once(workers, Worker.round):
        for index, flat in enumerate(found[: len(DATA)]):
            assert same([flat], [brought(index, 7, index, flat)])


def test_what_is_to_be_summed_has_its_kernels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (alone,) = company(1)
    monkeypatch.setattr(cpu, "_KERNELS", known := type(cpu._KERNELS)())
    alone.plane.arena([Shape("float32", 8)], "few")
    assert not known
    alone.plane.arena([Shape("float32", 8), Shape("float64", 5_000)], "many")
    assert {*known} == {np.dtype("float64"), np.dtype("uint32")}  # and those of newcomers' pages


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_sums_are_in_the_order_of_the_members_to_the_bit(count: int) -> None:
    workers = company(count)
    for number in range(5):
        check(workers, number)


def test_the_record_stays_while_the_next_round_is_summed() -> None:
    workers = company(3)
    check(workers, 0)
    before = workers[0].record()
    for worker in workers:
        worker.bring(1)
    at_once(workers, lambda worker: worker.plane.wait(worker.start()))
    for worker in workers:
        assert same(worker.record(), before)


def test_one_result_is_everybodys_and_the_word_is_everybodys_own() -> None:
    first, second = workers = company(2)
    assert not first.plane.is_everywhere(first.data.results[0])
    check(workers, 0)
    for flats in (first.data.results, first.data.record):
        assert all(map(first.plane.is_everywhere, flats))
    assert not any(map(first.plane.is_everywhere, first.word.record))
    first.data.record[0][5] = 77
    assert second.data.record[0][5] == 77


@pytest.mark.parametrize("rehearsed", [1, 2])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_newcomer_finds_what_the_others_have(rounds: int, rehearsed: int) -> None:
    """Whichever of its two results it thinks is the open round's."""
    workers = company(2)
    for number in range(rounds):
        check(workers, number)
    newcomer = Worker(2)
    newcomer.furnish()
    for _ in range(rehearsed):
        newcomer.data.turn()
    workers.append(newcomer)
    meet(workers)
    for number in range(rounds, rounds + 3):
        check(workers, number)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_after_a_loss_the_same_is_summed_without_the_lost(which: int) -> None:
    """Whoever's memory the results are in; nobody brings anything anew."""
    workers = company(3)
    check(workers, 0)
    before = workers[0].record()
    for worker in workers:
        worker.bring(1)
    lose(workers, which)
    assert all(at_once(workers, lost))
    for worker in workers:
        assert same(worker.record(), before)
    go_on(workers)
    for found in at_once(workers, Worker.round):
        assert same(found, expected(workers, 1))
    check(workers, 2)
    # The memory of who is gone goes with it, but for the results; a newcomer finds these.
    newcomer = Worker(9)
    newcomer.furnish()
    workers.append(newcomer)
    meet(workers)
    check(workers, 3)
    check(workers, 4)


def test_who_waits_sees_a_loss_and_a_revocation_wakes_it() -> None:
    first, second = company(2)
    for worker in (first, second):
        worker.bring(0)
    with ThreadPoolExecutor(1) as pool:
        broke = pool.submit(lost, first)
        first.broken.set()
        second.plane.interrupt()
        assert broke.result(LIMIT)


def test_who_waits_sleeps() -> None:
    first, _ = company(2)
    first.bring(0)
    with ThreadPoolExecutor(1) as pool:

        def waited() -> float:
            before = time.thread_time()
            assert lost(first)
            return time.thread_time() - before

        begin = time.monotonic()
        used = pool.submit(waited)
        while time.monotonic() < begin + 1:
            os.sched_yield()
        first.broken.set()
        spent = used.result(LIMIT)
        assert spent < 0.2 * (time.monotonic() - begin), "seconds of a core"


def test_members_that_cannot_reach_each_other_go_by_mpi() -> None:
    workers = company(2)
    check(workers, 0)
    before = workers[0].record()
    stranger = Worker(2)
    stranger.furnish()
    cards = {worker.me: worker.plane.neighbours.card() for worker in workers}
    assert not stranger.plane.neighbours.reach({**cards, 5: bytes(len(cards[0]))})
    for worker in workers:
        worker.plane.bind([0, 1, 2], False)
    for worker in workers:
        assert same(worker.record(), before), "what was shared is everybody's own"
        worker.bring(1)
        worker.round()
        assert len(worker.by_mpi_instead) == len(DATA) + len(WORD)
    workers[0].data.record[0][5] = 77
    assert workers[1].data.record[0][5] == -1


def test_if_one_has_no_memory_to_share_all_go_by_mpi() -> None:
    """And none waits for one who shares nothing."""
    workers = [Worker(me) for me in range(3)]
    meet(workers)
    workers[0].furnish()
    workers[2].furnish()

    with no_memory_to_share():
        workers[1].furnish()
    for worker in workers:
        worker.bring(0)
    at_once(workers, Worker.round)
    for worker in workers:
        assert len(worker.by_mpi_instead) == len(DATA) + len(WORD)


def test_workers_that_have_not_compared_their_models_do_not_wait_for_each_other() -> None:
    """A handshake is rounds of words and of parts without a name."""
    workers = [Worker(me) for me in range(2)]
    meet(workers)
    for worker, size in zip(workers, (100, 5000), strict=True):
        worker.data = worker.plane.arena([Shape("float32", size)], "data")
        worker.word = worker.plane.arena(WORD, "word")
        worker.broken.set()  # who waits for others raises PeersLost; MPI's stand-in never waits
        worker.plane.wait([worker.plane.start(part) for part in worker.word.parts])
        assert len(worker.by_mpi_instead) == 1


def test_what_is_small_beside_something_large_is_shared_as_that_is() -> None:
    """In any order: if MPI summed it, all would write to the same memory at once."""
    layout = [Shape("float32", 3), Shape("float64", 5_000)]
    workers = [Worker(me) for me in range(2)]
    meet(workers)
    for worker in workers:
        worker.data = worker.plane.arena(layout, "data")
        worker.word = worker.plane.arena(WORD, "word")
    check(workers, 0)
    check(workers, 1)


@pytest.mark.parametrize("released", [False, True])
def test_an_arena_that_was_replaced_is_found_no_more(released: bool) -> None:
    """Not even if the next one of its name cannot be shared."""
    workers = company(2)
    check(workers, 0)
    if released:
        for worker in workers:
            worker.plane.release(worker.data)
            worker.plane.release(worker.word)

    workers[0].furnish()
    with no_memory_to_share():
        workers[1].furnish()
    for worker in workers:
        worker.bring(0)
    sums = expected(workers, 0)
    for found in at_once(workers, Worker.round):
        assert same(found[1:], sums[1:])  # by rows: they are small
    for worker in workers:
        assert [len(part.result) for part in worker.by_mpi_instead] == [DATA[0].size]


def test_memory_that_can_never_be_reached_is_an_error_and_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a loss it would be gone into for ever."""
    monkeypatch.setattr("spotmpi.fabric.planes.shared_memory_plane._EVIDENCE", 0.1)
    workers = company(2)

    def refuse(found: Any, length: int) -> Segment:
        raise PermissionError("no")

    monkeypatch.setattr(Segment, "reach", refuse)
    for worker in workers:
        worker.bring(0)

    def failed(worker: Worker) -> bool:
        with pytest.raises(SpotmpiError, match="memory for rounds cannot be shared: no"):
            worker.plane.wait(worker.start())
        return True

    assert all(at_once(workers, failed))


def test_arrays_that_no_kernel_sums_and_those_without_a_name_go_by_mpi() -> None:
    def arenas(worker: Worker) -> list[Arena]:
        plane = worker.plane
        return [plane.arena([Shape("int64", 5000)], "whole"), plane.arena([Shape("float32", 5000)])]

    for worker in company(2):
        for arena in arenas(worker):
            assert arena.in_place
            worker.plane.wait([worker.plane.start(part) for part in arena.parts])
        assert len(worker.by_mpi_instead) == 2


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_part_of_an_arena_whose_name_another_one_has_goes_by_mpi(dtype: str) -> None:
    """Also if the other one cannot be shared, and goes by MPI itself."""
    by_mpi = list[Part]()
    plane = SharedMemoryPlane(Ways(by_mpi.extend, lambda: False))
    assert plane.neighbours.reach({0: plane.neighbours.card()})
    plane.bind([0], True)
    first = plane.arena([Shape("float32", 4096)], "data")
    second = plane.arena([Shape(dtype, 4096)], "data")
    for arena, many in ((second, int(dtype == "int64")), (first, 1)):
        by_mpi.clear()
        plane.wait([plane.start(part) for part in arena.parts])
        assert len(by_mpi) == many
    assert plane.between([0], first.parts) is None


def test_an_arena_that_is_replaced_goes_at_once() -> None:
    """Its memory would stay until the collector looks for cycles."""
    plane = SharedMemoryPlane(Ways(lambda parts: None, lambda: False))
    gc.collect()
    gc.disable()
    try:
        gone = weakref.ref(plane.arena([Shape("float32", 4096)], "data"))
        assert gone() is not None
        plane.arena([Shape("float32", 4096)], "data")
        assert gone() is None
        alone = private_arena([Shape("float32", 8)], in_place=False)
        assert alone.parts
        gone = weakref.ref(alone)
        del alone
        assert gone() is None
    finally:
        gc.enable()


def test_tiny_models_load_no_numba() -> None:
    """Half a second of each worker's start."""
    code = (
        "import sys\n"
        "from spotmpi.fabric import Shape\n"
        "from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane\n"
        "from spotmpi.fabric.planes.plane import Ways\n"
        "node = SharedMemoryPlane(Ways(lambda parts: None, lambda: False))\n"
        "node.arena([Shape('float32', 1000)], 'data'); node.arena([Shape('float64', 16)], 'word')\n"
        "assert 'numba' not in sys.modules\n"
        "node.arena([Shape('float32', 2000)], 'data')\n"
        "assert 'numba' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def mapped() -> int:
    """Bytes of workers' memory that this process has in its own. (The kernel may show two pieces as
    one, so it says nothing how many there are.)"""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    found = re.findall(r"^(\w+)-(\w+) .*memfd:spotmpi", maps, re.MULTILINE)
    return sum(int(end, 16) - int(start, 16) for start, end in found)


def test_nothing_stays_of_who_came_and_was_lost() -> None:
    workers = company(2)
    check(workers, 0)
    before = mapped()
    for number in range(1, 4):
        workers.append(Worker(2 + number))
        workers[-1].furnish()
        meet(workers)
        check(workers, number)
        lose(workers, -1)
        assert all(at_once(workers, lost))
        go_on(workers)
        check(workers, number)
    assert mapped() <= before


def test_the_last_arena_of_a_name_counts_and_others_are_given_back() -> None:
    workers = company(2)
    check(workers, 0)
    before = mapped()
    for worker in workers:
        worker.furnish()
    check(workers, 0)
    assert mapped() <= before


def test_an_arena_that_is_released_frees_its_memory() -> None:
    """On this worker, and where others have mapped it."""
    workers = company(2)
    check(workers, 0)

    def sum_of(worker: Worker, size: int, name: str) -> None:
        plane = worker.plane
        plane.release(worker.data)
        worker.data = plane.arena([Shape("float32", size)], name)
        plane.wait([plane.start(part) for part in worker.data.parts])

    for size in range(6060, 6063):  # as many pages
        at_once(workers, lambda one, size=size: sum_of(one, size, f"sum/{size}"))
    before = mapped()
    for size in range(6000, 6060):
        at_once(workers, lambda one, size=size: sum_of(one, size, f"sum/{size}"))
    assert mapped() == before
    assert not any(worker.by_mpi_instead for worker in workers)


def test_no_update_is_fused_with_a_small_sum() -> None:
    """Workers that have not loaded Numba could not, and all must do the same."""
    plane = company(1)[0].plane
    assert plane.barrier.loaded
    layout = [Shape("float32", 700)]
    assert not plane.arena(layout, "data2", DoubleBuffer([("float32", 700)])).fuses


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.first("waiting-4")
def test_processes_that_are_killed_at_any_moment(count: int, tmp_path: Path) -> None:
    """Real ones: the survivors' sums are right, and the same for all, whoever is killed when."""
    with subprocess.Popen(
        [sys.executable, KILLED, str(count), "20", str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"no end after {LIMIT} s:\n{process.communicate()[0]}")
    assert process.returncode == 0, said
    assert said.startswith("20 deaths survived")
