"""Samples of lost workers are used by others, or counted: a loader's, in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler  # noqa: E402

import spotmpi.torch  # noqa: E402
from spotmpi.errors import UsageError  # noqa: E402
from spotmpi.fabric.sim.faults import Kill  # noqa: E402
from spotmpi.torch.collectives import Collectives  # noqa: E402
from spotmpi.torch.dealing import Deal  # noqa: E402
from spotmpi.torch.passes import DealtPass  # noqa: E402
from spotmpi.torch.torch_rounds import Rounds  # noqa: E402
from tests import simulated  # noqa: E402
from tests.simulated import Final, Job, Result  # noqa: E402
from tests.torch.calls import called_in  # noqa: E402
from tests.torch.test_process_group import alone  # noqa: E402, F401

N = 40


class Company:
    """Four workers, of which this process is one: what they do is what the test says."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.used: Counter[int] = Counter()
        self.there = (0, 1, 2, 3)

    @property
    def there(self) -> tuple[int, ...]:
        """Those that live."""
        alive: tuple[int, ...] = self._group.collectives.alive
        return alive

    @there.setter
    def there(self, workers: tuple[int, ...]) -> None:
        self._group.collectives.standing.alive = workers

    @property
    def missed(self) -> int:
        """Samples that nobody has used."""
        there: int = self._group.collectives.passes.missed
        return there

    def use(self, batch: torch.Tensor) -> None:
        """A sum of gradients of all, after this worker's batch."""
        self.used.update(batch.tolist())
        self._group._sum_up()


@pytest.fixture
def company(alone: Any) -> Company:  # noqa: F811
    alone.collectives.standing.begin(4)
    return Company(alone)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_without_a_loss_it_gives_what_torch_s_gives(
    company: Company, workers: int, shuffle: bool
) -> None:
    ours = spotmpi.torch.ElasticSampler(range(N + 1), shuffle=shuffle, seed=3)
    theirs = DistributedSampler(range(N + 1), 4, 0, shuffle=shuffle, seed=3)
    known = {"batch_size": 4, "num_workers": workers, "persistent_workers": bool(workers)}
    loaders = [DataLoader(range(N + 1), sampler=one, **known) for one in (ours, theirs)]
    assert len(loaders[0]) == len(loaders[1]) == 3
    for epoch in range(2):
        for one in (ours, theirs):
            one.set_epoch(epoch)
        for mine, other in zip(*loaders, strict=True):
            assert mine.tolist() == other.tolist()
            company.use(mine)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_a_lost_worker_has_left_is_used_in_the_same_pass(
    company: Company, workers: int, at: int
) -> None:
    """Also if all has been drawn by then, or all has been given; in the same batches, however far
    ahead a loader draws."""
    sampler = spotmpi.torch.ElasticSampler(range(N), 4, 0, shuffle=False)
    loader = DataLoader(
        range(N), 4, sampler=sampler, num_workers=workers, persistent_workers=bool(workers)
    )
    given = []
    for batch in loader:
        if len(given) == at:
            company.there = (0, 2)
        given.append(len(batch))
        company.use(batch)
    left = [one for lost in (1, 3) for one in range(lost, N, 4)[4 * at :]]
    assert company.used == Counter([*range(0, N, 4), *left[::2]])
    assert given == [4, 4, 2, *{0: [4, 4, 2], 1: [4, 2], 2: [2]}[at]]
    assert len(loader) == 5
    company.used.clear()
    for batch in loader:
        company.use(batch)
    assert company.used == Counter(range(0, N, 2))
    assert len(spotmpi.torch.ElasticSampler(range(N), 4, 0)) == N // 2  # after a loss
    assert company.missed == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_loader_draws_and_leaves_out_is_not_what_comes_later(
    company: Company, workers: int
) -> None:
    sampler = spotmpi.torch.ElasticSampler(range(N), shuffle=False, drop_last=True)
    loader = DataLoader(range(N), 4, sampler=sampler, drop_last=True, num_workers=workers)
    given = []
    for batch in loader:
        given.append(batch.tolist())
        if len(given) == 1:
            company.there = (0, 2)
        company.use(batch)
    left = [one for lost in (1, 3) for one in range(lost, N, 4)]  # they had used nothing
    assert given == [[0, 4, 8, 12], [16, 20, 24, 28], left[0:8:2], left[8:16:2]]


