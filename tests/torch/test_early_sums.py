"""Sums of gradients whose first parts travel while the backward pass goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.arrays import flat_parts  # noqa: E402
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice  # noqa: E402
from spotmpi.rounds import memory  # noqa: E402
from spotmpi.torch.collectives import Collectives  # noqa: E402
from spotmpi.torch.process_group import the_group  # noqa: E402
from spotmpi.torch.standing import Standing, UsualSum  # noqa: E402
from tests import simulated  # noqa: E402
from tests.torch import dealt_job  # noqa: E402
from tests.torch.dealt_job import SAMPLES, Passes  # noqa: E402
from tests.torch.early import LAYERS  # noqa: E402
from tests.torch.test_process_group import alone, run  # noqa: E402, F401

HERE = Path(__file__).parent


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small sums into parts."""
    monkeypatch.setattr(memory, "_LEAST_WORDS", 12)
    monkeypatch.setattr(flat_parts, "_WHOLE", 1)


def test_parts_of_an_array_are_about_equal_and_whole() -> None:
    least, whole = 1 << 20, flat_parts._WHOLE
    for size, many in ((0, 1), (5, 1), (2 * least - 1, 1), (25_583_592, 24), (10**9 + 7, 64)):
        parts = flat_parts.cut(size, least, 64)
        assert sum(parts) == size
        assert len(parts) == many
        assert max(parts) - min(parts) < 2 * whole
        assert many == 1 or min(parts) >= least
        assert not any(part % whole for part in parts[:-1])


# In simulated jobs.


class Sums:
    """In place of `dealt_job.reduce`: a pass that gives its gradients one by one."""

    def __init__(self, surprise: str = "") -> None:
        """``surprise``: what sometimes comes in place of the usual."""
        self.surprise = surprise
        self.early = self.given_up = 0

    def __call__(
        self, calls: Collectives, mine: torch.Tensor, grad: torch.Tensor, begins: bool
    ) -> None:
        """Write the means of these."""
        tensors = [mine, grad[:1], grad[1:2], grad[2:]]
        odd = calls.standing.answers.sums % 7 == 6 and self.surprise
        if odd == "others":
            tensors = [mine, grad[:1], grad[1:]]
        for number, one in enumerate(tensors):
            calls.give_early(number, [one], lambda: begins)
            if odd == "asks" and number == 1:
                assert set(calls.exchange(7, "in the middle of a pass").values()) == {7}
        if odd == "fails":
            calls.end_early((), ())
        begun = not calls.rehearses and calls.group.early is not None
        summed = calls.end_early(tensors, ["AVG"] * len(tensors))
        self.early += summed
        self.given_up += begun and not summed
        assert calls.rehearses or calls.group.early is None
        if not summed:
            calls.reduce(tensors, "AVG", step=begins)
        calls.note_sum(tensors)


