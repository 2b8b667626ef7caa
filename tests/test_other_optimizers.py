"""Optimizers that count their updates, and one that looks at whole arrays.

Through deaths, joins and resumes, what is trained must be what a replay of the trace trains, to the
bit.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Registry
from spotmpi.errors import UsageError
from spotmpi.fabric.sim.faults import Arrival, Kill
from spotmpi.operators import (
    Apply,
    Clip,
    Every,
    GradientAverage,
    ModelAverage,
    Operator,
    OuterUpdate,
    SlowWeights,
)
from spotmpi.optimizers import LAMB, Adam, AdamW, Optimizer
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps
from spotmpi.rounds import state_transfer
from spotmpi.strategies import SSGD, Strategy
from spotmpi.trace import records as trace
from spotmpi.training import process
from spotmpi.training.keeping import checkpoint_file
from tests.chaos.others import STRATEGIES
from tests.docs import pages
from tests.simulated import Job, Model, Result, bits, check, params
from tests.test_member import campaign, joined, left

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "Adam": lambda: Adam(lr=0.05),
    "AdamW": lambda: AdamW(lr=0.05, decay=0.1),
    "LAMB": lambda: LAMB(lr=0.05),
}

SHAPES = {
    "a": ((4, 9), "float32"), "b": ((9,), "float32"), "c": ((9, 30), "float32"),
    "d": ((3,), "float64"), "e": ((), "float32"), "f": ((2, 11), "float64"),
    "g": ((60,), "float32"),
}  # fmt: skip


def many(worker: int) -> dict[str, Any]:
    """Arrays of which some are larger than a page, and some share one."""
    chance = np.random.default_rng(worker)
    return {key: chance.standard_normal(shape).astype(d) for key, (shape, d) in SHAPES.items()}


def pull(params: dict[str, Any], samples: np.ndarray) -> dict[str, Any]:
    """A gradient whose bits depend on parameters and samples."""
    return {
        key: (array * array.dtype.type(0.1) + array.dtype.type(np.cos(samples).mean())).astype(
            array.dtype
        )
        for key, array in params.items()
    }


MANY = Model(many, pull, bits)


def check_many(result: Result) -> None:
    """All that is promised of such a training."""
    if not result.finals:
        return
    done, made = steps(result.records), result.job.optimizer
    check_exactly_once(result.records, result.job.samples, result.job.passes)
    check_replicas(result.records)
    truths = {
        bits(replay(result.records, many(first), pull, made(), result.job.strategy()))
        for first in range(done[0]["workers"][0] + 1)
    }
    assert {final.bits for final in result.finals.values()} <= truths
    assert len({final.bits for final in result.finals.values()}) == 1


@pytest.mark.parametrize("name", ["Adam", "LAMB"])
@pytest.mark.first("LAMB")
def test_workers_come_and_leave_and_die_at_any_event(tmp_path: Path, name: str) -> None:
    calm = Job(tmp_path / "calm", 3, samples=85, optimizer=OPTIMIZERS[name])
    results = campaign(calm, runs=8)
    assert joined(results)
    assert left(results)
    assert any(result.of("recovery") for result in results)


@pytest.mark.matrix
def test_a_step_whose_samples_are_all_lost_is_no_update(tmp_path: Path) -> None:
    """One sample in the last step of each pass: whoever had it is killed near there."""
    calm = Job(tmp_path, 2, samples=9, passes=4, optimizer=OPTIMIZERS["Adam"])
    events, empty = calm.run().events, 0
    for at in range(0, events, 4):
        place = tmp_path / f"{at}"
        place.mkdir()
        result = replace(calm, folder=place, kills=[Kill(0, at)]).run()
        check(result)
        empty += any(
            not any(part["weight"] for part in record["contributions"])
            for record in result.of("step")
        )
    assert empty


@pytest.mark.parametrize("name", ["Adam", "LAMB"])
@pytest.mark.first("LAMB")
def test_a_model_of_many_pages_is_learnt_while_others_come_and_die(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_transfer, "_LEAST", 16)
    layout = Layout.of(many(0))
    ends = None if OPTIMIZERS[name]().elementwise else layout.ends
    usual = layout.ends[-1] // 24
    pages = state_transfer.cut(layout.ends[-1], usual + usual % 2, ends)
    assert len(pages) > 4
    if ends:
        assert max(end - begin for begin, end in pages) == 270
    calm = Job(tmp_path / "calm", 3, samples=85, optimizer=OPTIMIZERS[name], model=MANY)
    results = campaign(calm, runs=5, holds=check_many)
    assert joined(results)
    assert any(result.of("recovery") for result in results)


def test_pages_that_cut_arrays_of_lamb_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = state_transfer.cut
    monkeypatch.setattr(state_transfer, "_LEAST", 16)
    monkeypatch.setattr(state_transfer, "cut", lambda size, usual, _ends: cut(size, usual))
    made = {"optimizer": OPTIMIZERS["LAMB"], "model": MANY}
    job = Job(tmp_path, 2, samples=85, arrivals=[Arrival(2, 40)], **made)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="replicas differ"):
        check_many(job.run())


def test_a_newcomer_that_is_not_told_the_number_of_updates_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "put_numbers", lambda *_: None)
    made = {"optimizer": OPTIMIZERS["Adam"], "model": MANY}
    job = Job(tmp_path, 2, samples=85, arrivals=[Arrival(2, 40)], **made)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="replicas differ"):
        check_many(job.run())


@pytest.mark.parametrize("name", [pytest.param("Adam", marks=pytest.mark.matrix), "LAMB"])
@pytest.mark.parametrize(
    "chain",
    [
        Clip(0.5) >> GradientAverage() >> Clip(0.25) >> Apply(),
        Apply() >> Every(3, OuterUpdate()),
        *(
            pytest.param(chain, marks=pytest.mark.matrix)
            for chain in (
                Clip(0.5) >> Apply() >> Every(3, ModelAverage()),
                GradientAverage() >> Apply() >> Every(4, SlowWeights()),
                STRATEGIES["accumulating"]().chain,
                STRATEGIES["narrowly"]().chain,
            )
        ),
    ],
    ids=str,
)
def test_with_other_strategies_and_where_workers_move_apart(
    tmp_path: Path, name: str, chain: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_transfer, "_LEAST", 16)
    made: dict[str, Any] = {"optimizer": OPTIMIZERS[name], "model": MANY, "samples": 85}
    calm = Job(tmp_path / "calm", 3, strategy=lambda: Strategy(chain), **made)
    assert joined(campaign(calm, runs=6, holds=check_many))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.first("LAMB")
def test_a_job_that_lost_every_worker_resumes_with_all_that_its_optimizer_knew(
    tmp_path: Path, name: str
) -> None:
    calm = Job(tmp_path, 3, samples=85, optimizer=OPTIMIZERS[name], model=MANY)
    events = calm.run().events
    for seed in range(3):
        place = tmp_path / f"{seed}"
        place.mkdir()
        kept = {"SPOTMPI_CHECKPOINT_EVERY": "3", "SPOTMPI_CHECKPOINT": str(place / "kept")}
        moment = events * (seed + 3) // 7
        kills = [Kill(worker, moment + 3 * worker) for worker in range(3)]
        dead = replace(calm, folder=place, seed=seed, kills=kills, environ=kept)
        assert not dead.run().finals
        found = checkpoint_file.load_latest(place / "kept", lambda _why: None)
        assert found is not None
        assert found.state["optimizer/updates/0"].tolist() == [found.step]  # type: ignore[union-attr]
        again = {**kept, "SPOTMPI_RESUME": "1"}
        whole = replace(dead, workers=2, kills=(), environ=again).run()
        assert whole.of("resume")
        check_many(whole)


def test_the_optimizer_of_the_docs_trains_as_ours_do(tmp_path: Path) -> None:
    text = (pages.DOCS / "scripts.md").read_text(encoding="utf-8")
    (block,) = (one for one in pages.blocks(text, "python") if "(Optimizer)" in one)
    (tmp_path / "theirs.py").write_text(block)
    average = runpy.run_path(str(tmp_path / "theirs.py"))["Average"]
    calm = Job(tmp_path / "calm", 3, samples=85, optimizer=lambda: average(0.05))
    assert joined(campaign(calm, runs=6))


@pytest.mark.campaign
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("workers", [2, 4, 6])
def test_a_long_campaign_of_other_optimizers(
    tmp_path: Path, name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_transfer, "_LEAST", 16)
    made: dict[str, Any] = {"optimizer": OPTIMIZERS[name], "model": MANY, "samples": 150}
    calm = Job(tmp_path / "calm", workers, **made)
    results = campaign(calm, runs=250, first=40_000, holds=check_many)
    assert len(joined(results)) > 20


# Alone.


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the tests themselves run under MPI."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_alone_it_trains_what_a_replay_of_its_trace_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SPOTMPI_TRACE", str(tmp_path / "trace.jsonl"))
    made = {"optimizer": OPTIMIZERS[name](), "strategy": SSGD()}
    with spotmpi.Trainer(many(0), **made) as one:  # type: ignore[arg-type]
        for batch in one.batches(23, batch_size=4, passes=2):
            one.step(pull(one.params, batch))
    records = list(trace.read(tmp_path / "trace.jsonl"))
    assert bits(one.params) == bits(replay(records, many(0), pull, OPTIMIZERS[name]()))


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_of_another_optimizer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(optimizer: Optimizer) -> None:
        monkeypatch.setattr(process, "_process", process.Process())  # as a job of its own
        with spotmpi.Trainer(params(0), optimizer=optimizer, strategy=SSGD()) as one:
            one.step(params(1))

    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path))
    train(spotmpi.optimizers.Momentum(lr=0.1))
    monkeypatch.setenv("SPOTMPI_RESUME", "1")
    with pytest.raises(UsageError, match="holds nothing for optimizer/mean/w, and this run needs"):
        train(Adam(lr=0.1))
