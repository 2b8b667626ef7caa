"""What torch asks of all workers, in simulated jobs whose workers die at any event."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.errors import PeersLost, ReplicaMismatch, UsageError  # noqa: E402
from spotmpi.fabric.sim.faults import Kill  # noqa: E402
from spotmpi.torch import collectives  # noqa: E402
from spotmpi.torch.collectives import Calls, Collectives  # noqa: E402
from spotmpi.torch.part import Part, Split  # noqa: E402
from spotmpi.torch.torch_rounds import Rounds  # noqa: E402
from spotmpi.training import session  # noqa: E402
from tests import simulated  # noqa: E402
from tests.simulated import Final, Job, Result, deaths  # noqa: E402


def ask_all(calls: Calls, turn: int, seen: float) -> float:
    """Make calls of each kind. Return a digest of what they return, which is the same on all, after
    that of ``seen``."""
    digest, me = int(seen), calls.rank

    def same(tensor: torch.Tensor) -> None:
        nonlocal digest
        digest = zlib.crc32(tensor.double().numpy().tobytes(), digest)

    floats = torch.full((3,), 1.0 / (1 + me + turn))
    halves = torch.full((2,), float(me), dtype=torch.bfloat16)
    calls.reduce([floats, halves, torch.zeros(0)], ("SUM", "AVG")[turn % 2])
    same(floats)
    same(halves)
    whole = torch.tensor([2**me, turn])
    calls.reduce([whole], "SUM")
    same(whole)
    assert all(int(whole[0]) & 2**one for one in calls.alive)
    largest = torch.tensor(float(me))
    calls.reduce([largest], "MAX")
    same(largest)
    everyone = calls.gather(torch.tensor([me]))
    assert len(everyone) == calls.size
    assert {int(one) for one in everyone} >= {*calls.alive}
    same(torch.cat(everyone))
    lists = calls.gather_lists([torch.arange(me + one) for one in range(2)])
    same(torch.cat([part for some in lists for part in some]))
    first = torch.full((2,), me + 0.5)
    calls.broadcast([first], 0, stands_in=True)
    assert first[0] == first[1], "all of it is of one worker"
    same(first)
    other = torch.zeros(1)
    try:
        calls.broadcast([other.fill_(me)], 1)
    except PeersLost:
        other.fill_(-1)
    same(other)
    calls.meet()
    return float(digest)


class Asking(Job):
    """A script that makes calls of each kind, in turn."""

    def script(self, worker: int) -> Final:
        """Whatever they return is the same on all."""
        seen = 0.0
        with Rounds() as rounds:
            calls = Collectives(rounds, self.workers)
            for turn in range(4):
                seen = ask_all(calls, turn, seen)
        return Final(b"", 0, Counter(), (), False, (seen,), 0)


SPLITS: list[Split] = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]


class Splitting(Job):
    """The same in groups of some workers."""

    def script(self, worker: int) -> Final:
        """Whatever they return is the same on all of a group."""
        seen = [0.0] * len(SPLITS)
        with Rounds() as rounds:
            whole = Collectives(rounds, self.workers)
            for turn in range(3):
                for number, split in enumerate(SPLITS):
                    part = Part(whole, split, mine(split, worker))
                    sum_ = torch.tensor([float(worker)])
                    part.reduce([sum_], "SUM")
                    bound = part.size * torch.tensor(part.ranks).float()
                    assert bound.min() <= sum_ <= bound.max()
                    assert len(whole.alive) < 4 or sum_.item() == sum(part.ranks)
                    seen[number] = ask_all(part, turn, seen[number])
        return Final(b"", 0, Counter(), (), False, tuple(seen), 0)


def mine(split: Split, worker: int) -> tuple[int, ...]:
    """The group that this worker is in."""
    return next(ranks for ranks in split if worker in ranks)


def agree_in_groups(result: Result) -> None:
    """All of a group that came to the end saw the same."""
    for number, split in enumerate(SPLITS):
        for ranks in split:
            seen = {result.finals[one].means[number] for one in ranks if one in result.finals}
            assert len(seen) <= 1, (split, ranks)


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 30), marks=pytest.mark.matrix)], ids=str
)
def test_all_of_a_group_see_the_same_whoever_dies(tmp_path: Path, seeds: range) -> None:
    results = simulated.campaign(
        Splitting(tmp_path / "calm", 4),
        seeds,
        lambda events, seed: {"kills": deaths(4, events, seed)},
        agree_in_groups,
    )
    assert any(len(result.finals) == 3 for result in results)


class Astray(Job):
    """Workers that are in groups which are not of one split."""

    def script(self, worker: int) -> Final:
        """Return nothing."""
        with Rounds() as rounds:
            split = SPLITS[worker == 3]
            Part(Collectives(rounds, self.workers), split, mine(split, worker)).meet()
        return Final(b"", 0, Counter(), (), False, (), 0)


def test_groups_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rank \d has called in the group .* in the group"):
        Astray(tmp_path, 4).run()


class Unaware(Job):
    """Workers that know of no group but their own."""

    def script(self, worker: int) -> Final:
        """Return nothing."""
        with Rounds() as rounds:
            own = mine(SPLITS[0], worker)
            Part(Collectives(rounds, self.workers), [own], own).reduce([torch.ones(1)], "SUM")
        return Final(b"", 0, Counter(), (), False, (), 0)


def test_groups_that_not_all_know_of_do_not_take_each_other_s_sums(tmp_path: Path) -> None:
    with pytest.raises(ReplicaMismatch, match="asked for different things"):
        Unaware(tmp_path, 4).run()


@pytest.fixture(autouse=True)
def _in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broadcast comes in pieces, however small it is."""
    monkeypatch.setattr(collectives, "_AT_ONCE", 5)


