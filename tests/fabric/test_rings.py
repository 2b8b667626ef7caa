"""Sums between hosts, with threads for workers and boxes for lines; `test_mpi` has real ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.backend import in_host_memory
from spotmpi.arrays.narrowing import FORMATS, NARROWED, Narrowing, narrowed_sum
from spotmpi.arrays.sums_of_hosts import sum_of_hosts
from spotmpi.fabric import Part, Shape
from spotmpi.fabric.planes import travels
from spotmpi.fabric.planes.shared_arena import SMALL
from spotmpi.protocol.host_ring import RING, STRAIGHT, orders
from tests.fabric import crew
from tests.fabric.crew import (
    DATA,
    WORD,
    On,
    Post,
    Worker,
    at_once,
    brought,
    go_on,
    in_rings,
    lose,
    lost,
    meet,
    no_memory_to_share,
    same,
)


@pytest.fixture(autouse=True)
def _short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travels, "MESSAGE", 4200)


@pytest.fixture(autouse=True, params=[False, True], ids=["waiting", "ahead"])
def _ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether workers sum while they wait, or before that."""
    monkeypatch.setattr(Worker, "ahead", request.param)


@pytest.fixture(autouse=True, params=[RING, STRAIGHT])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which way goes what is not small."""
    found: str = request.param

    def forced(shape: Shape) -> Sequence[str]:
        return in_rings(shape) if shape.narrowing is not None or shape.size <= SMALL else (found,)

    monkeypatch.setattr(On, "ways_of", staticmethod(forced))
    return found


RINGS_ONLY = pytest.mark.parametrize("way", [RING], indirect=True)
"""What is narrowed goes no other way, and who tries both forces none."""


def company(*hosts: int, form: str | None = None) -> list[Worker]:
    """Workers that have met: host by host, how many."""
    post = Post(sum(hosts))
    where = [host for host, count in enumerate(hosts) for _ in range(count)]
    workers = [Worker(me, host, post) for me, host in enumerate(where)]
    meet(workers)
    for worker in workers:
        worker.furnish(form)
    return workers


def hosts_of(workers: Sequence[Worker]) -> list[list[Worker]]:
    """Who is where."""
    found: dict[int, list[Worker]] = {}
    for worker in workers:
        found.setdefault(worker.host, []).append(worker)
    return list(found.values())


def kept_by(workers: Sequence[Worker], index: int) -> dict[int, Narrowing]:
    """Copies of what each has kept of this array."""
    found = {}
    for worker in workers:
        own = worker.data.layout[index].narrowing
        found[worker.me] = Narrowing(own.form, own.rest.copy(), own.rest.copy())
    return found


def expected(workers: Sequence[Worker], number: int) -> list[Any]:
    """The data's sums, in the order that is said."""
    hosts = hosts_of(workers)
    sums = []
    for index, flat in enumerate(workers[0].data.contributions):
        each = {one.me: brought(one.me, number, index, flat) for one in workers}
        (way,) = workers[0].node.ways_of(workers[0].data.layout[index])
        if way != RING:
            sums.append(sum_of_sums(workers, each))
            continue
        if narrowed(workers, flat):
            ids = [[one.me for one in host] for host in hosts]
            sums.append(narrowed_sum(each, ids, kept_by(workers, index)))
            continue
        total = np.empty(flat.size, flat.dtype)
        for part, order in orders(flat.size, [len(host) for host in hosts]):
            first, *others = [each[one.me][part] for which in order for one in hosts[which]]
            for other in others:
                first = first + other
            total[part] = first
        sums.append(total)
    for index, flat in enumerate(workers[0].word.contributions):
        each = {one.me: brought(one.me, number, index, flat) for one in workers}
        sums.append(sum_of_sums(workers, each))
    return sums


def narrowed(workers: Sequence[Worker], flat: Any) -> bool:
    """Whether sums of this are narrowed in rings."""
    return bool(workers[0].narrowings) and flat.dtype == NARROWED


def sum_of_sums(workers: Sequence[Worker], each: dict[int, Any]) -> Any:
    """What does not go in rings: the sums of the hosts, in their order."""
    total: Any = None
    for host in hosts_of(workers):
        of_host, *others = (each[one.me] for one in host)
        for other in others:
            of_host = of_host + other
        total = of_host if total is None else total + of_host
    return total


def check(workers: Sequence[Worker], number: int) -> None:
    """A round of all, as it must be, and nothing of it goes by MPI."""
    for worker in workers:
        worker.bring(number)
        worker.by_mpi_instead.clear()
    sums = expected(workers, number)
    for found in at_once(workers, Worker.round):
        assert same(found, sums)
    for worker in workers:
        assert not worker.by_mpi_instead
        for index, flat in enumerate(worker.data.contributions):
            assert same([in_host_memory(flat)], [brought(worker.me, number, index, flat)])


