"""DiLoCo with a quorum, and with a delay, whole scripts in the simulator: what a slow worker and
one that is to leave cost the others, counted in steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import ANY

import pytest

import spotmpi
from spotmpi.fabric import Steps, Work
from spotmpi.fabric.sim.faults import Kill, LeaveNotice
from spotmpi.fabric.sim.timeline import Delays
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps, uses
from spotmpi.strategies import DiLoCo, Strategy
from spotmpi.trace.records import Record
from tests.simulated import Final, Job, Result, Seat, bits, gradient, params

SLOW = 1
H = 8


def long(times: int) -> Steps[None]:
    """What takes so long."""
    for _ in range(times):
        yield Work(lambda: None)


@dataclass(frozen=True)
class Late(Job):
    """One worker takes as long for a step as the others for two rounds. All leave their loop by the
    count of steps."""

    samples: int = 4000
    most: int = 3 * H
    slow: int = 8 * H
    long_in: int | None = None
    """The only step that takes it long; None: all do."""
    at: dict[tuple[int, int], float] = field(default_factory=dict)
    """When each worker had taken so many steps."""
    events: dict[tuple[int, int], int] = field(default_factory=dict)
    """The number of the simulation's events then."""
    losses_from: int = 0
    """The first step of each eight of which the script tells the loss: its number."""
    losses: dict[int, list[float | None]] = field(default_factory=dict)
    """What each worker was told of the mean loss, after each step."""
    told: dict[int, list[int]] = field(default_factory=dict)
    """Of workers that were told to leave, the rounds that they saw after it, by their steps."""

    def script(self, worker: int) -> Final:
        """One pass, cut short."""
        trainer = spotmpi.Trainer(
            self.model.params(worker),
            optimizer=self.optimizer(),
            strategy=self.strategy(),
            seed=self.seed,
        )
        with trainer:
            for batch in trainer.batches(self.samples, self.batch_size):
                if trainer.steps >= self.most:
                    break
                slow = worker == SLOW and self.long_in in (None, trainer.steps)
                Seat.mine().run(long(self.slow if slow else 2))
                number = trainer.steps
                told = float(number) if self.losses_from <= number % H else None
                trainer.step(gradient(trainer.params, batch), loss=told)
                self.losses.setdefault(worker, []).append(trainer.loss)
                self.at[worker, trainer.steps] = Seat.mine().simulation.time.now
                self.events[worker, trainer.steps] = Seat.mine().simulation.time.events
                if Seat.mine().simulation.faults.noticed(worker):
                    self.told.setdefault(worker, []).append(trainer.steps)
        own = bits(trainer.params)
        final = bits(trainer.model), trainer.steps, Counter[int](), ()
        return Final(*final, False, (), 0, own)


def late(folder: Path, strategy: Callable[[], Strategy], **known: Any) -> Late:
    # What workers tell comes at once, beside what they compute.
    folder.mkdir(exist_ok=True)
    return Late(folder, strategy=strategy, delays=Delays(message=1e-6), **known)


def samples_of_rounds(result: Result) -> list[Counter[int]]:
    """Of each round: what each worker brought to it."""
    found: dict[int, Counter[int]] = {}
    for record in steps(result.records):
        for one in record["contributions"]:
            found.setdefault(record["round"], Counter())[one["worker"]] += one["weight"]
    return [found[number] for number in sorted(found)]


def check(result: Result) -> None:
    check_replicas(result.records)
    used = Counter(
        sample
        for _, brought in uses(result.records)
        for one in brought
        for sample in one["samples"]
    )
    assert set(used.values()) == {1}, "a sample counts twice"
    assert len({(final.bits, final.steps) for final in result.finals.values()}) == 1
    known = gradient, result.job.optimizer(), result.job.strategy()
    first, *_ = result.finals.values()
    assert bits(replay(result.records, params(0), *known)) == first.bits


def quorum(share: float = 0.5, grace: float = 0.0, h: int = H) -> Callable[[], Strategy]:
    return lambda: DiLoCo(h=h, momentum=0.5, quorum=share, grace=grace)


@pytest.mark.parametrize("seed", range(4))
def test_a_round_waits_for_a_slow_worker_only_without_a_quorum(tmp_path: Path, seed: int) -> None:
    waits = late(tmp_path / "a", lambda: DiLoCo(h=H, momentum=0.5), seed=seed)
    result = waits.run()
    check(result)
    first, *_ = samples_of_rounds(result)
    assert first == dict.fromkeys(range(4), 2 * H)
    goes_on = late(tmp_path / "b", quorum(), seed=seed)
    result = goes_on.run()
    check(result)
    assert set(result.finals) == {0, 1, 2, 3}
    assert {final.steps for final in result.finals.values()} == {3 * H}
    first, *rest = samples_of_rounds(result)
    # It takes one step, in which the others are through with all of theirs.
    assert first == {0: 2 * H, SLOW: 2, 2: 2 * H, 3: 2 * H}
    for one in rest:
        assert 0 < one[SLOW] <= 4, "it is dealt no more than it can use"


def test_with_all_of_them_a_quorum_waits_for_all(tmp_path: Path) -> None:
    result = late(tmp_path, quorum(share=1.0)).run()
    check(result)
    first, *rest = samples_of_rounds(result)
    assert first == dict.fromkeys(range(4), 2 * H)
    assert all(one[SLOW] <= 4 for one in rest), "but it is dealt less"


