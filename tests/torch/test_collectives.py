"""What torch asks of all workers, in simulated jobs whose workers die at any event."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.errors import PeersLost, UsageError  # noqa: E402
from spotmpi.fabric.sim.faults import Kill  # noqa: E402
from spotmpi.rounds import memory  # noqa: E402
from spotmpi.torch import collectives  # noqa: E402
from spotmpi.torch.collectives import Calls, Collectives  # noqa: E402
from spotmpi.torch.part import Part  # noqa: E402
from spotmpi.torch.torch_rounds import Rounds  # noqa: E402
from spotmpi.training import session  # noqa: E402
from tests import simulated  # noqa: E402
from tests.simulated import Final, Job, Result, deaths  # noqa: E402


@pytest.fixture(autouse=True)
def _few_words_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then some tensors lie in one array for all workers, and others in one for each."""
    monkeypatch.setattr(memory, "_LEAST_OWN", 4)


def ask_all(calls: Calls, turn: int, seen: float) -> float:
    """Make calls of each kind. Return a digest of what they return, which is the same on all, after
    that of ``seen``. What a call was given is changed as soon as it returns."""
    digest, me = int(seen), calls.rank

    def same(tensor: torch.Tensor) -> None:
        nonlocal digest
        digest = zlib.crc32(tensor.double().numpy().tobytes(), digest)

    floats = torch.full((3,), 1.0 / (1 + me + turn))
    halves = torch.full((2,), float(me), dtype=torch.bfloat16)
    calls.reduce([floats, halves, torch.zeros(0)], ("SUM", "AVG")[turn % 2])
    same(floats)
    same(halves)
    floats.fill_(7)
    halves.fill_(7)
    part, count = torch.empty(2), torch.arange(2.0 * calls.size)
    calls.reduce_part(count, part, "AVG")
    assert part.tolist() == [2 * me, 2 * me + 1]
    assert count[-1] == 2 * calls.size - 1, "it stays as it is"
    calls.reduce_part(count.fill_(0.1 + me), part, "SUM")
    count.fill_(7)
    assert part[0] == part[1]
    same(part)
    bits = torch.full((calls.size,), 2**me)
    calls.reduce_part(bits, both := torch.tensor([0]), "SUM")
    bits.fill_(7)
    assert all(int(both) & 2**one for one in calls.alive)
    same(both)
    whole = torch.tensor([2**me, turn])
    calls.reduce([whole], "SUM")
    same(whole)
    assert all(int(whole[0]) & 2**one for one in calls.alive)
    whole.fill_(7)
    largest = torch.tensor(float(me))
    calls.reduce([largest], "MAX")
    same(largest)
    everyone = calls.gather(own := torch.tensor([me]))
    own.fill_(7)
    assert len(everyone) == calls.size
    assert {int(one) for one in everyone} >= {*calls.alive}
    same(torch.cat(everyone))
    rows = calls.gather(own := torch.full((5, 3), me, dtype=torch.int16))
    own.fill_(7)
    assert {*map(int, torch.stack(rows).unique())} >= {*calls.alive}
    assert all(int(row.unique()) == int(row[0, 0]) for row in rows), "each is of one worker"
    same(torch.cat(rows))
    lists = calls.gather_lists(mine := [torch.arange(me + one) for one in range(2)])
    mine[1].fill_(7)
    assert all(torch.equal(one, torch.arange(len(one))) for some in lists for one in some)
    same(torch.cat([part for some in lists for part in some]))
    first = torch.full((2,), me + 0.5)
    calls.broadcast([first], 0, stands_in=True)
    assert first[0] == first[1], "all of it is of one worker"
    same(first)
    first.fill_(7)
    other = torch.zeros(1)
    try:
        calls.broadcast([other.fill_(me)], 1)
    except PeersLost:
        other.fill_(-1)
    same(other)
    other.fill_(7)
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


GROUPS = [((0, 1), 3), ((0, 2, 3), 2), ((3, 1), 2), ((1, 2), 1), ((0, 1, 2), 2), ((2, 3), 3)]
"""The ranks of groups, and how many turns each has."""


