"""Loaders of Hugging Face's Accelerate: what lost workers leave, newcomers, and checkpoints."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")
pytest.importorskip("accelerate", reason="no accelerate: python -m pip install accelerate")

import torch.distributed as dist  # noqa: E402
from accelerate.data_loader import prepare_data_loader  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    DistributedSampler,
    SubsetRandomSampler,
)

from spotmpi.errors import UsageError  # noqa: E402
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice  # noqa: E402
from spotmpi.torch import belongings  # noqa: E402
from spotmpi.torch.belongings import Belongings  # noqa: E402
from spotmpi.torch.loaders import Dealt, Orders  # noqa: E402
from spotmpi.torch.passes import Pass, Passes, Way  # noqa: E402
from spotmpi.torch.torch_rounds import Rounds  # noqa: E402
from tests import simulated  # noqa: E402
from tests.simulated import Result  # noqa: E402
from tests.torch.accelerates_job import Shards  # noqa: E402
from tests.torch.dealt_job import PASSES, SAMPLES  # noqa: E402
from tests.torch.test_elastic_sampler import Company, company  # noqa: E402, F401
from tests.torch.test_newcomers import made  # noqa: E402, F401
from tests.torch.test_process_group import alone  # noqa: E402, F401

N = 40
WORKERS = 3
WAYS = "loop", "trainer", "two", "turns"

# In one process.


def loader(many: int = N, batch: int = 4, **how: Any) -> Any:
    """One of the first of four workers, as Accelerate makes it."""
    usual = DataLoader(range(many), batch)
    return prepare_data_loader(usual, num_processes=4, process_index=0, put_on_device=False, **how)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("lost_at", [0, 1, 2])
def test_samples_that_nobody_has_used_are_counted_though_it_reads_ahead(
    company: Company,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    workers: int,
    lost_at: int,
) -> None:
    usual = DataLoader(range(48), 4, num_workers=workers)
    mine = prepare_data_loader(usual, num_processes=4, process_index=0, put_on_device=False)
    given = 0
    for number, batch in enumerate(mine):
        if number == lost_at:
            company.there = (0, 2, 3)
        company.use(batch)
        given += 1
    assert given == 3
    assert company.missed == 4 * (3 - lost_at)
    dist.destroy_process_group()
    said = f"spotmpi: {4 * (3 - lost_at)} samples of lost workers were used by nobody"
    assert said in capsys.readouterr().err


def test_parts_of_batches_are_counted(company: Company) -> None:  # noqa: F811
    company.there = (0, 1)
    for batch in loader(batch=8, split_batches=True):
        assert len(batch) == 2
        company.use(batch)
    assert company.missed == 2 * N // 4


@pytest.mark.parametrize(
    ("how", "sampler"),
    [
        ({"even_batches": False}, None),
        ({"num_processes": 2}, None),
        ({}, SubsetRandomSampler(range(N))),
    ],
)
def test_what_workers_may_have_more_of_or_in_another_order_is_not_followed(
    company: Company,  # noqa: F811
    how: dict[str, Any],
    sampler: Any,
) -> None:
    company.there = (0,)
    usual = DataLoader(range(N), 4, sampler=sampler)
    known = {
        "num_processes": 4,
        "process_index": 0,
        "put_on_device": False,
        "use_seedable_sampler": True,
        **how,
    }
    for batch in prepare_data_loader(usual, **known):
        company.use(batch)
    assert company.missed == 0


def test_a_test_within_a_pass_is_no_pass_of_its_own(
    company: Company,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Newcomers could not begin it: in their rehearsals they have no such step."""
    group: Any = company._group
    passes = group.collectives.passes
    rests: list[bool] = []

    def rest(within: Any = None) -> None:
        if within is None:
            rests.append(passes.now is None)

    monkeypatch.setattr(group.entrance, "rest", rest)
    train, test = loader(), loader()
    for _ in loader():  # a test before all training does not last
        pass
    for number in range(3):
        for batch in train if number < 2 else test:
            for _ in loader():
                pass
            company.use(batch)
            for _ in loader():  # also behind the last batch
                pass
        for _ in loader():  # and while the pass lasts
            pass
    # Training with another loader is a pass of its own, but not one that newcomers can begin.
    assert passes.trained == [False, True, True, True]
    assert rests == [True, True, True]  # no pass is under way, and a checkpoint says so
    assert passes.goes_through(None)


def test_a_loader_that_is_held_keeps_no_other_from_counting(company: Company) -> None:  # noqa: F811
    """Torch's own, whose passes end where their loops do."""
    group: Any = company._group
    passes = group.collectives.passes
    held = iter(DataLoader(range(N), 4, sampler=DistributedSampler(range(N), 4, 0)))
    next(held)
    for batch in DataLoader(range(N), 4, sampler=DistributedSampler(range(N), 4, 0)):
        company.use(batch)
    assert passes.trained == [True, True]


