"""Sums of arrays over all workers: alone, and in simulated jobs in which workers die, join and
leave over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import ReplicaMismatch, UsageError
from spotmpi.fabric.sim.faults import Arrival
from spotmpi.optimizers import SGD
from spotmpi.protocol.boundary import Payload
from spotmpi.protocol.control_word import SUM64, SUMS, WORDS_OF_ALL, WORDS_OF_ONE
from spotmpi.rounds import memory
from spotmpi.rounds.summand import OwnWords, Words
from spotmpi.strategies import SSGD
from tests.rounds.asking import Asking, AskingOnly, check_resumed, parts_if_the_first_dies
from tests.simulated import Final, Job, bits, gradient, params
from tests.test_member import agree, campaign, joined


def test_alone_it_returns_a_copy_in_the_same_form(trainer: Any) -> None:
    table = np.arange(6.0).reshape(2, 3)
    total, workers = trainer.sum(table)
    assert workers == (0,)
    assert total.tolist() == table.tolist()
    total += 1
    assert table[0, 0] == 0.0
    given = {"a": [np.ones((2, 1), "f4"), np.full((), 3, "f4")], "b": np.zeros(0, "f4")}
    (found, _) = trainer.sum(given)
    assert found["a"][0].tolist() == [[1.0], [1.0]]
    assert found["a"][1] == 3
    assert found["b"].shape == (0,)
    assert {one.dtype for one in found["a"]} == {np.dtype("f4")}


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (3.0, r"x is a float, expected a list, tuple or dict of arrays"),
        (np.arange(3), r"x\[0\] is int64, expected float32 or float64: convert it first"),
        ([], "x is an empty list: give it at least one array"),
        ([np.ones(2), np.ones(2, "f4")], "x has arrays of float32 and of float64: sum them in two"),
    ],
)
def test_what_cannot_be_summed_is_refused_before_anything_is_sent(
    trainer: Any, x: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=r"^worker 0: trainer.sum\(\): " + said):
        trainer.sum(x)
    assert trainer.sum(np.ones(1)).total.tolist() == [1.0]


def test_of_nothing_is_nothing(trainer: Any) -> None:
    assert trainer.sum(np.zeros((0, 3))).total.shape == (0, 3)


def test_it_belongs_inside_the_block() -> None:
    one = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD())
    with pytest.raises(UsageError, match=r"trainer.sum\(\) belongs inside `with spotmpi.Trainer"):
        one.sum(np.ones(1))


class Sums(Asking):
    """Each worker brings a power of two, so the sum says whose are in it."""

    def ask(self, trainer: Any, size: int) -> Sequence[int]:
        """Sum arrays of this size, of float32, and then of float64 in every second size."""
        for dtype in ("float32", "float64")[: 1 + size % 2]:
            mine = np.full((size, 2), 2.0**trainer.worker, dtype)
            found, workers = trainer.sum({"all": mine})
            assert found["all"].dtype == dtype
            assert set(found["all"].flat) == {sum(2.0**one for one in workers)}
        return workers


def test_newcomers_are_told_what_the_others_were(tmp_path: Path) -> None:
    results = campaign(Sums(tmp_path / "calm", 3), runs=6, holds=agree)
    assert len(joined(results)) > 1


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(20_000, 22_000, 400))
def test_a_long_campaign(tmp_path: Path, first: int) -> None:
    results = campaign(Sums(tmp_path / "calm", 4), runs=400, first=first, holds=agree)
    assert len(joined(results)) > 100


class Only(AskingOnly):
    """More sums than memory is kept of."""

    def ask(self, trainer: Any, worker: int) -> Sequence[int]:
        """Some sizes often: a sum stays as it is while the next ones are made."""
        kept = []
        for size in (1, 2, 2, 2, 2, 3, 4, 5, 1):
            total, workers = trainer.sum(np.full(size, 2.0**worker))
            kept.append((total, {sum(2.0**one for one in workers)}))
        assert all(set(total.flat) == due for total, due in kept)
        return workers


@pytest.mark.parametrize("seed", [2, 5])
@pytest.mark.first("2")
def test_the_first_worker_dies_at_any_event_of_it(tmp_path: Path, seed: int) -> None:
    """Then it is in the sums of all others or of none, be they made in place or not."""
    assert (1, 2, 3) in parts_if_the_first_dies(Only(tmp_path, workers=4, seed=seed), 9)


def test_memory_of_the_last_sums_is_kept_and_no_more(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, released = list[str](), list[int]()
    kept = trainer._participant._exchange.memory
    arena_of = kept._fabric.arena

    def make(layout: Any, name: str) -> Any:
        made.append(name)
        return arena_of(layout, name)

    monkeypatch.setattr(kept._fabric, "arena", make)
    monkeypatch.setattr(
        kept._fabric, "release", lambda arena: released.append(arena.layout[0].size)
    )
    sizes = [1, 2, 1, 3, 4, 1, 5, 2, 1]
    for size in sizes:
        trainer.sum(np.ones(size))
    likely = 3  # as it came after the same two before
    assert made == [f"sum/{SUM64}/1/{size}" for size in (1, 2, 3, 4, 5, 2, likely)]
    assert released == [2, 3, 4]
    assert len(kept._sums) == memory._MOST_SUMS


@pytest.mark.parametrize("kind", [Words, OwnWords])
def test_what_workers_give_comes_whole_and_drives_out_no_sum(
    trainer: Any, kind: type[Words], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_LEAST_OWN", 1)
    trainer.sum(np.ones(7))
    kept = trainer._participant._exchange.memory._sums
    (of_gradients,) = kept.values()
    for size in range(1, 9):
        given = np.arange(size, dtype=np.uint8)
        words = kind(size, "numbers", lambda out, given=given: np.copyto(out, given))
        (total,), workers = trainer._run(trainer._participant.sum(words))
        assert total.view(np.uint8)[:size].tolist() == given.tolist()
        assert workers == (0,)
    assert any(arena is of_gradients for arena in kept.values())
    sizes = {one.size for one in kept if one.kind in (WORDS_OF_ONE, WORDS_OF_ALL)}
    assert sizes == {1, 2}, "of words"


def test_no_two_arenas_have_one_name(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would find the first one, also a newcomer that makes it later."""
    made = list[str]()
    kept = trainer._participant._exchange.memory
    arena_of = kept._fabric.arena
    monkeypatch.setattr(memory, "_LEAST_OWN", 1)
    monkeypatch.setattr(memory, "DEVICE", memory.HOST)
    monkeypatch.setattr(
        kept._fabric, "arena", lambda layout, name: [made.append(name), arena_of(layout, name)][1]
    )
    for kind in (*SUMS.values(), WORDS_OF_ONE, WORDS_OF_ALL):
        for places in (1, 2) if kind == WORDS_OF_ALL else (1,):
            for size in (8, 12):
                kept.carry(Payload(kind, size, places=places))
    kept.carry(None)
    assert len(made) == len({*made}) == 2 * (len(SUMS) + 3)


