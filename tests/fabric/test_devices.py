"""Sums of arrays that lie on a device, in threads of this process; the device is none, and late."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.backend import DEVICE, HOST
from spotmpi.arrays.narrowing import FORMATS
from spotmpi.fabric import Part, Shape
from spotmpi.fabric.planes import device_sums, staging, travels
from spotmpi.fabric.planes.devices import Devices
from spotmpi.fabric.planes.plane import Ways
from spotmpi.fabric.planes.shared_arena import SMALL
from spotmpi.fabric.planes.staging import Staging
from spotmpi.protocol.host_ring import FIRST, STRAIGHT
from tests import fake_cupy as cupy
from tests.fabric import test_rings
from tests.fabric.crew import (
    DATA,
    On,
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
    same,
)


@pytest.fixture(autouse=True)
def _on_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Worker, "backend", DEVICE)
    monkeypatch.setattr(staging, "ROOM", 4096)
    with cupy.installed():
        yield


@pytest.fixture(autouse=True, params=["cut", "whole", "staged"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How sums go: on the device, where each worker adds up a slice or the whole, or by the host,
    where workers cannot open each other's memory."""
    if request.param == "staged":
        monkeypatch.setattr(cupy.runtime, "ipcOpenMemHandle", cupy.unreachable)
    if request.param == "cut":
        monkeypatch.setattr(device_sums, "_WHOLE", 0)
    return str(request.param)


@pytest.fixture
def near(way: str) -> bool:
    """True if sums are made on the device."""
    return way != "staged"


