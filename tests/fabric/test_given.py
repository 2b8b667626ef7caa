"""Arrays that one worker each brings, between hosts: with threads for workers, as in `test_rings`;
`test_mpi` has real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.word_view import WordView
from spotmpi.fabric import Shape
from spotmpi.fabric.planes import named_arena, travels
from spotmpi.fabric.planes.named_arena import ways_of
from spotmpi.fabric.planes.rings import Rings
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from spotmpi.fabric.solo import SoloFabric
from spotmpi.protocol.boundary import Payload
from spotmpi.protocol.control_word import WORDS_OF_ALL, WORDS_OF_ONE
from spotmpi.protocol.host_ring import GIVEN
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.state_transfer import StateTransfer
from tests.fabric.crew import WORD, On, Worker, at_once, go_on, no_memory_to_share
from tests.fabric.test_rings import break_off, company, hosts_of

SIZE = 20_011
MOST = 2048
"""Elements of an array that go in one message, about."""

HOSTS = pytest.mark.parametrize("hosts", [(1, 1), (1, 1, 1), (2, 3), (1, 7), (7, 1), (2, 1, 4)])


@pytest.fixture(autouse=True)
def _short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (travels, named_arena):
        monkeypatch.setattr(one, "MESSAGE", 4 * MOST)
    monkeypatch.setattr(On, "ways_of", staticmethod(ways_of))


@pytest.fixture(autouse=True, params=[False, True], ids=["waiting", "ahead"])
def _ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "ahead", request.param)


def furnish(workers: Sequence[Worker], arrays: int) -> None:
    """Make an arena of so many arrays."""
    for worker in workers:
        worker.data = worker.plane.arena([Shape("uint32", SIZE, by_one=True)] * arrays, "given")
        worker.word = worker.plane.arena(WORD, "word")


def numbers(worker: int, number: int) -> Any:
    """What a worker brings to a round."""
    return np.random.default_rng((worker, number)).integers(0, 1 << 32, SIZE, np.uint32)


def bring(worker: Worker, number: int, array: int | None) -> None:
    """Bring this array, or nothing. What does not count may be anything."""
    for flat in worker.data.contributions:
        flat[:] = worker.me
    worker.data.bring_nothing()
    if array is not None:
        worker.data.bring_only(array)
        worker.data.contributions[array][:] = numbers(worker.me, number)
    worker.word.contributions[0][:] = worker.me


def check(workers: Sequence[Worker], number: int, arrays: Sequence[int | None]) -> int:
    """Do a round in which each worker brings one of these. Return the bytes that were sent."""
    lines = [worker.line for worker in workers if worker.line is not None]
    before = sum(line.bytes for line in lines)
    for worker, array in zip(workers, arrays, strict=True):
        bring(worker, number, array)
    sums = [np.zeros(SIZE, np.uint32) for _ in workers[0].data.layout]
    for worker, array in zip(workers, arrays, strict=True):
        if array is not None:
            sums[array] += numbers(worker.me, number)
    for *found, word in at_once(workers, Worker.round):
        assert all(np.array_equal(one, total) for one, total in zip(found, sums, strict=True))
        assert word[0] == sum(worker.me for worker in workers)
    assert not any(worker.by_mpi_instead for worker in workers)
    return sum(line.bytes for line in lines) - before


@HOSTS
def test_all_get_what_each_brings_and_each_host_is_sent_each_number_once(
    hosts: tuple[int, ...],
) -> None:
    workers = company(*hosts)
    furnish(workers, len(workers))
    for number in range(3):
        sent = check(workers, number, range(len(workers)))
        least = 4 * SIZE * len(workers) * (len(hosts) - 1)
        assert least <= sent < 1.05 * least + 2000 * len(workers)
    assert workers[0].node.between([*range(len(workers))], workers[0].data.parts).ways == [
        GIVEN
    ] * len(workers)


def test_what_is_not_given_anew_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` sees it: a result has the numbers of the round before the last one."""
    workers = company(1, 2)
    furnish(workers, 3)
    for number in range(3):
        check(workers, number, range(3))
    monkeypatch.setattr(Rings, "give", lambda *_: None)
    with pytest.raises(AssertionError):
        check(workers, 3, range(3))