@pytest.mark.parametrize("hosts", [(1, 1), (1, 1, 1), (2, 3), (1, 7), (7, 1), (2, 1, 4)])
def test_all_workers_get_the_sums_in_the_order_that_is_said_to_the_bit(
    hosts: tuple[int, ...],
) -> None:
    workers = company(*hosts)
    for number in range(3):
        check(workers, number)


@RINGS_ONLY
def test_a_worker_waits_for_so_many_messages_of_a_ring_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(On, "ways_of", staticmethod(in_rings))
    workers = company(1, 5)
    check(workers, 0)
    assert all(worker.line is not None and worker.line.most <= 64 for worker in workers)


@RINGS_ONLY
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("hosts", [(1, 1), (2, 3), (2, 1, 4)])
def test_narrowed_sums_and_what_is_kept_of_them_are_as_they_are_said_to_be_to_the_bit(
    hosts: tuple[int, ...], form: str
) -> None:
    workers = company(*hosts, form=form)
    for number in range(3):
        kept = kept_by(workers, 0)
        ids = [[one.me for one in host] for host in hosts_of(workers)]
        flat = workers[0].data.contributions[0]
        each = {one.me: brought(one.me, number, 0, flat) for one in workers}
        narrowed_sum(each, ids, kept)
        check(workers, number)
        for worker in workers:
            large, small = worker.rests()
            assert same([large], [kept[worker.me].following])
            assert not small.any()
        assert any(rest.any() for worker in workers for rest in worker.rests())


@RINGS_ONLY
def test_fewer_bytes_are_sent() -> None:
    sent = {}
    for form in (None, *FORMATS):
        workers = company(1, 1, 1, form=form)
        check(workers, 0)
        sent[form] = sum(worker.line.bytes for worker in workers if worker.line is not None)
    whole = sent[None]
    assert whole * 0.5 < sent["bf16"] < sent["fp16"] < whole * 0.53
    assert whole * 0.25 < sent["int8"] < whole * 0.29


def sent(workers: list[Worker]) -> int:
    """Messages so far."""
    assert workers[0].post is not None
    return workers[0].post.sent


def break_off(workers: list[Worker], which: int, after: int) -> None:
    """This one is lost in the middle of a round, when so many messages have been sent. Nobody gets
    a message after that."""
    post = workers[0].post
    assert post is not None
    post.breaks = sent(workers) + after, [worker.broken for worker in workers]
    assert all(at_once(workers, lost))
    post.__init__(len(workers) - 1)  # type: ignore[misc]
    lose(workers, which)


@pytest.mark.parametrize(
    ("way", "form"), [(RING, None), (STRAIGHT, None), (RING, "int8")], indirect=["way"]
)
@pytest.mark.parametrize(
    "after", [40, *(pytest.param(after, marks=pytest.mark.matrix) for after in (0, 1, 150))]
)
@pytest.mark.parametrize("which", [0, 1, pytest.param(3, marks=pytest.mark.matrix)])
@pytest.mark.first(
    "waiting-0-40-ring-None",
    "ahead-1-40-ring-int8",
    "waiting-1-40-straight-None",
    "ahead-0-40-straight-None",
)
def test_after_a_loss_in_mid_round_the_same_is_summed_without_the_lost(
    which: int, after: int, form: str | None
) -> None:
    """What others had under way comes late, and to nobody's harm; what they had kept, they have."""
    after //= 1 if form is None else 4  # there are fewer messages
    workers = company(1, 2, 2, form=form)
    check(workers, 0)
    before = workers[2].record()
    kept = {worker.me: worker.rests() for worker in workers}
    for worker in workers:
        worker.bring(1)
    break_off(workers, which, after)
    assert same(workers[1].record(), before)
    for worker in workers:
        assert worker.line is not None
        worker.line.come_late()
        assert same(worker.rests(), kept[worker.me])
    go_on(workers)
    sums = expected(workers, 1)
    for found in at_once(workers, Worker.round):
        assert same(found, sums)
    check(workers, 2)