@pytest.mark.parametrize("surprise", ["", "others", "asks", "fails"])
@pytest.mark.parametrize(
    "seeds",
    [
        range(8),
        pytest.param(range(8, 60), marks=pytest.mark.matrix),
        pytest.param(range(1000, 2000), marks=pytest.mark.campaign),
    ],
    ids=str,
)
def test_workers_die_and_come_at_any_event_of_it(
    tmp_path: Path, seeds: range, surprise: str, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if something else comes than was expected, again and again."""
    sums = Sums(surprise)
    monkeypatch.setattr(dealt_job, "reduce", sums)
    monkeypatch.setattr(UsualSum, "fail", lambda _: None)
    results = simulated.campaign(
        Passes(tmp_path / "calm", 3, many=2 * SAMPLES, over=4),
        seeds,
        lambda events, seed: {
            "kills": [Kill(seed % 5, 1 + 71 * seed % events)][: seed % 3],
            "notices": [LeaveNotice(2, 40 + 53 * seed % events)][: seed % 2],
            "arrivals": [Arrival(3, 30 + 11 * seed), Arrival(4, 30 + 37 * seed % events)],
        },
        lambda result: None,
    )
    for result in results:
        assert len({final.bits for final in result.finals.values()}) == 1
    assert any(worker > 2 for result in results for worker in result.finals)
    assert sums.early > 20 * len(seeds)
    assert bool(sums.given_up) == (surprise == "others")


def test_the_first_worker_dies_at_any_event_of_it(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is in the sums of all others or of none."""
    sums = Sums()
    monkeypatch.setattr(dealt_job, "reduce", sums)
    calm = Passes(tmp_path / "calm", 3, over=2)
    events = range(0, 400, 11)
    results = simulated.campaign(
        calm, events, lambda _, at: {"kills": [Kill(0, at)]}, lambda result: None
    )
    for result in results:
        assert result.finals.keys() == {1, 2}
        assert len({final.bits for final in result.finals.values()}) == 1
    assert sums.early > 10 * len(events)


def test_what_is_expected_is_what_came_twice_in_more_than_a_part() -> None:
    large, small = ("float32", 1 << 20), ("float32", 8)
    usual = UsualSum()
    for buckets, expected in [
        ([large, large], False),
        ([large, large], True),
        ([large, large, small], False),
        ([large, large, small], True),
        ([small, small], False),
        ([small, small], False),
        ([large, None], False),
        ([large, None], False),
        ([large, ("float64", 1 << 20)], False),
        ([large, ("float64", 1 << 20)], False),
        ([("float32", 1 << 22)], False),
        ([("float32", 1 << 22)], False),
        ([large, large], False),
        ([large, large], True),
    ]:
        usual.note(buckets)
        assert usual.expected == expected, buckets
    known, told = Standing(), Standing()
    known.begin(2)
    known.usual = usual
    told.restore(json.loads(json.dumps(known.snapshot(None))))
    assert told.usual.expected
    assert told.usual.buckets == usual.buckets
    usual.fail()
    told.restore(json.loads(json.dumps(known.snapshot(None))))
    assert not told.usual.expected


# With DistributedDataParallel.


def test_a_step_is_begun_early_if_it_is_like_the_last_ones(alone: Any, small: None) -> None:  # noqa: F811
    """And never again if other gradients have come than were expected."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(8, 8) for _ in range(4)]
    plain, seen = torch.nn.Sequential(*layers), list[int | None]()
    wrapped = torch.nn.parallel.DistributedDataParallel(plain, bucket_cap_mb=1e-4)
    layers[0].weight.register_hook(lambda _: seen.append(alone._collectives.group.early))
    usual = alone._collectives.standing.usual
    x = torch.randn(3, 8)

    def gradients(module: torch.nn.Module) -> list[list[float]]:
        plain.zero_grad()
        module(x).square().sum().backward()
        return [one.grad.tolist() for one in plain.parameters()]  # type: ignore[union-attr]

    for _ in range(5):
        assert gradients(wrapped) == gradients(plain)
    assert seen[::2] == [None, None, None, 3, 3]  # DDP makes its buckets after the first step
    hook = layers[1].weight.register_hook(lambda _: alone.barrier() and None)
    assert gradients(wrapped) == gradients(plain)
    hook.remove()
    assert not usual.expected
    for _ in range(3):
        assert gradients(wrapped) == gradients(plain)
    assert seen[-2::-2][:3] == [None, None, None]
    assert the_group() is alone


def test_nothing_is_left_of_a_pass_that_fails(alone: Any, small: None) -> None:  # noqa: F811
    layers = [torch.nn.Linear(8, 8) for _ in range(4)]
    plain = torch.nn.Sequential(*layers)
    wrapped = torch.nn.parallel.DistributedDataParallel(plain, bucket_cap_mb=1e-4)
    x = torch.randn(3, 8)
    for _ in range(4):
        wrapped(x).sum().backward()

    def fail(_grad: torch.Tensor) -> None:
        raise ValueError("planted")

    with layers[0].weight.register_hook(fail), pytest.raises(ValueError, match="planted"):
        wrapped(x).sum().backward()
    assert alone._collectives.group.early == 3
    total = torch.ones(2)
    torch.distributed.all_reduce(total)
    assert total.tolist() == [1.0, 1.0]
    assert alone._collectives.group.early is None
    assert not alone._later


def test_a_pass_that_fails_is_not_taken_for_the_beginning_of_another(
    alone: Any,  # noqa: F811
    small: None,
) -> None:
    """The other one's first bucket is of another size; its next ones are as the first pass had
    them."""
    ends = (8, 5)
    plain = [
        torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)), torch.nn.Linear(8, end))
        for end in ends
    ]
    wrapped = [torch.nn.parallel.DistributedDataParallel(one, bucket_cap_mb=1e-4) for one in plain]
    x = torch.randn(3, 8)
    for one in (1, 1, 1, 0, 0, 0, 0):
        wrapped[one](x).sum().backward()

    def fail(_grad: torch.Tensor) -> None:
        raise ValueError("planted")

    with plain[0][2].weight.register_hook(fail), pytest.raises(ValueError, match="planted"):
        wrapped[0](x).sum().backward()
    assert alone._collectives.group.early == 1
    held = []
    for module in (wrapped[1], plain[1]):
        plain[1].zero_grad()
        module(x).square().sum().backward()
        held.append([one.grad.tolist() for one in plain[1].parameters()])
    assert held[0] == held[1]
    assert alone._collectives.group.early is None
    assert not alone._later
    assert not alone._collectives.standing.usual.expected


def finals(folder: Path, begin: str, deaths: str) -> dict[str, tuple[str, int]]:
    """Return what the workers that live to the end hold, and how many of a step's tensors they had
    given when the last one came, by rank."""
    folder.mkdir()
    running = run(folder, HERE / "early.py", begin, deaths)
    assert running.wait() == 0, running.output
    said = [one.split("FINAL ")[1].split() for one in running.output.splitlines() if "FINAL" in one]
    return {rank: (held, int(early)) for rank, held, early in said}


@pytest.mark.matrix  # test_process_group kills between two buckets as well
@pytest.mark.parametrize(
    "deaths",
    [
        "0@6.3,2@9.0",
        *(f"{n % 4}@{4 + n % 5}.{n}" for n in range(LAYERS)),
        "1@5.4,3@5.2,0@8.0",
        "3@0.2,1@1.3,2@2.5",
    ],
)
def test_killed_between_two_buckets(tmp_path: Path, deaths: str) -> None:
    """The others hold what they do if sums begin when all gradients are there, to the bit."""
    early, late = (finals(tmp_path / how, how, deaths) for how in ("early", "late"))
    dead = {one.partition("@")[0] for one in deaths.split(",")}
    assert early.keys() == late.keys() == {*"0123"} - dead
    assert len({held for found in (early, late) for held, _ in found.values()}) == 1
    assert {given for _, given in early.values()} == {LAYERS - 1}
    assert {given for _, given in late.values()} == {0}


@pytest.mark.parametrize("begin", ["early", pytest.param("late", marks=pytest.mark.matrix)])
def test_a_script_that_fails_within_a_pass_ends_the_job(tmp_path: Path, begin: str) -> None:
    """The others are not told that it has asked for something else."""
    running = run(tmp_path, HERE / "early.py", begin, "1!6.2")
    assert running.wait() == 1, running.output
    assert "ValueError: planted" in running.output
    assert "different things" not in running.output
    assert "Mismatch" not in running.output