def test_who_has_only_learnt_with_a_sum_counts_in_the_next_one(trainer: Any) -> None:
    trainer.sum(np.ones(7))
    (arena,) = trainer._participant._exchange.memory._sums.values()
    arena.weighs = True
    arena.bring_nothing()
    trainer.sum(np.ones(7))
    assert arena.weight == 1.0


class Other(Job):
    """A script in which worker 1 sums something else."""

    def script(self, worker: int) -> Final:
        """Arrays of as many numbers."""
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            trainer.sum(np.ones((2, 3) if worker == 1 else (3, 2)))
        raise AssertionError("nobody noticed")


def test_workers_that_sum_other_arrays_are_told(tmp_path: Path) -> None:
    said = r"workers asked for different things, this one for an array of float64"
    with pytest.raises(ReplicaMismatch, match=said):
        Other(tmp_path, 3).run()


def test_a_resumed_job_gets_the_sums_of_then(tmp_path: Path) -> None:
    check_resumed(Sums, tmp_path)


class Large(Job):
    """A script that sums before a step what newcomers cannot be told."""

    def script(self, worker: int) -> Final:
        """In every second step."""
        began = 0
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            for batch in trainer.batches(self.samples, self.batch_size):
                rehearsal = trainer.worker not in trainer.workers
                if trainer.steps % 2 == 0:
                    trainer.sum(np.ones(200_000))
                trainer.step(gradient(trainer.params, batch))
                began = trainer.steps if rehearsal else began
        return Final(bits(trainer.params), trainer.steps, Counter(), (), False, (), began)


def test_a_newcomer_waits_while_it_cannot_be_told_of_a_sum(tmp_path: Path) -> None:
    for at in range(60, 100, 10):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        result = Large(folder, 2, samples=200, arrivals=[Arrival(2, at)]).run()
        agree(result)
        assert result.finals[2].began > 0
