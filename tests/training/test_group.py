"""Elastic rounds without an optimizer: what is averaged, and that the caller's state survives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.fabric.sim.faults import Arrival, Kill
from spotmpi.kernels import cpu
from spotmpi.optimizers import Optimizer
from spotmpi.replay import check_exactly_once, replay, steps
from spotmpi.training.steps.worker_steps import RoundSteps
from tests.simulated import Final, Job, Result, bits, gradient, params
from tests.test_member import campaign, joined, left

BETA = 0.5


def move(state: Any, average: Any) -> None:
    """What the script makes of an average: momentum, by hand."""
    for key in ("w", "b"):
        velocity = state[f"v{key}"]
        velocity *= velocity.dtype.type(BETA)
        velocity += average[key]
        state[key][...] -= state[key].dtype.type(0.05) * velocity


def everything(worker: int) -> dict[str, np.ndarray]:
    """The parameters, and how fast they move."""
    found = params(worker)
    return {**found, **{f"v{key}": np.zeros_like(array) for key, array in found.items()}}


class ByHand(Optimizer):
    """The same, for a replay."""

    lr = 1.0
    slots = ("velocity",)

    def update(
        self,
        params: Sequence[Any],
        grads: Sequence[Any],
        slots: Mapping[str, Sequence[Any]],
        rate: float,
        scale: float,
    ) -> None:
        """As `move` does."""
        assert rate == 1.0
        for w, g, v in zip(params, grads, slots["velocity"], strict=True):
            mean = np.empty_like(g)
            cpu.scaled_sum(mean, [g], [scale])
            v *= v.dtype.type(BETA)
            v += mean
            w -= w.dtype.type(0.05) * v


@dataclass(frozen=True)
class Averaging(Job):
    """A script that applies averages itself."""

    def script(self, worker: int) -> Final:
        """One pass a loop, with a mean after each."""
        gradients: Counter[int] = Counter()
        began, means = 0, []
        group = spotmpi.Group(everything(worker), arrays=params(worker), seed=self.seed)
        with group:
            for _ in group.passes(self.passes):
                for batch in group.batches(self.samples, self.batch_size):
                    rehearsal = group.worker not in group.workers
                    gradients[group.steps] += not rehearsal
                    average = group.average(gradient(group.state, batch))
                    if any(array.any() for array in average.values()):
                        move(group.state, average)  # else all whose samples it was have gone
                    began = group.steps if rehearsal else began
                means.append(group.mean(2.0))
        state = {key: group.state[key] for key in ("w", "b")}
        return Final(bits(state), group.steps, gradients, (), False, tuple(means), began)


def check(result: Result) -> None:
    """The state is what the trace says, on all survivors, to the bit."""
    finals, done = result.finals, steps(result.records)
    if not finals:
        return
    check_exactly_once(result.records, result.job.samples, result.job.passes)
    by_hand = ByHand()
    given = range(done[0]["workers"][0] + 1)
    truths = {bits(replay(done, params(first), gradient, by_hand)) for first in given}
    assert {final.bits for final in finals.values()} <= truths
    assert len({final.bits for final in finals.values()}) == 1
    assert {final.steps for final in finals.values()} == {len(done)}
    for final in finals.values():
        assert set(final.means) == {2.0}
        assert len(final.means) == result.job.passes or final.began, "only newcomers miss passes"


@pytest.mark.parametrize("workers", [1, 3])
def test_averages_come_to_what_the_trace_says(tmp_path: Path, workers: int) -> None:
    result = Averaging(tmp_path, workers).run()
    check(result)
    assert len(result.finals) == workers


@pytest.mark.matrix
def test_workers_come_and_leave_and_die_at_any_event(tmp_path: Path) -> None:
    results = campaign(Averaging(tmp_path / "calm", 3, samples=83), runs=50, holds=check)
    assert len(joined(results)) > 5
    assert left(results)
    assert any(result.of("recovery") for result in results)


def test_a_newcomer_has_all_of_the_state_with_the_first_average_that_it_sees(
    tmp_path: Path,
) -> None:
    """In one page: what a script makes of an average need not go element by element."""
    result = Averaging(tmp_path, 2, samples=200, arrivals=[Arrival(2, 150)]).run()
    check(result)
    (change,) = result.of("change")
    assert change["joined"] == [2]
    assert result.finals[2].began - change["step"] <= 1


@dataclass(frozen=True)
class Counting(Job):
    """A script without batches: one worker's arrays are as good as another's."""

    def script(self, worker: int) -> Final:
        """As many rounds as it has samples; the state is counted by it alone."""
        with spotmpi.Group([np.zeros(1)]) as group:
            while group.steps < self.samples:
                (average,) = group.average([np.full(1, 7.0)])
                assert average[0] == 7.0
                group.state[0][0] += average[0]
        return Final(group.state[0].tobytes(), group.steps, Counter(), (), False, (), 0)


def test_without_batches_every_worker_counts_as_one(tmp_path: Path) -> None:
    result = Counting(tmp_path, 3, samples=9).run()
    assert {final.bits for final in result.finals.values()} == {np.full(1, 63.0).tobytes()}


def test_alone_the_average_is_what_was_brought() -> None:
    with spotmpi.Group({"w": np.zeros(3, np.float32)}) as group:
        brought = np.arange(3, dtype=np.float32)
        average = group.average({"w": brought})
        np.testing.assert_array_equal(average["w"], brought)
        again = group.average(average)  # what came of one round may be brought to the next
        np.testing.assert_array_equal(again["w"], brought)
        group.state["w"] += again["w"]
        assert group.leader
        assert group.workers == (0,)
    np.testing.assert_array_equal(group.state["w"], brought)


def test_arrays_that_do_not_fit_are_named() -> None:
    with (
        pytest.raises(UsageError, match=r'arrays\["w"\] is of shape \(2,\)'),
        spotmpi.Group({"w": np.zeros(3, np.float32)}) as group,
    ):
        group.average({"w": np.zeros(2, np.float32)})


def test_what_is_called_outside_of_the_block_says_where_it_belongs() -> None:
    group = spotmpi.Group([np.zeros(1)])
    with pytest.raises(UsageError, match=r"group.average\(\) belongs inside `with spotmpi.Group"):
        group.average([np.zeros(1)])


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.first("3")
def test_a_group_that_lost_every_worker_resumes_with_every_average_applied(
    tmp_path: Path, every: int
) -> None:
    """A checkpoint is of what the script has made of the last average, not of before it."""
    calm = Averaging(tmp_path, 3)
    events = calm.run().events
    for seed in range(4):
        place = tmp_path / f"{seed}"
        place.mkdir()
        kept = {"SPOTMPI_CHECKPOINT": str(place / "kept"), "SPOTMPI_CHECKPOINT_EVERY": str(every)}
        moment = events * (seed + 5) // 11
        kills = [Kill(worker, moment + 3 * worker) for worker in range(3)]
        dead = replace(calm, folder=place, seed=seed, kills=kills, environ=kept)
        assert not dead.run().finals
        again = {**kept, "SPOTMPI_RESUME": "1"}
        whole = replace(dead, workers=2, kills=(), environ=again).run()
        assert whole.of("resume")
        assert set(whole.finals) == {0, 1}
        check_whole(whole)


@pytest.mark.matrix
def test_a_group_that_is_told_to_stop_has_applied_the_average_that_it_stops_after(
    tmp_path: Path,
) -> None:
    kept = {"SPOTMPI_CHECKPOINT": str(tmp_path / "kept"), "SPOTMPI_MIN_WORKERS": "3"}
    job = Averaging(tmp_path, 3, seed=1, environ=kept, kills=[Kill(1, 150)])
    with pytest.raises(spotmpi.Stopped):
        job.run()
    again = {"SPOTMPI_CHECKPOINT": kept["SPOTMPI_CHECKPOINT"], "SPOTMPI_RESUME": "1"}
    whole = replace(job, workers=2, kills=(), environ=again).run()
    assert whole.of("resume")
    check_whole(whole)


def check_whole(result: Result) -> None:
    """Both parts of a job that was resumed, as one."""
    check_exactly_once(result.records, result.job.samples, result.job.passes)
    by_hand = ByHand()
    truth = bits(replay(steps(result.records), params(0), gradient, by_hand))
    assert {final.bits for final in result.finals.values()} == {truth}


def test_an_average_is_zero_where_all_that_had_samples_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not the one before, which lies in the same array."""
    with spotmpi.Group([np.zeros(2)]) as group:
        assert group.average([np.full(2, 3.0)])[0].tolist() == [3.0, 3.0]

        monkeypatch.setattr(RoundSteps, "weigh", lambda self, workers: (0, 0))
        assert group.average([np.full(2, 5.0)])[0].tolist() == [0.0, 0.0]