class Grouped(Job):
    """The same in groups of some workers, while others make no call, or wait in one of all."""

    def script(self, worker: int) -> Final:
        """Whatever they return is the same on all of a group."""
        seen = [0.0] * len(GROUPS)
        with Rounds() as rounds:
            whole = Collectives(rounds, self.workers)
            parts = [Part(whole, ranks) if worker in ranks else None for ranks, _ in GROUPS]
            for again in range(2):
                for number, part in enumerate(parts):
                    for turn in range(GROUPS[number][1] if part else 0):
                        assert part is not None
                        sum_ = torch.tensor([float(worker)])
                        part.reduce([sum_], "SUM")
                        bound = part.size * torch.tensor(part.ranks).float()
                        assert bound.min() <= sum_ <= bound.max()
                        assert len(part.alive) < part.size or sum_.item() == sum(part.ranks)
                        seen[number] = ask_all(part, turn, seen[number])
                if not again:
                    whole.meet()
        return Final(b"", 0, Counter(), (), False, tuple(seen), 0)


def agree_in_groups(result: Result) -> None:
    """All of a group that came to the end saw the same."""
    for number, (ranks, _) in enumerate(GROUPS):
        seen = {result.finals[one].means[number] for one in ranks if one in result.finals}
        assert len(seen) <= 1, ranks


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 30), marks=pytest.mark.matrix)], ids=str
)
def test_all_of_a_group_see_the_same_whoever_dies(tmp_path: Path, seeds: range) -> None:
    results = simulated.campaign(
        Grouped(tmp_path / "calm", 4),
        seeds,
        lambda events, seed: {"kills": deaths(4, events, seed)},
        agree_in_groups,
    )
    assert any(len(result.finals) == 3 for result in results)


class Brief(Job):
    """Workers of a group that make few calls, and then wait for all others."""

    def script(self, worker: int) -> Final:
        """Whatever they return is the same on all of a group."""
        digest = 0
        with Rounds() as rounds:
            whole = Collectives(rounds, self.workers)
            for turn in range(3 if worker else 0):
                found = Part(whole, (1, 2, 3, 4)).gather(torch.tensor([10 * worker + turn]))
                digest = zlib.crc32(repr(found).encode(), digest)
            whole.meet()
        return Final(b"", 0, Counter(), (), False, (float(digest),), 0)


def agree_in_group(result: Result) -> None:
    """All of the group that came to the end saw the same."""
    assert len({final.means for one, final in result.finals.items() if one}) <= 1


@pytest.mark.parametrize("second", [None, 1, 6])
@pytest.mark.parametrize("first", range(8))
@pytest.mark.first("0-None", "0-1")
def test_a_group_s_first_worker_dies_at_each_event(
    tmp_path: Path, first: int, second: int | None
) -> None:
    """And the next one so many events later."""

    def kills(events: int, seed: int) -> dict[str, Any]:
        at = 1 + seed % events
        return {"kills": (Kill(1, at), *([] if second is None else [Kill(2, at + second)]))}

    simulated.campaign(Brief(tmp_path / "calm", 5), range(first, 1200, 8), kills, agree_in_group)


class Differing(Job):
    """Workers of a group that make different calls."""

    def script(self, worker: int) -> Final:
        """Return nothing."""
        said = ""
        with Rounds() as rounds:
            whole = Collectives(rounds, self.workers)
            try:
                if worker == 3:
                    Part(whole, (1, 2, 3)).gather(torch.ones(2))
                elif worker:
                    Part(whole, (1, 2, 3)).meet()
            except UsageError as error:
                said = str(error)
            assert bool(worker) == (
                said
                == "in the group of ranks [1, 2, 3] rank 1 has called for a barrier, and rank 3 "
                "for tensors of 2 numbers of torch.float32: all must make the same calls"
            )
        return Final(b"", 0, Counter(), (), False, (), 0)


def test_different_calls_in_a_group_are_named_on_all_of_it(tmp_path: Path) -> None:
    assert len(Differing(tmp_path, 4).run().finals) == 4


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
        part, there = Part(whole, (0, 1)), torch.tensor([5.0])
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


def test_what_is_folded_may_lie_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if tensors are made on another device, unless it is said."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    with Rounds() as rounds:
        calls = Collectives(rounds, 1)
        flags, turned = torch.tensor([True, False]), torch.arange(6).reshape(2, 3).T
        none = torch.zeros(0, dtype=torch.int8)
        with torch.device("meta"):
            calls.reduce([flags], "AVG")
            calls.reduce([turned, none], "MAX")
        assert flags.tolist() == [True, False]
        assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_sum_of_tensors_is_kept_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newcomers do not need it, and each step would copy its gradients."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setattr(session, "pack", lambda _value: pytest.fail("a sum was copied"))
    with Rounds() as rounds:
        there = torch.ones(3)
        Collectives(rounds, 1).reduce([there], "SUM")
        assert there.tolist() == [1, 1, 1]