@pytest.mark.parametrize("after", [0, pytest.param(2, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("which", [0, 1, 3])
@pytest.mark.first(
    "waiting-ring-0-0", "ahead-ring-3-0", "ahead-straight-1-0", "waiting-straight-3-0"
)
def test_after_a_loss_amid_a_small_sum_all_who_are_left_get_it(which: int, after: int) -> None:
    """The lost one is the first of its host, by whom the others get it."""
    workers = company(1, 2, 2)
    check(workers, 0)
    for worker in workers:
        worker.bring(1)

    def start(worker: Worker) -> list[int]:
        """A large one, beside which small ones are not left to MPI."""
        worker.handles = [worker.plane.start(part) for part in worker.data.parts[1:small]]
        return worker.handles

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Worker, "start", start)
        small = 2
        before = sent(workers)
        at_once(workers, Worker.round)
        large = sent(workers) - before
        small = 3
        break_off(workers, which, large + after)
    for worker in workers:
        assert worker.line is not None
        worker.line.come_late()
    go_on(workers)
    sums = expected(workers, 1)
    for found in at_once(workers, Worker.round):
        assert same(found, sums)
    check(workers, 2)


@RINGS_ONLY
@pytest.mark.parametrize("size", [3, 700])
@pytest.mark.parametrize("host", [0, 1])
def test_what_is_small_goes_by_mpi_for_a_newcomer_and_so_for_all(host: int, size: int) -> None:
    """The others have loaded Numba before it came, as they summed something large; it has not."""
    post = Post(3)
    workers = [Worker(me, where, post) for me, where in enumerate((0, 0, host))]
    meet(workers)
    for worker in workers[:2]:
        worker.plane.arena([Shape("float32", 5000)], "sum of others")
    for worker in workers:
        worker.data = worker.word = worker.plane.arena([Shape("float32", size)], "sum")
    assert not workers[2].node.barrier.loaded
    for worker in workers:
        worker.broken.set()  # who waits for others raises PeersLost; MPI's stand-in never waits
        worker.plane.wait([worker.plane.start(part) for part in worker.data.parts])
        assert len(worker.by_mpi_instead) == 1


@RINGS_ONLY
def test_what_is_kept_waits_while_there_is_one_host() -> None:
    """Also if the round before was given up when it was half narrowed."""
    workers = company(2, 1, form="int8")
    check(workers, 0)
    for worker in workers:
        worker.bring(1)
    kept = {worker.me: worker.rests() for worker in workers}
    break_off(workers, 2, 3)
    go_on(workers)
    for number in (1, 2):
        for worker in workers:
            worker.bring(number)
        at_once(workers, Worker.round)
        for worker in workers:
            assert same(worker.rests(), kept[worker.me])


def test_when_one_host_is_left_its_workers_go_on_in_memory() -> None:
    workers = company(2, 1)
    check(workers, 0)
    for worker in workers:
        worker.bring(1)
    break_off(workers, 2, 3)
    go_on(workers)
    for worker in workers:
        worker.by_mpi_instead.clear()
    for found in at_once(workers, Worker.round):
        assert same(
            found[: len(DATA)],
            [
                brought(0, 1, index, flat) + brought(1, 1, index, flat)
                for index, flat in enumerate(workers[0].data.record)
            ],
        )
    assert not any(worker.by_mpi_instead for worker in workers)


def test_if_one_worker_has_no_memory_to_share_all_hosts_go_by_mpi() -> None:
    workers = company(1, 2)

    with no_memory_to_share():
        workers[2].furnish()
    by_mpi, still = Worker.by_mpi, dict[int, bool]()

    def watched(worker: Worker, part: Part) -> None:
        still.setdefault(worker.me, getattr(worker.data, "shared", False))
        by_mpi(worker, part)

    for worker in workers:
        worker.bring(0)
        worker.node._unshared._total = partial(watched, worker)
    at_once(workers, Worker.round)
    for worker in workers:
        assert len(worker.by_mpi_instead) == len(DATA) + len(WORD)
        assert not getattr(worker.data, "shared", False)
    # Who comes late may look for their memory until it comes to MPI's sum, which waits for all.
    assert still == {0: True, 1: True, 2: False}


def test_small_sums_of_several_hosts_go_by_mpi() -> None:
    workers = company(1, 2)
    check(workers, 0)

    def small(worker: Worker) -> float:
        one = np.full(1, 10.0**worker.me)
        worker.plane.wait([worker.plane.start(Part(one, one))])
        return float(one[0])

    assert at_once(workers, small) == [111.0] * 3


def test_what_hosts_do_not_share_is_given_to_each_worker() -> None:
    """After a loss a record goes to all: on another host it is another memory."""
    workers = company(1, 2)
    check(workers, 0)
    assert not any(worker.plane.is_everywhere(worker.data.record[0]) for worker in workers)
    workers[1].data.record[0][5] = 77
    assert workers[2].data.record[0][5] == 77
    assert workers[0].data.record[0][5] != 77


def test_a_trace_is_told_which_way_each_array_went_also_after_a_loss(way: str) -> None:
    """The last round may be committed when its members have changed."""
    workers = company(1, 2, 2)
    check(workers, 0)
    for _ in range(2):
        found = workers[0].plane.between([1, 2, 4], workers[0].data.parts)
        assert found is not None
        assert found.hosts == [[1, 2], [4]]
        assert found.ways == [way, way, "first"]
        for worker in workers[:2]:
            worker.plane.bind([0, 1], True)
    alone = company(2)[0]
    assert alone.plane.between([0, 1], alone.data.parts) is None


def tried(shape: Shape) -> Sequence[str]:
    """What is not small may go either way."""
    return in_rings(shape) if shape.size <= SMALL else (STRAIGHT, RING)


def in_turn(number: int) -> str:
    """Which of them is tried."""
    turn, place = divmod(number, 2)
    return (STRAIGHT, RING)[(turn + place) % 2]


def ways_and_choices(workers: Sequence[Worker], number: int) -> tuple[list[str], list[Any]]:
    """A round of all, right to the bit for the ways that it went; what there is to tell of it."""
    for worker in workers:
        worker.bring(number)
    ids = [[one.me for one in host] for host in hosts_of(workers)]
    found = at_once(workers, Worker.round)
    between = [
        worker.plane.between([one.me for one in workers], worker.data.parts) for worker in workers
    ]
    assert all(one == between[0] for one in between)
    assert between[0] is not None
    for sums in found:
        for index, way in enumerate(between[0].ways):
            flat = sums[index]
            each = {one.me: brought(one.me, number, index, flat) for one in workers}
            assert same([flat], [sum_of_hosts(each, ids, way)])
    return between[0].ways, between[0].choices


@RINGS_ONLY
def test_ways_are_tried_in_turn_and_all_choose_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(On, "ways_of", staticmethod(tried))
    workers = company(1, 2, 2)
    for number in range(10):
        ways, choices = ways_and_choices(workers, number)
        assert ways == [in_turn(number)] * 2 + ["first"]
    *choices, nothing = choices
    assert nothing is None
    assert [choice.size for choice in choices] == [4 * 70_001, 8 * 1_500]
    for choice in choices:
        assert choice.way == min((STRAIGHT, RING), key=choice.seconds.__getitem__)
    for number in range(10, 13):
        chosen = [*(choice.way for choice in choices), "first"]
        assert ways_and_choices(workers, number) == (chosen, [*choices, None])


@RINGS_ONLY
def test_who_made_its_arenas_in_another_order_chooses_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A newcomer may, that comes after a change of the strategy. Choosing is collective."""
    monkeypatch.setattr(On, "ways_of", staticmethod(tried))
    monkeypatch.setattr(crew, "WORD", [Shape("float64", 5120)])
    post = Post(2)
    workers = [Worker(0, 0, post), Worker(1, 1, post)]
    workers[0].furnish()
    workers[1].word = workers[1].plane.arena(crew.WORD, "word")
    workers[1].data = workers[1].plane.arena(DATA, "data")
    meet(workers)
    for number in range(12):
        for worker in workers:
            worker.bring(number)
        at_once(workers, Worker.round)
    for arena in ("data", "word"):
        first, second = (
            worker.plane.between([0, 1], getattr(worker, arena).parts) for worker in workers
        )
        assert first == second
        for choice, shape in zip(first.choices, getattr(workers[0], arena).layout, strict=True):
            assert choice is None or choice.size == shape.size * np.dtype(shape.dtype).itemsize


@RINGS_ONLY
@pytest.mark.parametrize("done", [3, 9, 10, 12])
@pytest.mark.first("waiting-3-ring", "ahead-9-ring", "waiting-12-ring")
def test_after_a_loss_the_ways_are_tried_anew(done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it comes when some have chosen, and when somebody has come."""
    monkeypatch.setattr(On, "ways_of", staticmethod(tried))
    workers = company(1, 2, 2)
    for number in range(done):
        ways_and_choices(workers, number)
    for worker in workers:
        worker.bring(done)
    break_off(workers, 1, 7)
    go_on(workers)
    for number in range(10):
        ways, choices = ways_and_choices(workers, number)
        assert ways == [in_turn(number)] * 2 + ["first"]
    assert [choice is not None for choice in choices] == [True, True, False]
    post = workers[0].post
    assert post is not None
    workers.append(Worker(9, 1, post))
    post.__init__(len(workers))  # type: ignore[misc]
    workers[-1].furnish()
    meet(workers)
    for number in range(12):
        ways, choices = ways_and_choices(workers, number)
    assert ways == [*(choice.way for choice in choices[:2]), "first"]