@pytest.fixture(autouse=True, params=[False, True], ids=["waiting", "ahead"])
def _ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether workers sum while they wait, or before that."""
    monkeypatch.setattr(Worker, "ahead", request.param)
    monkeypatch.setattr(travels, "MESSAGE", 4200)


def in_order(count: int) -> tuple[list[Worker], Callable[[list[Worker], int], None]]:
    """On one host."""
    return company(count), check


def on_hosts(*hosts: int) -> tuple[list[Worker], Callable[[list[Worker], int], None]]:
    """On several."""
    return test_rings.company(*hosts), test_rings.check


SEVERAL = [(in_order, (2,)), (in_order, (3,)), (on_hosts, (1, 2)), (on_hosts, (1, 3))]
crews = pytest.mark.parametrize(("crew", "where"), SEVERAL)


@pytest.mark.parametrize(("crew", "where"), [(in_order, (1,)), *SEVERAL])
def test_sums_have_the_bits_of_those_in_the_memory_of_hosts(crew: Any, where: Any) -> None:
    workers, check_round = crew(*where)
    for number in range(4):
        check_round(workers, number)
        for worker in workers:
            assert not worker.plane.node._started, "nothing is forgotten there"
            for arena in (worker.data.results, worker.data.record, worker.data.contributions):
                assert all(DEVICE.owns(flat) for flat in arena)


def test_what_a_worker_s_device_has_still_to_do_is_waited_for() -> None:
    """Each worker has a stream of its own, as in a process of its own, and gives it its gradient
    right before it starts the sum."""
    workers = company(3)
    streams = [cupy.Stream(non_blocking=True) for _ in workers]

    def work(worker: Worker, number: int) -> list[Any]:
        worker.bring(number)
        with streams[worker.me]:
            for index, flat in enumerate(worker.data.contributions):
                gradient = cupy.asarray(brought(worker.me, number, index, flat))
                flat.fill(np.nan)
                flat[...] = gradient
            return worker.round()

    for number in range(3):
        sums = expected(workers, number)
        for found in at_once(workers, lambda worker, number=number: work(worker, number)):
            assert same(found, sums)


@pytest.mark.parametrize("form", FORMATS)
def test_sums_are_narrowed_between_hosts(form: str) -> None:
    workers = test_rings.company(1, 2, form=form)
    for number in range(3):
        test_rings.check(workers, number)
    assert any(rest.any() for worker in workers for rest in worker.rests())


def test_within_a_host_nothing_is_narrowed() -> None:
    workers = company(2)
    for worker in workers:
        worker.furnish("int8")
    for number in range(2):
        check(workers, number)
    assert not any(rest.any() for worker in workers for rest in worker.rests())


def test_what_is_summed_on_the_device_after_hosts_are_gone_went_between_none(near: bool) -> None:
    workers = test_rings.company(1, 2)
    test_rings.check(workers, 0)
    parts = workers[1].data.parts
    ids = [one.me for one in workers]
    found = workers[1].plane.between(ids, parts)
    assert found is not None
    assert found.hosts == [[0], [1, 2]]
    lose(workers, 0)
    assert workers[0].plane.between(ids, parts) is not None, "that is how it went"
    if (post := workers[0].post) is not None:
        post.boxes.clear()
        post.__init__(len(workers))  # type: ignore[misc]
    go_on(workers)
    check(workers, 1)
    assert all(worker.data.near == near for worker in workers)
    assert workers[0].plane.between(ids[1:], workers[0].data.parts) is None


@crews
@pytest.mark.first(
    "waiting-near-in_order-where0",
    "ahead-near-on_hosts-where2",
    "waiting-staged-on_hosts-where3",
    "ahead-staged-in_order-where1",
)
def test_a_round_that_broke_is_summed_again_without_the_lost(crew: Any, where: Any) -> None:
    """Nobody brings anything anew, and the record stays as it was."""
    workers, check_round = crew(*where)
    check_round(workers, 0)
    before = workers[0].record()
    for worker in workers:
        worker.bring(1)
    lose(workers, len(workers) - 1)
    assert all(at_once(workers, lost))
    assert all(same(worker.record(), before) for worker in workers)
    if (post := workers[0].post) is not None:
        post.boxes.clear()
        post.__init__(len(workers))  # type: ignore[misc]
    go_on(workers)
    sums = (expected if crew is in_order else test_rings.expected)(workers, 1)
    for found in at_once(workers, Worker.round):
        assert same(found, sums)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_newcomer_takes_part(rounds: int) -> None:
    workers = company(2)
    for number in range(rounds):
        check(workers, number)
    newcomer = Worker(2)
    newcomer.furnish()
    newcomer.data.turn()
    workers.append(newcomer)
    meet(workers)
    for number in range(rounds, rounds + 3):
        check(workers, number)


@pytest.mark.parametrize("weights", [(3.0, 1.0, 5.0), (3.0, 0.0, 5.0)])
def test_what_is_brought_counts_as_often_as_its_weight_says(weights: tuple[float, ...]) -> None:
    workers = company(3)
    assert all(worker.data.weighs for worker in workers)
    for worker, weight in zip(workers, weights, strict=True):
        worker.bring(7)
        worker.data.weight = weight
        if not weight:
            for flat in worker.data.contributions:
                flat.fill(np.nan)
    for found in at_once(workers, Worker.round):
        for index, flat in enumerate(found[: len(DATA)]):
            total = np.zeros_like(flat)
            for worker, weight in zip(workers, weights, strict=True):
                if weight:
                    total = total + flat.dtype.type(weight) * brought(worker.me, 7, index, flat)
            assert same([flat], [total])


def test_mpi_never_sees_an_array_of_a_device() -> None:
    """What nobody shares memory for goes by MPI, from the memory of the host."""
    seen: list[Part] = []

    def by_mpi(parts: Sequence[Part]) -> None:
        for part in parts:
            seen.append(part)
            part.result[...] = part.contribution * 2

    plane = Devices(Ways(by_mpi, lambda: False))
    plane.bind([0, 1], False)
    arena = plane.arena([Shape("float32", 2000, DEVICE), Shape("float64", 5, DEVICE)], "data")
    for flat in arena.contributions:
        flat.fill(3.0)
    handles = [plane.start(part) for part in arena.parts]
    plane.wait(handles)
    assert [HOST.owns(array) for part in seen for array in part[:2]] == [True] * 4
    for _ in range(2):  # what was brought is as it was, though MPI sums in place
        assert [set(flat.get()) for flat in arena.results] == [{6.0}, {6.0}]
        assert [set(flat.get()) for flat in arena.contributions] == [{3.0}, {3.0}]
        plane.wait([plane.start(part) for part in arena.parts])


def test_a_part_of_an_arena_whose_name_another_one_has_goes_by_mpi() -> None:
    by_mpi = list[Part]()
    plane = Devices(Ways(by_mpi.extend, lambda: False))
    assert plane.neighbours.reach({0: plane.neighbours.card()})
    plane.bind([0], True)
    first = plane.arena([Shape("float32", 4096, DEVICE)], "data")
    second = plane.arena([Shape("float32", 4096, DEVICE)], "data")
    for arena, many in ((second, 0), (first, 1)):
        plane.wait([plane.start(part) for part in arena.parts])
        assert len(by_mpi) == many
    assert plane.between([0], first.parts) is None


def test_arrays_of_both_kinds_and_without_a_name_go_as_ever() -> None:
    plane = Devices(Ways(lambda parts: None, lambda: False))
    plane.bind([0], False)
    for layout, name in (
        ([Shape("float32", 2000, DEVICE), Shape("float32", 2000)], "both"),
        ([Shape("float32", 2000, DEVICE)], ""),
        ([], "nothing"),
    ):
        arena = plane.arena(layout, name)
        plane.wait([plane.start(part) for part in arena.parts])
        assert arena.in_place


def test_pinned_memory_is_two_rooms_however_large_the_arrays_are(near: bool) -> None:
    workers = company(2)
    before = cupy.counted["pinned"]
    for number in range(3):
        check(workers, number)
    assert cupy.counted["pinned"] - before == (0 if near else 2 * len(workers))
    whole = "get", "set", *(["to host", "from host"] if near else [])
    before = sum(cupy.counted[way] for way in whole)
    at_once(workers, lambda worker: worker.plane.wait(worker.start()))
    assert sum(cupy.counted[way] for way in whole) == before


# Staging.


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 2048, 5000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_staged_is_the_same_to_the_bit(dtype: str, size: int) -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 2 * size, np.uint32)
    values = words.view(dtype)[:size].copy()
    there, back = cupy.zeros(size, dtype), np.zeros(size, dtype)
    way = Staging()
    for _ in range(2):
        way.to_device(values, there)
        way.to_host(there, back)
        assert back.tobytes() == values.tobytes()
        values = values[::-1].copy()


def test_what_the_caller_gave_its_stream_before_is_staged_and_what_comes_after_finds_it() -> None:
    way, mine = Staging(), cupy.Stream(non_blocking=True)
    x, y, host = cupy.zeros(3000), cupy.zeros(3000), np.zeros(3000)
    with mine:
        x.fill(5.0)
        way.to_host(x, host)
        assert set(host) == {5.0}
        host[...] = 6.0
        way.to_device(host, x)
        host[...] = 7.0  # it was read
        y[...] = x
        mine.synchronize()
    assert set(y._is) == {6.0}


def test_staging_does_not_write_where_the_caller_still_reads() -> None:
    way = Staging()
    x, y = cupy.zeros(3000), cupy.zeros(3000)
    x.fill(1.0)
    y[...] = x  # given to the stream, and not done
    way.to_device(np.full(3000, 2.0), x)
    way.settle()
    assert set(y.get()) == {1.0}
    assert set(x.get()) == {2.0}


# What neighbours open of each other.


def opened() -> int:
    """What is open now, of all that was opened."""
    return cupy.counted["opened"] - cupy.counted["closed"]


def test_memory_is_opened_once_and_closed_when_its_owner_is_gone(near: bool) -> None:
    if not near:
        return
    gc.collect()  # what other tests have left
    before, ever = opened(), cupy.counted["opened"]
    workers = company(3)
    for number in range(3):
        check(workers, number)
    assert opened() - before == 3 * 2
    lose(workers, 1)
    go_on(workers)
    check(workers, 3)
    assert opened() - before == 2
    assert cupy.counted["opened"] - ever == 6, "what is mapped is used again"
    meet_again = Worker(7)
    meet_again.furnish()
    workers.append(meet_again)
    meet(workers)
    check(workers, 4)
    assert opened() - before == 6
    for worker in workers:
        worker.plane.bind([one.me for one in workers], False)
    assert not any(worker.plane._arenas["data"].near for worker in workers)


def test_a_worker_without_handles_has_all_go_by_the_memory_of_the_host(
    near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is enough, and all agree."""
    workers = company(3)
    give = cupy.runtime.ipcGetMemHandle
    refuser = workers[1].plane.arena([Shape("float32", 9, DEVICE)], "other").memory._memory.ptr

    def refuse(address: int) -> bytes:
        if address == workers[1].data.memory._memory.ptr:
            raise cupy.CUDARuntimeError("cudaErrorNotSupported")
        return give(address)

    assert refuser
    monkeypatch.setattr(cupy.runtime, "ipcGetMemHandle", refuse)
    for number in range(2):
        check(workers, number)
    assert [worker.data.near for worker in workers] == [False] * 3
    assert opened() >= 0