def test_a_pass_that_is_known_to_train_lasts_though_no_gradients_are_summed() -> None:
    """In a rehearsal of one batch a script may sum none."""
    for trained, within in [([True], True), ([False], False), ([], False)]:
        passes = Passes([*trained])
        train, test = object(), object()
        passes.begin(one := Pass((), 0), Way(train, lasts=True), rehearsed=True)
        passes.leave(one)
        passes.end_last(test)
        assert passes.within_another(test) == within
        passes.end_last(train)
        assert not passes.within_another(test)


def test_what_is_no_order_is_refused() -> None:
    usual = DataLoader(range(N), 4, shuffle=True, generator=torch.Generator())
    followed = prepare_data_loader(
        usual, num_processes=4, process_index=0, put_on_device=False
    ).base_dataloader
    orders = Orders()
    orders.begin(Dealt(followed, followed.batch_sampler, 4, N, by_batches=True))
    ((number, state),) = orders.told()
    assert number == 0
    orders.take([(0, state), (1, b"of a loader that is not there")])
    for nonsense in (b"", state[:-1]):
        with pytest.raises(UsageError, match="samples cannot be drawn as before"):
            orders.take([(0, nonsense)])


def test_who_takes_the_first_worker_s_place_has_its_share(company: Company) -> None:  # noqa: F811
    """Accelerate knows nothing of a rank beyond the size."""
    group: Any = company._group
    standing = group.collectives.standing
    there = prepare_data_loader(
        DataLoader(range(N), 4), num_processes=4, process_index=7, put_on_device=False
    )
    standing.ranks[0], standing.shares[7], group.collectives.rank = 7, 0, 7
    standing.alive = (1, 2, 3, 7)
    with torch.no_grad():
        assert [batch[0].item() for batch in there] == [0, 16, 32]


# How far a script for the Trainer is.


@dataclass
class TrainerState:
    """As Transformers has it: made of plain values, but for these two alike on all workers."""

    global_step: int = 0
    log_history: list[dict[str, float]] = field(default_factory=list)
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True


def test_a_newcomer_is_told_how_far_the_trainer_is(made: Any) -> None:  # noqa: F811
    theirs = TrainerState(7, [{"loss": 0.5}])
    belongings.MADE[:] = [weakref.ref(theirs)]
    given = Belongings()
    given.look()
    mine = TrainerState(2, is_world_process_zero=False)
    belongings.MADE[:] = [weakref.ref(mine)]
    taken = Belongings()
    taken.look()
    taken.check(given.described)
    taken.take(given.described, given.numbers)
    assert mine == TrainerState(7, [{"loss": 0.5}], is_world_process_zero=False)


# Among workers that die, come and stop at any event.


def check(result: Result) -> None:
    """All hold the same; and what was used and what was missed are all samples."""
    finals = result.finals
    assert len({final.bits for final in finals.values()}) <= 1
    for worker, final in finals.items():
        if worker < WORKERS and final.means:
            # More workers than there were at the start use some samples once more.
            assert max(final.gradients.values()) == 1 or result.job.arrivals
            # The batch that a newcomer has rehearsed with may be one that nobody else has used.
            over = len(+final.gradients) + final.means[0] - PASSES * SAMPLES
            assert 0 <= over <= 2 * len(result.job.arrivals)
        assert worker < WORKERS or final.began or not final.gradients


@pytest.mark.parametrize(
    "seeds", [range(0, 60, 7), pytest.param(range(60), marks=pytest.mark.matrix)], ids=str
)
@pytest.mark.parametrize("way", WAYS)
def test_newcomers_hold_the_same_whoever_dies(tmp_path: Path, way: str, seeds: range) -> None:
    results = simulated.campaign(
        Shards(tmp_path / "calm", WORKERS, way=way),
        seeds,
        lambda events, seed: {
            "kills": [Kill(seed % 5, 1 + 7 * seed % events)][: seed % 3],
            "arrivals": [Arrival(3, 1 + 11 * seed % events), Arrival(4, 1 + 17 * seed % events)],
        },
        check,
    )
    came = [final.began for result in results for final in result.finals.values()]
    # They join only where a loader begins that was the last one, too.
    assert way == "turns" or sum(map(bool, came)) >= len(seeds) / 2, came


def test_a_newcomer_whose_script_goes_another_way_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on."""
    real, said = Rounds.turned_away, list[str]()

    def noted(self: Rounds, why: str) -> Any:
        said.append(why)
        return real(self, why)

    monkeypatch.setattr(Rounds, "turned_away", noted)
    result = Shards(tmp_path, WORKERS, arrivals=[Arrival(3, 150)], way="astray").run()
    check(result)
    assert {*result.finals} == {*range(WORKERS)}
    assert len(said) == 1
    assert said[0].startswith("it has come to another pass than the others")


def used(result: Result) -> Counter[Any]:
    """Return how often each sample was used in each pass."""
    counts = [Counter[Any](final.gradients) for final in result.finals.values()]
    assert all(one == counts[0] for one in counts)
    return counts[0]


def job(folder: Path, **changes: Any) -> Shards:
    """A job that keeps checkpoints in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {"SPOTMPI_CHECKPOINT": str(folder / "kept"), "SPOTMPI_CHECKPOINT_EVERY": "3"}
    return replace(Shards(folder, WORKERS, environ=environ), **changes)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Runs in which nothing happens, by the script's way."""
    return {way: job(tmp_path_factory.mktemp("calm"), way=way).run() for way in WAYS}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.first(*(f"{way}-{seed}" for way in WAYS for seed in range(0, 12, 2)))