def agree(result: Result) -> None:
    """All that came to the end saw the same."""
    assert len({final.means for final in result.finals.values()}) <= 1


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 20), marks=pytest.mark.matrix)], ids=str
)
def test_all_see_the_same_whoever_dies(tmp_path: Path, seeds: range, workers: int) -> None:
    results = simulated.campaign(
        Asking(tmp_path / "calm", workers),
        seeds,
        lambda events, seed: {"kills": deaths(workers, events, seed)},
        agree,
    )
    assert any(result.finals for result in results)
    assert any(len(result.finals) < workers for result in results)


class Lost(Job):
    """A script that asks for the tensors of a worker that may be lost by then."""

    def script(self, worker: int) -> Final:
        """Return what came of it."""
        with Rounds() as rounds:
            calls = Collectives(rounds, self.workers)
            calls.meet()
            odd = torch.tensor([worker] * 3, dtype=torch.int8)
            there = torch.full((2, 2), worker, dtype=torch.float16).T
            assert not there.is_contiguous()
            try:
                calls.broadcast([odd, there], 1)
                assert {*there.reshape(-1).tolist(), *odd.tolist()} == {1}
            except PeersLost:
                assert {*there.reshape(-1).tolist(), *odd.tolist()} == {worker}
                there.fill_(-1)
            calls.reduce([torch.zeros(1)], "SUM")
        return Final(b"", 0, Counter(), (), False, (there[0, 0].item(),), 0)


@pytest.mark.parametrize("first", range(4))
@pytest.mark.first("0")
def test_all_say_that_a_worker_is_lost_or_none(tmp_path: Path, first: int) -> None:
    """It dies at every fourth event. Only a part of the others hears of some deaths in that
    call."""
    results = simulated.campaign(
        Lost(tmp_path / "calm", 4),
        range(first, 300, 4),
        lambda events, seed: {"kills": (Kill(1, 1 + seed % events),)},
        agree,
    )
    seen = Counter(result.finals[0].means[0] for result in results if 0 in result.finals)
    assert seen[1.0] > 3 < seen[-1.0]


def test_a_newcomer_that_rehearses_gives_itself_what_a_group_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    with Rounds() as rounds:
        whole = Collectives(rounds, 1)
        whole.rehearses, whole.standing.size = True, 2
        whole.standing.trained[:] = [True]
        part, there = Part(whole, [(0, 1)], (0, 1)), torch.tensor([5.0])
        part.broadcast([there], 1)
        assert there.tolist() == [5]
        whole.rehearses = False


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, 1200, 200))
def test_a_long_campaign(tmp_path: Path, first: int) -> None:
    simulated.campaign(
        Asking(tmp_path / "calm", 5),
        range(first, first + 200),
        lambda events, seed: {"kills": deaths(5, events, seed)},
        agree,
    )


def test_what_cannot_be_done_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    with Rounds() as rounds:
        calls = Collectives(rounds, 1)
        with pytest.raises(UsageError, match="no operation PREMUL_SUM for tensors"):
            calls.reduce([torch.arange(3)], "PREMUL_SUM")


def test_a_sum_of_tensors_is_kept_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newcomers do not need it, and each step would copy its gradients."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setattr(session, "pack", lambda _value: pytest.fail("a sum was copied"))
    with Rounds() as rounds:
        there = torch.ones(3)
        Collectives(rounds, 1).reduce([there], "SUM")
        assert there.tolist() == [1, 1, 1]