@pytest.mark.parametrize(("drop_last", "last"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_no_batch_has_a_single_sample(company: Company, drop_last: bool, last: list[int]) -> None:
    """As many modules cannot train with it, and a script knew of none before the loss."""
    sampler = spotmpi.torch.ElasticSampler(range(36), shuffle=False, drop_last=drop_last)
    given = []
    for batch in DataLoader(range(36), 4, sampler=sampler):
        given.append(len(batch))
        company.use(batch)
    assert given == last
    assert company.used.keys() == {*range(0, 36 - 4 * drop_last, 4)}


def test_a_look_into_a_loader_does_not_disturb_who_goes_through_it(company: Company) -> None:
    sampler = spotmpi.torch.ElasticSampler(range(N), shuffle=False)
    loader = DataLoader(range(N), 4, sampler=sampler)
    given = 0
    for batch in loader:
        assert next(iter(loader)).tolist()[0] == 0
        given += 1
        if given == 3:
            company.there = (0, 2)
        assert next(iter(loader)).tolist()[0] == 0
        company.use(batch)
    assert given == 4
    assert company.used.total() == 10 + 2


def test_a_pass_that_ends_too_early_after_a_loss_is_said(company: Company) -> None:
    """As with a loop that counts its batches."""
    loader = DataLoader(range(N), 4, sampler=spotmpi.torch.ElasticSampler(range(N), shuffle=False))
    for number, batch in enumerate(loader):
        company.there = (0, 1)
        company.use(batch)
        if number == 2:
            break
    assert company.missed == 20


def test_an_error_in_a_batch_ends_no_loop(company: Company) -> None:
    class Broken(list[int]):
        def __getitem__(self, index: Any) -> Any:
            if index == 4:
                raise OSError("planted")
            return super().__getitem__(index)

    data = Broken(range(N))
    loop = iter(DataLoader(data, 4, sampler=DistributedSampler(data, 4, 0, shuffle=False)))
    assert len(loop) == 3
    with pytest.raises(OSError, match="planted"):
        next(loop)
    assert [batch.tolist() for batch in loop] == [[16, 20, 24, 28], [32, 36]]


def test_a_loader_that_is_read_by_another_thread_is_refused(company: Company) -> None:
    loop = iter(DataLoader(range(N), 4, sampler=spotmpi.torch.ElasticSampler(range(N))))
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="another thread"):
        pool.submit(next, loop).result()


def test_after_the_group_it_deals_as_before(company: Company) -> None:
    sampler = spotmpi.torch.ElasticSampler(range(N), shuffle=False)
    company.there = (0, 1)
    assert len(sampler) == 20
    dist.destroy_process_group()
    assert [*sampler] == [*range(0, N, 2)]


def test_samples_may_be_given_one_by_one(company: Company) -> None:
    sampler = spotmpi.torch.ElasticSampler(range(N), shuffle=False)
    for sample in DataLoader(range(N), batch_size=None, sampler=sampler):
        company.there = (0, 1, 2)
        company.use(torch.tensor([sample]))
    assert company.used == Counter([*range(0, N, 4), 3, 15, 27, 39])


def test_it_may_be_drawn_without_a_loader(company: Company) -> None:
    sampler = spotmpi.torch.ElasticSampler(range(N), shuffle=False)
    for sample in sampler:
        company.there = (0, 1, 2)
        company.use(torch.tensor([sample]))
    assert company.used == Counter([*range(0, N, 4), 3, 15, 27, 39])
    assert company._group.collectives.passes._those == []


class Own(Sampler[list[int]]):
    """Batches that nobody knows the size of."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        for one in self.sampler:
            yield [one]


def test_batches_of_unknown_size_are_drawn_in_this_process_only(company: Company) -> None:
    sampler = spotmpi.torch.ElasticSampler(range(N), shuffle=False)
    for batch in DataLoader(range(N), batch_sampler=Own(sampler)):
        company.there = (0, 1, 2)
        company.use(batch)
    assert company.used == Counter([*range(0, N, 4), 3, 15, 27, 39])
    for known in (
        {"batch_sampler": Own(sampler)},
        {"sampler": BatchSampler(sampler, 4, False), "batch_size": None},
        {"sampler": sampler, "in_order": False},
    ):
        with pytest.raises(UsageError, match="or num_workers=0"):
            iter(DataLoader(range(N), num_workers=1, **known))


def test_other_workers_than_the_group_s_are_refused(company: Company) -> None:
    spotmpi.torch.ElasticSampler(range(N), 4, 0)
    with pytest.raises(UsageError, match="num_replicas=2 and rank=None are not 4 and 0"):
        spotmpi.torch.ElasticSampler(range(N), num_replicas=2)


def test_without_a_group_one_worker_has_all() -> None:
    sampler = spotmpi.torch.ElasticSampler(range(5), shuffle=False)
    assert [batch.tolist() for batch in DataLoader(range(5), 2, sampler=sampler)] == [
        *([0, 1], [2, 3], [4])
    ]


def test_another_group_of_torch_deals_to_its_ranks(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert [*spotmpi.torch.ElasticSampler(range(3), shuffle=False)] == [0, 1, 2]
    finally:
        dist.destroy_process_group()


# What torch's own sampler gives.


def test_samples_that_nobody_has_used_are_counted_and_said(
    company: Company, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = DataLoader(range(N), 4, sampler=DistributedSampler(range(N), 4, 0))
    for number, batch in enumerate(loader):
        if number == 2:
            company.there = (0, 2, 3)  # one has used 8 of 10
        company.use(batch)
    for _ in loader:  # a test: no gradients are summed
        pass
    for number, batch in enumerate(loader):
        if number == 1:
            break  # a pass that is left: of 8 the lost one had used none
        company.use(batch)
    company.use(torch.zeros(0))
    assert company.missed == 2 + 8
    dist.destroy_process_group()
    assert "spotmpi: 10 samples of lost workers were used by nobody" in capsys.readouterr().err


class Endless(Sampler[int]):
    """One that cannot say how long it is."""

    def __iter__(self) -> Iterator[int]:
        yield 0

    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(range(8), 2),
        DataLoader(range(8), 2, sampler=Endless()),
        DataLoader(range(8), sampler=DistributedSampler(range(8), 2, 0)),
        DataLoader(range(8), batch_sampler=BatchSampler(range(8), 2, False)),
    ],
)
def test_other_loaders_do_as_ever(company: Company, loader: Any) -> None:
    company.there = (0,)
    for batch in loader:
        company.use(batch)
    assert company.missed == 0


def test_nothing_is_said_where_nothing_was_missed(
    company: Company, capsys: pytest.CaptureFixture[str]
) -> None:
    for batch in DataLoader(range(N), 4, sampler=DistributedSampler(range(N), 4, 0)):
        company.use(batch)
    dist.destroy_process_group()
    assert "used by nobody" not in capsys.readouterr().err


def test_who_looks_without_gradients_does_not_train(company: Company) -> None:
    """Also if a training goes on before that loop has come to its end."""
    loader = DataLoader(range(N), 4, sampler=DistributedSampler(range(N), 4, 0))
    with torch.no_grad():
        looks = iter(loader)
        next(looks)
    company.there = (0, 1)
    company.use(torch.zeros(0))
    assert company.missed == 0


# Which sums are of gradients.


@pytest.fixture
def noted(alone: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:  # noqa: F811
    """The workers of each sum that is noted."""
    there: list[tuple[int, ...]] = []
    passes = alone.collectives.passes
    monkeypatch.setattr(passes, "sum_up", lambda workers, _shares: there.append(workers))
    return there


@pytest.mark.parametrize("how", ["usual", "no_sync", "hook", "none"])
def test_a_sum_in_a_backward_pass_of_ddp_is_of_gradients(
    noted: list[tuple[int, ...]], how: str
) -> None:
    """One in a hook of the user's on DDP as well."""
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    if how == "hook":
        wrapped.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    with wrapped.no_sync() if how == "no_sync" else nullcontext():
        out = wrapped(torch.randn(4, 3)).sum()
        if how != "none":
            out.backward()
    dist.all_reduce(torch.ones(3))
    assert len(noted) == (how in ("usual", "hook"))


@pytest.mark.parametrize(("module", "count"), [("torch.nn.modules._functions", 0), ("hook", 1)])
def test_sums_of_a_batch_normalisation_are_none_of_gradients(
    noted: list[tuple[int, ...]], module: str, count: int
) -> None:
    """Torch's is only there for GPUs: who asks for a sum in the backward pass is known by name."""

    def sum_in_backward(_grad: torch.Tensor) -> None:
        dist.all_reduce(torch.ones(3))

    given = torch.ones(3, requires_grad=True)
    given.register_hook(called_in(module, sum_in_backward))
    given.sum().backward()
    assert len(noted) == count


# Among workers that die at any event.


@dataclass(frozen=True)
class Passes(Job):
    """A script that goes through its samples twice, and says which of its batches were summed."""

    batch: int | None = None

    def script(self, worker: int) -> Final:
        """Each sum says who had a part in it: all who had had used their batch."""
        used: list[tuple[int, ...]] = []
        with Rounds() as rounds:
            calls = Collectives(rounds, self.workers)
            for turn in range(2):
                deal = Deal(np.arange(17 * turn, 17 * turn + 17), calls.alive)
                calls.passes.begin(one := DealtPass(deal, worker, self.batch))
                draw = iter(one)
                while (batch := [*islice(draw, 2)]) or one.goes_on():
                    if not batch:
                        draw = iter(one)
                        continue
                    one.give(2)
                    mine = torch.zeros(34, dtype=torch.float64)
                    mine[batch] = 1.0
                    calls.reduce([mine], "AVG")
                    total = (mine * len(calls.alive)).round().int().tolist()
                    used.append(tuple(total))
                    calls.passes.sum_up(calls.alive)
                calls.passes.end(one)
        whole = tuple(float(sum(one)) for one in zip(*used, strict=True))
        return Final(b"", 0, Counter(), (), False, whole, 0)


def once(result: Result) -> None:
    """All saw the same, and each sample was used: some twice, to make numbers even."""
    whole = {final.means for final in result.finals.values()}
    assert len(whole) <= 1
    for counts in whole:
        assert min(counts) >= 1, counts
        assert sum(counts) - 34 <= 2 * 2 * (4 + 3 + 2)


@pytest.mark.parametrize("batch", [None, 2])
def test_each_sample_is_summed_whoever_dies(tmp_path: Path, batch: int | None) -> None:
    results = simulated.campaign(
        Passes(tmp_path / "calm", 4, batch=batch),
        range(30),
        lambda events, seed: {
            "kills": (
                Kill(seed % 4, 1 + 7 * seed % events),
                Kill((seed + 1) % 4, 1 + 11 * seed % events),
            )
        },
        once,
    )
    assert sum(len(result.finals) == 2 for result in results) > 15
