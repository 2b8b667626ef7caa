"""Small calls that a script makes again and again: each takes one round, also where workers die,
join and leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import ReplicaMismatch
from spotmpi.fabric.sim.faults import LeaveNotice
from spotmpi.protocol.control_word import _BROUGHT, ControlSum
from spotmpi.rounds import memory
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.summand import GrowingSummand, OwnWords, Summand, Words
from spotmpi.strategies import SSGD
from spotmpi.training.keeping.checkpoints import Checkpoints
from tests.rounds.asking import Asking, AskingOnly, parts_if_the_first_dies
from tests.simulated import Final, Job, params
from tests.test_member import agree, campaign, joined

Call = Callable[[], Any]


def rounds_of(trainer: Any, *calls: Call) -> list[int]:
    """Make these calls; return how many rounds each of them took."""
    ledger, taken = trainer._participant._exchange.driver.ledger, []
    for call in calls:
        before = ledger.committed
        call()
        taken.append(ledger.committed - before)
    return taken


def calls_of(trainer: Any) -> list[Call]:
    """One call of each kind that may go along, each with another answer every time."""
    number = iter(range(1000))

    def total() -> None:
        now = float(next(number))
        assert trainer.sum(np.full(3, now)).total.tolist() == [now] * 3

    def narrow() -> None:
        now = float(next(number))
        assert trainer.sum([np.full(3, now, "f4")]).total[0].tolist() == [now] * 3

    def mean() -> None:
        now = next(number) / 7
        assert trainer.mean(now) == now

    def words(kind: type[Words]) -> None:
        now = next(number) % 256
        given = kind(5, "bytes", lambda out: out.fill(now))
        (found,), workers = trainer._run(trainer._participant.sum(given))
        assert found.view(np.uint8)[:5].tolist() == [now] * 5
        assert workers == (0,)

    return [total, narrow, mean, lambda: words(Words), lambda: words(OwnWords)]


def test_calls_that_come_again_in_the_same_order_take_one_round_each(trainer: Any) -> None:
    calls = calls_of(trainer)
    assert rounds_of(trainer, *calls) == [2] * 5
    assert rounds_of(trainer, *calls) == [2, 2, 1, 1, 1]
    for _ in range(3):
        assert rounds_of(trainer, *calls) == [1] * 5


def test_so_does_a_call_after_each_step(trainer: Any) -> None:
    grads = {"w": np.zeros(5, "f4"), "b": np.array(0.0)}
    loop: list[Call] = [lambda: trainer.step(grads), lambda: trainer.mean(trainer.steps)]
    rounds_of(trainer, *loop, *loop, *loop)
    assert rounds_of(trainer, *loop, *loop) == [1] * 4


def test_another_call_than_the_likely_one_takes_two(trainer: Any) -> None:
    total, narrow, mean, _, gather = calls_of(trainer)
    rounds_of(trainer, *[total, narrow, mean] * 3)
    assert rounds_of(trainer, total, gather, mean) == [1, 2, 2]


def test_so_does_the_same_one_of_another_size(trainer: Any) -> None:
    def summed(size: int) -> None:
        assert trainer.sum(np.full(size, 7.0)).total.tolist() == [7.0] * size

    rounds_of(trainer, *[lambda: summed(4)] * 3)
    assert rounds_of(trainer, lambda: summed(4), lambda: summed(3)) == [1, 2]


def test_who_asks_for_something_brings_nothing_else_again(trainer: Any) -> None:
    """Else each call would sum the last gradient once more."""
    total, _, mean, *_ = calls_of(trainer)
    grads = {"w": np.ones(5, "f4"), "b": np.array(1.0)}
    loop: list[Call] = [lambda: trainer.step(grads), lambda: trainer.step(grads), total, mean]
    rounds_of(trainer, *loop, *loop, *loop)
    data = trainer._training.sync.arena
    for call in loop:
        assert rounds_of(trainer, call) == [1]
        assert any(flat.any() for flat in data.record) == (call in loop[:2])


def test_what_is_large_does_not_go_along(trainer: Any) -> None:
    def summed(size: int) -> None:
        trainer.sum(np.ones(size))

    for size, many in ((memory._MOST_ALONG // 2, 1), (memory._MOST_ALONG // 2 + 1, 2)):
        rounds_of(trainer, *[lambda size=size: summed(size)] * 3)
        assert rounds_of(trainer, lambda size=size: summed(size)) == [many]


def test_a_sum_that_stands_for_a_step_counts_one_also_at_once(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, armed = Summand.of(np.ones(3)), []
    faults = trainer._participant.context.faults
    monkeypatch.setattr(faults, "arm", lambda steps: armed.extend(steps))

    def step() -> None:
        trainer._run(trainer._participant.sum(mine, step=True))

    assert rounds_of(trainer, *[step] * 4) == [2, 2, 2, 1]
    assert trainer.steps == 4
    assert armed == [0, 1, 2, 3], "each in the round that it is committed with"


def test_a_sum_whose_arrays_come_one_by_one_is_not_brought_before_they_are_there(
    trainer: Any,
) -> None:
    arrays = [np.full(2, 3.0), np.full(3, 5.0)]
    whole = Summand.of(arrays)

    def early() -> None:
        given = trainer._run(trainer._participant.begin_sum(GrowingSummand(whole)))
        for array in arrays:
            trainer._run(given.add(array))
        ((found,), _) = trainer._run(given.end(True))
        assert found.tolist() == [3.0] * 2 + [5.0] * 3

    def at_once() -> None:
        (found, _) = trainer.sum(arrays)
        assert np.concatenate(found).tolist() == [3.0] * 2 + [5.0] * 3

    rounds_of(trainer, *[at_once] * 3)
    assert rounds_of(trainer, at_once, early, at_once, early) == [1, 2, 1, 2]


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[ControlSum]:
    """What all workers have heard in rounds in which some have brought what they ask for."""
    found, hear = [], RoundMemory.hear

    def heard(self: RoundMemory, workers: int) -> ControlSum:
        word = hear(self, workers)
        if word.values[_BROUGHT]:
            found.append(word)
        return word

    monkeypatch.setattr(RoundMemory, "hear", heard)
    return found


def summed(trainer: Any, size: int, dtype: str = "float64") -> Sequence[int]:
    """Have each worker bring a power of two, so the sum says whose are in it."""
    found, workers = trainer.sum(np.full(size, 2.0**trainer.worker, dtype))
    assert set(found) == {sum(2.0**one for one in workers)}
    return workers


class Repeats(Asking):
    """The same small calls each time, among other things."""

    def ask(self, trainer: Any, size: int) -> Sequence[int]:
        """Two sums with a mean in between."""
        summed(trainer, 2)
        assert trainer.mean(0.1) == 0.1
        return summed(trainer, 3, "float32")


def test_all_agree_on_what_goes_along_as_workers_die_join_and_leave(
    tmp_path: Path, brought: list[ControlSum]
) -> None:
    results = campaign(Repeats(tmp_path / "calm", 3), runs=12, holds=agree)
    assert len(joined(results)) > 2
    assert len({word.workers for word in brought}) > 2
    assert all(word.brought for word in brought)


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(30_000, 35_000, 500))
def test_a_long_campaign(tmp_path: Path, first: int) -> None:
    results = campaign(Repeats(tmp_path / "calm", 4), runs=500, first=first, holds=agree)
    assert len(joined(results)) > 100


class Stopped(Job):
    """A script that is to stop, and cannot: it goes on with the answer that it was about to get."""

    def script(self, worker: int) -> Final:
        """The same calls all the time."""
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            for _ in range(14):
                trainer.step({"w": np.zeros(5, "f4"), "b": np.array(0.0)})
                for _ in range(2):
                    summed(trainer, 2)
        return Final(b"", 0, Counter(), (), False, (), 0)


def test_an_answer_stays_while_all_find_that_they_cannot_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brought: list[ControlSum]
) -> None:
    keep, refused = Checkpoints.keep, []

    def refuse(self: Checkpoints, step: int, complete: bool) -> bool:
        return keep(self, step, complete) if complete else bool(refused.append(step))

    monkeypatch.setattr(Checkpoints, "keep", refuse)
    for at in range(200, 900, 50):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        notices = [LeaveNotice(worker, at) for worker in range(3)]
        environ = {"SPOTMPI_CHECKPOINT": str(folder / "kept")}
        Stopped(folder, 3, seed=1, environ=environ, notices=notices).run()
    assert len(refused) > 5
    assert brought


class GivesWords(AskingOnly):
    """What one worker gives, and what each has, among steps, so that all of it goes along."""

    def ask(self, trainer: Any, worker: int) -> Sequence[int]:
        """Each time other bytes."""

        def words(kind: type[Words], size: int, now: int | None) -> Any:
            write = None if now is None else lambda out: out.fill(now)
            return trainer._run(trainer._participant.sum(kind(size, "bytes", write)))

        for number in range(5):
            now = 10 * number + worker
            found, workers = words(OwnWords, 5, now)
            had = {
                one: {*there.view(np.uint8)[:5]} for one, there in zip(workers, found, strict=True)
            }
            assert had == {one: {10 * number + one} for one in workers}
            source = workers[0]
            (there,), workers = words(Words, 9, now if worker == source else None)
            assert source not in workers or {*there.view(np.uint8)[:9]} == {10 * number + source}
            trainer.step({"w": np.zeros(5, "f4"), "b": np.array(0.0)})
        return workers


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.first("2")
def test_words_keep_their_places_where_a_worker_dies(
    tmp_path: Path, seed: int, brought: list[ControlSum]
) -> None:
    assert (1, 2, 3) in parts_if_the_first_dies(GivesWords(tmp_path, workers=4, seed=seed), 17)
    assert {word.workers for word in brought} == {3, 4}


class Only(AskingOnly):
    """The same call all the time."""

    def ask(self, trainer: Any, worker: int) -> Sequence[int]:
        """Sum, and look at each sum again when the next one is there."""
        last = None
        for _ in range(6):
            total, workers = trainer.sum(np.full(2, 2.0**worker))
            if last is not None:
                assert set(last[0]) == last[1]
            last = total, {sum(2.0**one for one in workers)}
            assert set(total) == last[1]
        return workers


def test_who_dies_is_in_the_answer_of_all_others_or_of_none(
    tmp_path: Path, brought: list[ControlSum]
) -> None:
    assert (1, 2, 3) in parts_if_the_first_dies(Only(tmp_path, workers=4, seed=2), 5)
    assert {word.workers for word in brought} == {3, 4}


class NearTheLimit(AskingOnly):
    """Sums that are not far from the largest number, and steps where one of them was likely."""

    def ask(self, trainer: Any, worker: int) -> Sequence[int]:
        """What is left of a sum would be too large if it were summed again."""
        grads = {"w": np.zeros(5, "f4"), "b": np.array(0.0)}
        for number in range(12):
            trainer.step(grads)
            if number % 4 < 3:
                (total, *_), workers = trainer.sum(np.full(2, 4e307))
                assert total == 4e307 * len(workers)
        return workers


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.first("0")
def test_what_is_left_of_a_sum_is_not_summed_again(tmp_path: Path, seed: int) -> None:
    """In whichever kind of plane."""
    with np.errstate(over="raise"):
        assert NearTheLimit(tmp_path, workers=4, seed=seed).run().finals[0].means == (0, 1, 2, 3)


class Mixed(AskingOnly):
    """A script whose worker 1 sums arrays as they come."""

    def ask(self, trainer: Any, worker: int) -> Sequence[int]:
        """What the others bring at once it brings one by one."""
        mine = [np.full(2, 2.0**worker), np.full(1, 2.0**worker)]
        for number in range(6):
            if worker != 1 or number < 3:
                (total, _), workers = trainer.sum(mine)
            else:
                early = trainer._run(
                    trainer._participant.begin_sum(GrowingSummand(Summand.of(mine)))
                )
                for array in mine:
                    trainer._run(early.add(array))
                (total, *_), workers = trainer._run(early.end(True))
            assert set(total) == {sum(2.0**one for one in workers)}
        return workers


def test_a_worker_whose_arrays_come_one_by_one_has_the_others_wait_for_them(
    tmp_path: Path, brought: list[ControlSum]
) -> None:
    assert (1, 2, 3) in parts_if_the_first_dies(Mixed(tmp_path, workers=4, seed=2), 9)
    assert {word.brought for word in brought} == {False}, "the others, but not this one"


class Other(Job):
    """A script in which worker 1 once sums something else."""

    def script(self, worker: int) -> Final:
        """Arrays of as many numbers, and so of the same place."""
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            for number in range(6):
                trainer.sum(np.ones((2, 3) if (worker, number) == (1, 5) else (3, 2)))
        raise AssertionError("nobody noticed")


def test_workers_that_sum_other_arrays_are_told_also_where_these_have_come_at_once(
    tmp_path: Path, brought: list[ControlSum]
) -> None:
    said = r"workers asked for different things, this one for an array of float64"
    with pytest.raises(ReplicaMismatch, match=said):
        Other(tmp_path, 3).run()
    assert len(brought) > 2 * 3, "not only in the two calls before"