def test_what_a_late_worker_did_not_use_is_dealt_again(tmp_path: Path) -> None:
    job = late(tmp_path, quorum(), samples=150, most=10**9)
    result = job.run()
    check(result)
    check_exactly_once(result.records, job.samples, 1)


@pytest.mark.parametrize("at", range(40, 240, 40))
def test_a_late_worker_may_die_while_the_others_wait_for_its_step(tmp_path: Path, at: int) -> None:
    job = late(tmp_path, quorum(), samples=150, most=10**9, kills=[Kill(SLOW, at)])
    result = job.run()
    check(result)
    check_exactly_once(result.records, job.samples, 1)
    assert set(result.finals) == {0, 2, 3}


def steps_after_it_was_told(folder: Path, strategy: Callable[[], Strategy]) -> Sequence[int]:
    """How many the worker took, and the others in the round in which it leaves."""
    job = late(folder, strategy, most=256, slow=2, notices=[LeaveNotice(2, 300)], samples=9000)
    result = job.run()
    check(result)
    assert set(result.finals) == {0, 1, 3}
    return job.told[2]


def test_who_is_told_to_leave_is_gone_soon(tmp_path: Path) -> None:
    """Two rounds of a few steps; without a quorum, two of 64."""
    waits = steps_after_it_was_told(tmp_path / "a", lambda: DiLoCo(h=64, momentum=0.5))
    assert len(waits) > 64
    soon = steps_after_it_was_told(tmp_path / "b", quorum(h=64))
    assert len(soon) <= 4


DELAY = 3


def delayed() -> Strategy:
    return DiLoCo(h=H, momentum=0.5, delay=DELAY, mix=0.5)


@pytest.mark.parametrize("long_in", range(H))
def test_nobody_waits_for_a_worker_whose_part_is_under_way(tmp_path: Path, long_in: int) -> None:
    job = late(tmp_path, delayed, long_in=long_in, slow=40 * H)
    result = job.run()
    check(result)
    over = job.at[SLOW, long_in + 1]
    for worker in (0, 2, 3):
        assert (job.at[worker, H] < over) == (long_in >= H - DELAY)
        # It has yet to send its next part.
        assert job.at[worker, 2 * H] > over


def test_samples_of_a_worker_that_dies_after_its_part_was_sent_are_dealt_again(
    tmp_path: Path,
) -> None:
    """Also of those that it had taken: what it learnt in them is lost."""
    known: dict[str, Any] = {"samples": 190, "most": 10**9, "slow": 40 * H, "long_in": H - 1}
    calm = late(tmp_path / "a", delayed, **known)
    check_exactly_once(calm.run().records, calm.samples, 1)
    # The others have committed the round. It is still in the last step of it.
    assert calm.at[0, H] < calm.at[SLOW, H]
    job = late(tmp_path / "b", delayed, **known, kills=[Kill(SLOW, calm.events[0, H] + 5)])
    result = job.run()
    check(result)
    check_exactly_once(result.records, job.samples, 1)
    assert set(result.finals) == {0, 2, 3}
    done = steps(result.records)
    assert all(SLOW in one["workers"] for one in done[:H]), "its part counts"
    again = {sample for one in done[H - DELAY : H] for sample in of(one, SLOW)}
    assert len(again) == 2 * DELAY
    assert again <= {sample for one in done[H:] for w in (0, 2, 3) for sample in of(one, w)}


def of(record: Record, worker: int) -> list[int]:
    """The samples of one worker in a step."""
    return [s for one in record["contributions"] if one["worker"] == worker for s in one["samples"]]


def test_the_last_part_of_a_pass_is_sent_with_its_last_step(tmp_path: Path) -> None:
    """So all samples of the pass are in the model of all."""
    job = late(tmp_path, delayed, samples=8 * 2 * H, most=10**9, slow=2)
    result = job.run()
    check(result)
    assert [one["sent"] for one in steps(result.records)] == [H - DELAY] * H + [H] * H


def test_who_is_told_to_leave_while_parts_travel_is_gone_after_two_rounds(tmp_path: Path) -> None:
    assert len(steps_after_it_was_told(tmp_path, delayed)) <= 2 * H


def test_a_loss_that_comes_while_parts_travel_counts_in_the_next_round(tmp_path: Path) -> None:
    early = late(tmp_path / "a", delayed, slow=2)
    early.run()
    sent = H - DELAY
    first, second = fmean(range(sent)), fmean(range(sent, H + sent))
    assert early.losses[0] == [None] * (H - 1) + [first] * H + [second] * H + [ANY]
    job = late(tmp_path / "b", delayed, slow=2, losses_from=H - 1)
    job.run()
    assert job.losses[0][-1] == 2 * H - 1


def test_a_trace_has_the_steps_that_come_while_parts_travel_as_the_scripts_time(
    tmp_path: Path,
) -> None:
    """So it names who was late, and why."""
    result = late(tmp_path, delayed, long_in=H - 1, slow=40 * H).run()
    took: dict[int, float] = {}
    for record in result.of("timing"):
        took[record["worker"]] = took.get(record["worker"], 0.0) + sum(record["script_ms"])
    assert took[SLOW] > 5 * max(took[worker] for worker in (0, 2, 3))