@HOSTS
def test_all_get_what_one_brings(hosts: tuple[int, ...]) -> None:
    workers = company(*hosts)
    furnish(workers, 1)
    for giver in range(len(workers)):
        sent = check(workers, giver, [0 if one == giver else None for one in range(len(workers))])
        assert sent < 1.05 * 4 * SIZE * (len(hosts) - 1) + 2000 * len(workers)


@pytest.mark.parametrize(
    "arrays",
    [(0, 0, 1), (0, 1, 1), (2, 2, 2), (None, None, None), (1, None, 1), (2, 0, 2), (None, 0, None)],
)
def test_what_several_bring_is_summed_and_what_nobody_brings_is_nothing(
    arrays: Sequence[int | None],
) -> None:
    workers = company(1, 2)
    furnish(workers, 3)
    for number in (0, 1):  # results take turns
        check(workers, number, (0, 1, 2))
    for number in (2, 3):
        check(workers, number, arrays)


@pytest.mark.parametrize("after", [0, 1, 3, 7, 20])
@pytest.mark.parametrize("which", [0, 1, 3])
def test_after_a_loss_in_mid_round_the_others_give_what_they_have(which: int, after: int) -> None:
    workers = company(1, 2, 2)
    furnish(workers, 5)
    check(workers, 0, range(5))
    for worker in workers:
        bring(worker, 1, worker.me)
    break_off(workers, which, after)
    for worker in workers:
        assert worker.line is not None
        worker.line.come_late()
    go_on(workers)
    for number in (1, 2):
        check(workers, number, range(4))
    assert len(hosts_of(workers)) == (2 if which == 0 else 3)


def test_on_one_host_all_have_what_each_brings() -> None:
    workers = company(3)
    furnish(workers, 3)
    for number in range(3):
        check(workers, number, range(3))


def test_if_one_worker_has_no_memory_to_share_all_hosts_go_by_mpi() -> None:
    workers = company(1, 2)
    with no_memory_to_share():
        furnish(workers[2:], 3)
    furnish(workers[:2], 3)
    for number in range(2):
        for worker, array in zip(workers, range(3), strict=True):
            bring(worker, number, array)
        at_once(workers, Worker.round)
        for worker in workers:
            assert len(worker.by_mpi_instead) == 4
            worker.by_mpi_instead.clear()


def test_only_what_is_larger_than_a_message_is_given() -> None:
    one = Shape("uint32", MOST, by_one=True)
    assert GIVEN not in SharedMemoryPlane.ways_of(one)
    assert SharedMemoryPlane.ways_of(one._replace(size=MOST + 1)) == (GIVEN,)
    assert GIVEN not in SharedMemoryPlane.ways_of(Shape("uint32", SIZE))


def test_arrays_that_one_worker_each_brings_are_alike() -> None:
    (worker,) = company(1)
    given = Shape("uint32", SIZE, by_one=True)
    for other in (given._replace(size=1), given._replace(dtype="float32"), Shape("uint32", SIZE)):
        for layout in ([given, other], [other, given]):
            with pytest.raises(ValueError, match="must be alike"):
                worker.plane.arena(layout, "given")


@pytest.mark.parametrize("kind", [WORDS_OF_ONE, WORDS_OF_ALL])
def test_words_are_given(kind: int) -> None:
    """Those that scripts of torch give each other, if each has 64 KB or more."""
    fabric = SoloFabric()
    memory = RoundMemory(
        fabric, list, StateTransfer(0, WordView([np.zeros(4, np.float32)]), fabric)
    )
    memory.carry(Payload(kind, SIZE, places=3))
    assert all(shape.by_one for shape in memory.alone.layout)