def test_who_has_met_the_others_once_more_before_a_loss_meets_them_after_it(near: bool) -> None:
    """A loss may end a meeting for some, and not for others."""
    if not near:
        return
    workers = company(3)
    check(workers, 0)
    workers[1].plane._device_sums.talk._arena.turn()
    lose(workers, 0)
    go_on(workers)
    for number in (1, 2):
        check(workers, number)


class _Dies(BaseException):
    """What a worker does not survive."""


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize(
    ("late", "moment"),
    [*((False, moment) for moment in range(5)), *((True, moment) for moment in range(3))],
)
def test_whoever_dies_in_mid_sum_the_others_sum_it_again_without_it(
    way: str, late: bool, moment: int, which: int
) -> None:
    """Before each of the times that all meet: where handles are exchanged, where what is brought
    is there, where the slices are, and where they were copied, which was in vain then; in a first
    round and in a later one."""
    if way == "staged" or (way == "whole" and (late, moment) in [(False, 4), (True, 2)]):
        return  # there are no slices to be copied
    workers = company(3)
    dying = workers[which]
    if late:
        check(workers, 0)
    for worker in workers:
        worker.bring(1)
    before = [worker.record() for worker in workers]
    happened = [0]

    def step(*_: Any, **__: Any) -> None:
        happened[0] += 1
        if happened[0] > moment:
            for worker in workers:
                if worker is not dying:
                    worker.broken.set()
            for flats in dying.data.memory.sets:
                for flat in flats:
                    flat._is.fill(np.nan)  # as CUDA leaves undefined
            raise _Dies

    talk = dying.plane._device_sums.talk
    say = talk.say
    talk.say = lambda numbers: (step(), say(numbers))[1]

    def attempt(worker: Worker) -> bool:
        try:
            return lost(worker)
        except _Dies:
            return True

    broke = at_once(workers, attempt)
    dying.node.cancel(())  # its thread is gone with its process
    survivors = [worker for worker in workers if worker is not dying]
    assert all(broke)
    for worker, record in zip(workers, before, strict=True):
        if worker is not dying:
            assert same(worker.record(), record), "the record stays as it was"
    go_on(survivors)
    sums = expected(survivors, 1)
    for found in at_once(survivors, Worker.round):
        assert same(found, sums)
    for number in (2, 3):
        check(survivors, number)