def test_a_job_that_was_told_to_stop_goes_on_to_the_bit(
    tmp_path: Path, calm: dict[str, Result], way: str, seed: int
) -> None:
    """With the samples that are left, in the order in which they were drawn before."""
    moment = 1 + (seed * calm[way].events) // 12
    notices = [LeaveNotice(worker, moment) for worker in range(WORKERS)]
    first = job(tmp_path, notices=notices, seed=seed, way=way)
    stopped = first.run()
    if not all(final.stopped for final in stopped.finals.values()):
        check(stopped)  # it was at its end
        return
    environ = {**first.environ, "SPOTMPI_RESUME": "1"}
    again = replace(first, environ=environ, notices=()).run()
    whole = all(len(record["workers"]) == WORKERS for record in stopped.of("step"))
    (bits,) = {final.bits for final in again.finals.values()}
    assert ({bits} == {final.bits for final in calm[way].finals.values()}) == whole
    counts = used(stopped) + used(again)
    assert max(counts.values()) == 1
    assert counts.total() + again.finals[0].means[0] == PASSES * SAMPLES


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.first("0", "1", "2", "3")
def test_a_job_that_was_stopped_twice_in_a_pass_goes_on(
    tmp_path: Path, calm: dict[str, Result], seed: int
) -> None:
    """One that began within another pass."""
    events = calm["two"].events
    notices = [LeaveNotice(worker, events // 2 + 20 * seed) for worker in range(WORKERS)]
    first = job(tmp_path, notices=notices, seed=seed, way="two")
    environ = {**first.environ, "SPOTMPI_RESUME": "1"}
    early = [LeaveNotice(worker, events // 5 + 20 * seed) for worker in range(WORKERS)]
    jobs = [first, replace(first, environ=environ, notices=early)]
    runs = [one.run() for one in (*jobs, replace(first, environ=environ, notices=()))]
    counts = sum((used(run) for run in runs), Counter[Any]())
    missed = max(final.means[0] for final in runs[-1].finals.values())
    assert len(+counts) + missed == PASSES * SAMPLES
    assert missed <= 2 * 2 * WORKERS  # where workers hear of a stop one step after others


@pytest.mark.parametrize("seed", range(3))
def test_newcomers_join_a_job_that_was_resumed_in_such_a_pass(
    tmp_path: Path, calm: dict[str, Result], seed: int
) -> None:
    events = calm["two"].events
    notices = [LeaveNotice(worker, events * 6 // 10) for worker in range(WORKERS)]
    first = job(tmp_path, notices=notices, way="two")
    assert [*used(first.run())][-1][0] == PASSES // 2
    environ = {**first.environ, "SPOTMPI_RESUME": "1"}
    late = Arrival(WORKERS, events // 6 * (seed + 1) // 2)
    again = replace(first, environ=environ, notices=(), arrivals=[late]).run()
    assert len({final.bits for final in again.finals.values()}) == 1
    assert again.finals[WORKERS].began


def test_a_script_that_goes_another_way_is_not_resumed(
    tmp_path: Path, calm: dict[str, Result]
) -> None:
    """What is left would be taken from another pass."""
    events = calm["two"].events
    notices = [LeaveNotice(worker, events * 3 // 4) for worker in range(WORKERS)]
    first = job(tmp_path, notices=notices, way="two")
    first.run()
    environ = {**first.environ, "SPOTMPI_RESUME": "1"}
    with pytest.raises(UsageError, match="it has not gone through the same passes"):
        replace(first, environ=environ, notices=(), way="small").run()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.first("loop-2", *(f"{way}-{seed}" for way in WAYS for seed in range(0, 12, 3)))
def test_on_other_numbers_of_workers_all_hold_the_same(
    tmp_path: Path, calm: dict[str, Result], way: str, seed: int
) -> None:
    """In one of these jobs nothing is left of the pass in which it was stopped: the tests after it
    are still within it, for a newcomer as for the others."""
    draw = random.Random(seed)
    events = calm[way].events
    moment = draw.randrange(events)
    notices = [LeaveNotice(worker, moment) for worker in range(WORKERS)]
    first = job(tmp_path, notices=notices, seed=seed, way=way)
    first.run()
    workers = draw.randrange(2, 5)
    environ = {**first.environ, "SPOTMPI_RESUME": "1"}
    again = replace(
        first,
        environ=environ,
        workers=workers,
        notices=(),
        kills=[Kill(worker, draw.randrange(events)) for worker in range(draw.randrange(2))],
        arrivals=[Arrival(workers, draw.randrange(events))] * draw.randrange(2),
    ).run()
    assert len({final.bits for final in again.finals.values()}) == 1
