"""`fabric.neighbours.published_model`: readers find one publication whole, and never wait."""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.neighbours.published_model import ModelForm, PublishedModel, counting
from spotmpi.fabric.neighbours.shared_memory import Found
from spotmpi.fabric.planes.host_barrier import HostBarrier
from tests.boxed import BOXED, boxes
from tests.fabric import shown
from tests.fabric.crew import LIMIT, check, company, go_on, lose, meet
from tests.fabric.crew import Worker as Member
from tests.fabric.shown import FORM, FOURTH, whole

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start such processes, which end with the test."""
    made: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, shown.__file__, *words]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
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


@pytest.mark.matrix
def test_what_is_read_is_never_of_two_publications_and_never_older(start: Start) -> None:
    """Two publish as fast as they can, and two read."""
    models = [line(start("on")) for _ in range(2)]
    readers = [start("read", *models) for _ in range(2)]
    assert [line(reader) for reader in readers] == ["read", "read"]


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.first("killed")
def test_who_ends_in_the_middle_leaves_the_publication_before_it(start: Start, how: str) -> None:
    process = start(how)
    model = PublishedModel.of(Found(*map(int, line(process).split())), FORM)
    signalled = os.WEXITED if how == "killed" else os.WSTOPPED
    os.waitid(os.P_PID, process.pid, signalled | os.WNOWAIT)
    room = FORM.room()
    for _ in range(3):
        assert whole(model, room) == FOURTH - 1


def test_a_published_model_that_was_never_written_shows_nothing() -> None:
    model = PublishedModel.new(FORM, 7)
    assert model.read(FORM.room()) is None
    assert model.published == 7
    model.write(shown.MODEL)
    assert model.read(FORM.room()) == 7
    assert model.published == 8


def test_of_two_who_want_one_for_themselves_only_the_first_has_it() -> None:
    model = PublishedModel.new(FORM, 7)
    readers = [PublishedModel.of(model.segment.here, FORM) for _ in range(2)]
    room = FORM.room()
    for number in (7, 8):
        model.write(shown.MODEL)
        assert [one.read(room, unread=True) for one in readers] == [number, None]
        assert [one.read(room) for one in readers] == [number, number]


def test_of_two_who_copy_it_at_a_time_only_one_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PublishedModel.new(FORM, 0)
    model.write(shown.MODEL)
    first, second = (PublishedModel.of(model.segment.here, FORM) for _ in range(2))
    loops, rooms, seen = first._loops, [FORM.room(), FORM.room()], []

    def look(address: int) -> int:
        if address == first._begun:  # the first one has copied it
            seen.append(second.read(rooms[1], unread=True))
        return int(loops.look(address))

    monkeypatch.setattr(first, "_loops", SimpleNamespace(look=look, claim=loops.claim))
    assert first.read(rooms[0], unread=True) is None
    assert seen == [0]


def test_who_has_met_others_loads_nothing_more_for_a_published_model() -> None:
    barrier = HostBarrier(lambda: False)
    barrier.load()
    assert barrier._loops is counting()


def test_arrays_of_another_library_are_shown_from_the_memory_of_the_host() -> None:
    with boxes():
        boxed = BOXED.zeros("float32", 5)
        BOXED.fill(boxed, 3)
        form = ModelForm.of([boxed])
        model = PublishedModel.new(form, 0)
        model.write([boxed])
        room = form.room()
        assert model.read(room) == 0
        (array,) = form.arrays_in(room)
        assert array.tolist() == [3.0] * 5


def test_no_room_for_a_model_is_said_with_its_size() -> None:
    with pytest.raises(SpotmpiError, match="no room for 4611686018427 MB of memory"):
        PublishedModel.new(ModelForm((("float64", 1 << 58),)), 0)


MODEL = [np.zeros(9, np.float32)]
SMALL = ModelForm.of(MODEL)


def published(worker: Member, value: float) -> PublishedModel:
    """It shows a model of this number."""
    model = PublishedModel.new(SMALL, 0)
    model.write([np.full(9, value, np.float32)])
    worker.plane.neighbours.show(model)
    return model


def seen(reader: Member, worker: Member, form: ModelForm = SMALL) -> float | None:
    """The number that one finds in the other's published model."""
    model = reader.plane.neighbours.model_of(worker.me, form)
    room = form.room()
    if model is None or model.read(room) is None:
        return None
    return float(form.arrays_in(room)[0][0])


def test_neighbours_find_each_other_s_published_models_as_long_as_they_are_shown() -> None:
    first, second = workers = company(2)
    assert first.plane.neighbours.is_near(1)
    assert not first.plane.neighbours.is_near(5)
    assert seen(first, second) is None
    model = published(second, 4)
    assert seen(first, second) == 4
    model.write([np.full(9, 5, np.float32)])
    assert seen(first, second) == 5
    other = ModelForm((("float32", 10),))
    assert seen(first, second, other) is None, "of another form"
    published(second, 6)
    assert seen(first, second) == 6, "in place of the one before"
    check(workers, 0)
    second.plane.neighbours.show(None)
    assert seen(first, second) is None
    check(workers, 1)


def test_published_models_stay_through_losses_and_newcomers_have_theirs() -> None:
    workers = company(3)
    models = [published(worker, 10 + worker.me) for worker in workers]
    first, _, third = workers
    assert seen(first, third) == 12
    lose(workers, 1)
    assert seen(first, third) == 12
    go_on(workers)
    assert seen(first, third) == 12
    assert first.plane.neighbours.model_of(1, SMALL) is None
    newcomer = Member(9)
    newcomer.furnish()
    workers.append(newcomer)
    meet(workers)
    assert seen(first, newcomer) is None
    models.append(published(newcomer, 19))
    assert (seen(first, newcomer), seen(newcomer, third)) == (19, 12)


def test_those_that_do_not_share_memory_are_not_near() -> None:
    first, second = workers = company(2)
    published(second, 1)
    for worker in workers:
        worker.plane.bind([0, 1], False)
    assert not first.plane.neighbours.is_near(1)
    assert seen(first, second) is None


@pytest.mark.matrix
def test_what_is_shown_no_more_leaves_no_memory_behind() -> None:
    first, second = company(2)
    before = _mapped()
    for number in range(5):
        published(second, number)
        assert seen(first, second) == number
    second.plane.neighbours.show(None)
    assert seen(first, second) is None
    assert _mapped() == before


def _mapped() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:spotmpi")


def test_a_reader_that_is_overtaken_tries_again_and_at_last_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Overtaken twice, or each time: between its copying and its last look, two are published."""
    model = PublishedModel.new(SMALL, 0)
    model.write(MODEL)
    reader = PublishedModel.of(model.segment.here, SMALL)
    looks, until = reader._loops.look, 1

    def look(address: int) -> int:
        if address == reader._begun and model.published < until:
            for _ in range(2):
                model.write([np.full(9, model.published, np.float32)])
        return int(looks(address))

    monkeypatch.setattr(reader, "_loops", SimpleNamespace(look=look))
    room = SMALL.room()
    for until, number in [(1, 0), (5, 4), (1000, None)]:  # noqa: B007 -- `look` sees it
        assert reader.read(room) == number
        if number is not None:
            assert (SMALL.arrays_in(room)[0] == number).all()