@pytest.mark.parametrize("early", [(0, 1), (0,), (1, 2)])
def test_who_has_begun_nothing_early_waits_for_nobody_who_has(
    early: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer that learns begins nothing early. A page lies in the memory of the host, behind
    what lies on the device."""
    monkeypatch.setattr(
        On, "ways_of", staticmethod(lambda shape: (FIRST if shape.size <= SMALL else STRAIGHT,))
    )
    workers, _ = on_hosts(1, 2)
    for worker in workers:
        worker.data = worker.plane.arena([Shape("float32", 20_001, DEVICE)], "model")
    pages = [worker.plane.arena([Shape("float32", 20_000)], "page") for worker in workers]

    def round_of(worker: Worker) -> list[Any]:
        parts = [*worker.data.parts, *pages[worker.me].parts, *worker.word.parts]
        begun = parts[:-1] if worker.me in early else []
        worker.handles = [worker.plane.start(part) for part in begun]
        if begun:
            worker.plane.proceed()
        worker.handles += [worker.plane.start(part) for part in parts[len(begun) :]]
        worker.plane.wait(worker.handles)
        for arena in (worker.data, pages[worker.me], worker.word):
            arena.turn()
        return [*worker.record(), *pages[worker.me].record]

    for number in (1, 2, 3):
        for worker in workers:
            worker.bring(number)
            pages[worker.me].contributions[0][:] = number + worker.me
        found = at_once(workers, round_of)
        sums = [*test_rings.expected(workers, number), np.full(20_000, 3 * number + 3, np.float32)]
        assert all(same(one, sums) for one in found)
