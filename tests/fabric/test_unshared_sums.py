"""Small arrays that lie in no shared arena: by rows in headers, once all have loaded Numba."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.backend import DEVICE
from spotmpi.errors import PeersLost
from spotmpi.fabric import Part, Shape
from spotmpi.fabric.neighbours.shared_header import ROW
from tests import fake_cupy as cupy
from tests.boxed import box, boxes, unbox
from tests.fabric.crew import (
    LIMIT,
    Worker,
    at_once,
    check,
    company,
    go_on,
    lose,
    meet,
    same,
)

KINDS = ["float64", "float32", "int32", "uint8", "int64", "float64"]


def drawn(me: int, number: int) -> list[Any]:
    """Arrays of several types, some of no whole number of words; sums depend on their order."""
    rng = np.random.default_rng((me, number))
    sizes = [1 + int(one) for one in np.random.default_rng(number).integers(0, 40, len(KINDS))]
    return [
        (rng.normal(size=size) * 100).astype(kind) for kind, size in zip(KINDS, sizes, strict=True)
    ]


def sums_of(workers: Sequence[Worker], number: int) -> list[Any]:
    """In the order of the members."""
    found = drawn(workers[0].me, number)
    for worker in workers[1:]:
        for total, one in zip(found, drawn(worker.me, number), strict=True):
            total += one
    return found


def unnamed(brought: Sequence[Any], weight: float = 1.0) -> list[Part]:
    """Parts of these, apart from their results."""
    return [Part(one, np.empty_like(one), weight) for one in brought]


def summed(worker: Worker, parts: Sequence[Part]) -> list[Any]:
    """The results of these."""
    worker.plane.wait([worker.plane.start(part) for part in parts])
    return [part.result for part in parts]


def small(worker: Worker, number: int) -> list[Any]:
    """The sums of what all draw."""
    return summed(worker, unnamed(drawn(worker.me, number)))


def by_mpi(workers: Sequence[Worker], number: int) -> None:
    """Small arrays go by MPI."""
    at_once(workers, lambda worker: small(worker, number))
    for worker in workers:
        assert len(worker.by_mpi_instead) == len(KINDS)
        worker.by_mpi_instead.clear()


def by_rows(workers: Sequence[Worker], number: int) -> None:
    """Small arrays do not go by MPI, and their sums are right to the bit."""
    for found in at_once(workers, lambda worker: small(worker, number)):
        assert same(found, sums_of(workers, number))
    assert not any(worker.by_mpi_instead for worker in workers)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_after_a_large_sum_small_ones_go_by_rows(count: int) -> None:
    workers = company(count)
    by_mpi(workers, 0)
    check(workers, 0)
    for number in range(3):
        by_rows(workers, number)
    check(workers, 1)
    by_rows(workers, 3)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_no_worker_overwrites_what_another_still_reads(count: int) -> None:
    """All sum at their own pace, one right after the other."""
    workers = company(count)
    check(workers, 0)
    pause = threading.Event()

    def many(worker: Worker) -> None:
        dawdling = random.Random(worker.me)
        taken = worker.node._unshared._rows

        class Slow(list):  # type: ignore[type-arg]
            """Rows of one turn, one of which is read late now and then."""

            def __iter__(self) -> Any:
                for row in list.__iter__(self):
                    if dawdling.random() < 0.05:
                        pause.wait(0.002)
                    yield row

        worker.node._unshared._rows = [Slow(one) for one in taken]
        for number in range(100):
            assert same(small(worker, number), sums_of(workers, number))

    at_once(workers, many)
    assert not any(worker.by_mpi_instead for worker in workers)


def test_other_members_begin_with_mpi_again() -> None:
    workers = company(3)
    check(workers, 0)
    by_rows(workers, 0)
    lose(workers, 1)
    go_on(workers)
    by_mpi(workers, 1)
    check(workers, 1)
    by_rows(workers, 2)
    newcomer = Worker(7)
    newcomer.furnish()
    workers.append(newcomer)
    meet(workers)
    by_mpi(workers, 3)  # nobody knows yet that it has loaded Numba
    check(workers, 2)
    by_rows(workers, 4)


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_loss_ends_a_small_sum_of_all(dead: int) -> None:
    workers = company(3)
    check(workers, 0)
    by_rows(workers, 0)
    living = [worker for worker in workers if worker.me != dead]
    waiting = threading.Barrier(len(living) + 1)

    def bereaved(worker: Worker) -> bool:
        waiting.wait(LIMIT)
        try:
            small(worker, 1)
        except PeersLost:
            return True
        return False

    def revoke() -> None:
        waiting.wait(LIMIT)
        for one in living:
            one.broken.set()

    revoking = threading.Thread(target=revoke)
    revoking.start()
    assert at_once(living, bereaved) == [True] * len(living)
    revoking.join(LIMIT)
    for worker in living:
        worker.plane.cancel([*worker.node._started])
    lose(workers, dead)
    go_on(workers)
    check(workers, 1)
    by_rows(workers, 2)


@pytest.mark.parametrize("weights", [(1.0, 0.5, 3.0), (1.0, 0.0, 3.0), (0.0, 0.0, 0.0)])
def test_weights_count_and_what_has_none_may_be_anything(weights: tuple[float, ...]) -> None:
    workers = company(3)
    check(workers, 0)
    expected = np.zeros(9)
    for worker, weight in zip(workers, weights, strict=True):
        if weight:
            expected = expected + weight * np.arange(9.0) * (1 + worker.me)

    def weighed(worker: Worker) -> list[Any]:
        weight = weights[worker.me]
        brought = np.arange(9.0) * (1 + worker.me) if weight else np.full(9, np.nan)
        (part,) = unnamed([brought], weight)
        return summed(worker, [part])

    for found in at_once(workers, weighed):
        assert same(found, [expected])


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_infinity() -> None:
    workers = company(2)
    check(workers, 0)

    def infinite(worker: Worker) -> list[Any]:
        sign = 1 - 2 * worker.me
        brought = np.array([np.inf * sign, 3e38, np.nan], np.float32)
        return summed(worker, unnamed([brought]))

    for (found,) in at_once(workers, infinite):
        assert np.isnan(found[0])
        assert np.isposinf(found[1])
        assert np.isnan(found[2])


def test_the_sum_may_arrive_where_the_contribution_was() -> None:
    workers = company(3)
    check(workers, 0)

    def in_place(worker: Worker) -> list[Any]:
        flat = np.full(5, 10.0**worker.me)
        return summed(worker, [Part(flat, flat)])

    for (found,) in at_once(workers, in_place):
        assert (found == 111).all()


def test_nothing_is_assumed_of_arrays_of_other_libraries() -> None:
    with boxes():
        workers = company(2)
        check(workers, 0)

        def boxed(worker: Worker) -> list[Any]:
            return summed(worker, [Part(box(np.full(5, 1.0 + worker.me)), box(np.zeros(5)))])

        for (found,) in at_once(workers, boxed):
            assert (unbox(found) == 3).all()
        assert not any(worker.by_mpi_instead for worker in workers)


def test_arrays_of_a_device_are_summed_in_the_memory_of_the_host() -> None:
    with cupy.installed():
        workers = company(2)
        check(workers, 0)

        def on_device(worker: Worker) -> list[Any]:
            brought, result = (cupy.asarray(np.full(5, value)) for value in (1.0 + worker.me, 0.0))
            return summed(worker, [Part(brought, result, 2.0)])

        for (found,) in at_once(workers, on_device):
            assert DEVICE.owns(found)
            assert (DEVICE.to_host(found) == 6).all()
        assert not any(worker.by_mpi_instead for worker in workers)


@pytest.mark.parametrize("more", [0, 1])
def test_what_fits_in_no_row_goes_by_mpi(more: int) -> None:
    workers = company(2)
    check(workers, 0)

    def filled(worker: Worker) -> list[Any]:
        brought = np.full(ROW // 8 - 1 + more, 1.0 + worker.me), np.full(1, 5.0)
        return summed(worker, unnamed(brought))

    for first, second in at_once(workers, filled):
        if not more:
            assert (first == 3).all()
            assert (second == 10).all()
    for worker in workers:
        assert len(worker.by_mpi_instead) == 2 * more


def test_one_worker_alone_leaves_it_to_mpi() -> None:
    (alone,) = workers = company(1)
    check(workers, 0)
    small(alone, 0)
    assert len(alone.by_mpi_instead) == len(KINDS)


def test_arrays_of_a_named_arena_that_is_small_go_by_rows_too() -> None:
    """Nothing large goes before them in their round, so they are not shared."""
    workers = company(2)
    check(workers, 0)
    few = [worker.plane.arena([Shape("float64", 40)], "few") for worker in workers]

    def tiny(worker: Worker) -> list[Any]:
        (part,) = few[worker.me].parts
        part.contribution[...] = 10.0**worker.me
        return summed(worker, [part])

    for (found,) in at_once(workers, tiny):
        assert (found == 11).all()
    assert not any(worker.by_mpi_instead for worker in workers)
