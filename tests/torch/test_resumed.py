"""Torch scripts that go on from a checkpoint: between two steps, with all that they train with."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.arrays.registry import Registry  # noqa: E402
from spotmpi.errors import CheckpointError, OnceError, UsageError  # noqa: E402
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice  # noqa: E402
from spotmpi.protocol.plain_values import pack  # noqa: E402
from spotmpi.torch import belongings  # noqa: E402
from spotmpi.torch.belongings import Belongings  # noqa: E402
from spotmpi.torch.dealing import Deal, Place  # noqa: E402
from spotmpi.torch.kept_script import KeptScript  # noqa: E402
from spotmpi.torch.passes import Pass, Way  # noqa: E402
from spotmpi.training.round_runner import RoundRunner  # noqa: E402
from spotmpi.training.state.finite import Finite  # noqa: E402
from tests.launch.conftest import start  # noqa: E402, F401
from tests.running import unnamed  # noqa: E402
from tests.simulated import Result  # noqa: E402
from tests.torch import stops  # noqa: E402
from tests.torch.dealt_job import PASSES, SAMPLES, Passes  # noqa: E402
from tests.torch.test_newcomers import installed, made  # noqa: E402, F401
from tests.torch.test_process_group import alone  # noqa: E402, F401
from tests.training.test_finite import Heard  # noqa: E402

HERE = Path(__file__).parent

WORKERS = 3


def job(folder: Path, **changes: Any) -> Passes:
    """A job that keeps checkpoints in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {"SPOTMPI_CHECKPOINT": str(folder / "kept"), "SPOTMPI_CHECKPOINT_EVERY": "3"}
    return replace(Passes(folder, WORKERS, environ=environ), **changes)


def resumed(before: Passes, **changes: Any) -> Result:
    """Run it again, from its last checkpoint."""
    environ = {**before.environ, "SPOTMPI_RESUME": "1"}
    calm = {"kills": (), "notices": (), "arrivals": ()}
    return replace(before, environ=environ, **{**calm, **changes}).run()


def agreed(result: Result) -> bytes:
    """Return what all have come to."""
    (bits,) = {final.bits for final in result.finals.values()}
    return bits


def used(*results: Result) -> Counter[tuple[int, int]]:
    """Return how often each sample was used in each pass, by jobs that followed each other."""
    whole: Counter[tuple[int, int]] = Counter()
    for result in results:
        counts = [final.gradients for final in result.finals.values() if not final.began]
        assert all(one == counts[0] for one in counts)
        whole += counts[0] if counts else Counter()
    return whole


EACH = {(number, sample) for number in range(PASSES) for sample in range(SAMPLES)}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run in which nothing happens."""
    return job(tmp_path_factory.mktemp("calm")).run()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.first(*map(str, range(0, 12, 3)))
def test_a_job_that_was_told_to_stop_goes_on_to_the_bit(
    tmp_path: Path, calm: Result, seed: int
) -> None:
    moment = 1 + (seed * calm.events) // 12
    notices = [LeaveNotice(worker, moment) for worker in range(WORKERS)]
    first = job(tmp_path, notices=notices, seed=seed)
    stopped = first.run()
    if not all(final.stopped for final in stopped.finals.values()):
        assert used(stopped).keys() == EACH  # it was at its end
        return
    again = resumed(first)
    # A worker that hears of it a round before the others leaves them to take a step without it.
    # Then what is left of the pass may be no whole number of batches for all, and some fill these.
    whole = all(len(record["workers"]) == WORKERS for record in stopped.of("step"))
    assert (agreed(again) == agreed(calm)) == whole
    counts = used(stopped, again)
    assert counts.keys() == EACH
    if whole:
        steps = PASSES * SAMPLES // WORKERS // 2
        assert {final.steps for final in again.finals.values()} == {steps}
        assert {*counts.values()} == {1}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.first(*map(str, range(0, 12, 3)))
def test_a_job_whose_workers_all_died_goes_on_from_its_last_checkpoint(
    tmp_path: Path, calm: Result, seed: int
) -> None:
    moment = 1 + calm.events // 3 + seed * calm.events // 20
    first = job(tmp_path, kills=[Kill(worker, moment) for worker in range(WORKERS)], seed=seed)
    first.run()
    again = resumed(first)
    assert agreed(again) == agreed(calm)
    assert {final.steps for final in again.finals.values()} == {PASSES * SAMPLES // WORKERS // 2}


def test_a_checkpoint_that_is_due_as_a_newcomer_comes_is_kept(tmp_path: Path) -> None:
    environ = {"SPOTMPI_CHECKPOINT_EVERY": "5"}
    for at in range(60, 300, 24):
        first = job(tmp_path / f"{at}", arrivals=[Arrival(WORKERS, at)], many=240, over=1)
        result = replace(first, environ={**first.environ, **environ}).run()
        assert result.finals[WORKERS].means[1], "it came within the pass"
        kept = {record["step"] for record in result.of("checkpoint")}
        last = max(final.steps for final in result.finals.values())
        # (A newcomer's coming counts as a step, which may be the one after which it is due.)
        assert all(kept & {due, due + 1} for due in range(5, last, 5)), at


@pytest.mark.parametrize("every", [39, pytest.param(3, marks=pytest.mark.matrix)])
def test_all_stop_at_any_event_of_a_newcomer_s_coming(
    tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RoundRunner, "_strayed", None)
    come = [Arrival(WORKERS, 60)]
    calm = job(tmp_path / "calm", arrivals=come).run()
    assert calm.finals[WORKERS].means[1], "it came within a pass"
    stops = 0
    for event in range(60, calm.events // 2, every):
        notices = [LeaveNotice(worker, event) for worker in range(WORKERS + 1)]
        first = job(tmp_path / f"{event}", arrivals=come, notices=notices)
        try:
            stopped = first.run()
        except OnceError as error:  # all others had left before the newcomer had anything
            if "all workers that had the model are lost" not in str(error):
                raise
            continue
        agreed(stopped)
        stops += WORKERS in stopped.finals
        assert all(final.stopped for final in stopped.finals.values())
        again = resumed(first)
        agreed(again)
        if {*stopped.finals} & {*range(WORKERS)}:  # those know what was used before
            assert used(stopped, again).keys() == EACH
    assert stops > 20 / every


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.first(*map(str, range(0, 24, 3)))
def test_whoever_dies_or_comes_before_and_after_it_all_hold_the_same(
    tmp_path: Path, calm: Result, seed: int
) -> None:
    """On other numbers of workers, too. No sample is left out."""
    draw = random.Random(seed)

    def kills(many: int) -> list[Kill]:
        return [Kill(worker, draw.randrange(calm.events)) for worker in range(many)]

    late = draw.randrange(calm.events // 4, calm.events)
    first = job(
        tmp_path,
        kills=kills(draw.randrange(2)),
        arrivals=[Arrival(WORKERS, draw.randrange(calm.events))] * draw.randrange(2),
        notices=[LeaveNotice(worker, late) for worker in range(WORKERS + 1)],
        seed=seed,
    )
    stopped = first.run()
    workers = draw.randrange(2, 5)
    again = resumed(
        first,
        workers=workers,
        kills=kills(draw.randrange(2)),
        arrivals=[Arrival(workers, draw.randrange(calm.events))] * draw.randrange(2),
        seed=seed + 100,
    )
    agreed(again)
    assert used(stopped, again).keys() == EACH


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.first(*map(str, range(0, 16, 4)))
def test_who_comes_while_a_job_is_resumed_joins_at_a_later_pass(
    tmp_path: Path, calm: Result, seed: int
) -> None:
    """It would begin the present one at its beginning, where the others do not."""
    moment = calm.events // 4 + seed * calm.events // 40
    first = job(tmp_path, notices=[LeaveNotice(worker, moment) for worker in range(WORKERS)])
    stopped = first.run()
    again = resumed(first, arrivals=[Arrival(WORKERS, 1 + seed * calm.events // 60)])
    agreed(again)
    assert used(stopped, again).keys() == EACH
    assert again.finals.keys() >= {*range(WORKERS)}


# What a file says.


def test_what_is_left_is_dealt_as_it_would_have_been() -> None:
    deal = Deal(np.arange(24), (0, 1, 3))
    for used in (0, 3, 8):
        left = deal.left(used)
        again = Deal(left, (0, 1, 3))
        assert all((again.of(one) == deal.of(one)[used:]).all() for one in (0, 1, 3))
    deal.lose([1], 3)
    left = deal.left(5)
    assert set(left) == {*range(24)} - {n for one in (0, 3) for n in deal.of(one)[:5].tolist()} - {
        *range(1, 9, 3)
    }
    assert Place(7, 3, None, True).used_by_each_of(3) == 7
    assert Place(7, 3, None, True).used_by_each_of(2) == 10  # 21 samples


@pytest.mark.parametrize(
    "changes",
    [
        {"torch/holds": None},
        {"torch/holds": b"nonsense"},
        {"torch/numbers": np.zeros(3)},
        {"torch/numbers": np.zeros((1, 3), np.uint8)},
        {"torch/trained": None},
        {"torch/left": np.zeros(3)},
        {"torch/workers": "three"},
        {"torch/missed": "many"},
        {"torch/course": None},
        {"torch/orders": None},
        {"torch/orders": pack([1])},
    ],
)
def test_a_checkpoint_of_another_script_is_refused(changes: dict[str, Any]) -> None:
    whole = {
        "torch/holds": pack([]),
        "torch/numbers": np.zeros(0, np.uint8),
        "torch/trained": "11",
        "torch/missed": 0,
        "torch/course": 0,
        "torch/orders": pack([(0, b"nonsense")]),  # of a loader that is not there
        "torch/used": 4,
        "torch/workers": 3,
        "torch/left": np.arange(7),
    }
    script = KeptScript(Belongings())
    script.resume(whole, "it")
    assert script.found is not None
    assert script.found.trained == [True, True]
    assert script.arrive() == Place(4, 3, whole["torch/left"], summed=True)
    found = {name: one for name, one in {**whole, **changes}.items() if one is not None}
    with pytest.raises(CheckpointError, match="it does not say what a script"):
        KeptScript(Belongings()).resume(found, "it")


@pytest.mark.parametrize(
    "tensor", [("float32", [4], "cpu"), ("load", [1], "cpu"), ("float32", [-1], "cpu")]
)
def test_tensors_that_cannot_be_are_refused(made: Any, tensor: tuple[Any, ...]) -> None:  # noqa: F811
    """A file may say anything."""
    made(1)[:] = []
    module = torch.nn.Linear(1, 1)
    belongings.MADE[:] = [weakref.ref(module)]
    holds = pack([("Linear", [("weight", ("\0tensor", *tensor)), ("bias", 0)])])
    with pytest.raises(UsageError, match="does not fit"):
        Belongings().take(holds, np.zeros(8, np.uint8))


def test_a_checkpoint_says_if_the_model_is_not_finite(made: Any) -> None:  # noqa: F811
    those, script = made(1), KeptScript(Belongings())
    finite = Finite(Registry(), "params", refuses=False)
    assert finite.holds(script.kept())
    with torch.no_grad():
        those[0][0].bias[1] = float("nan")
    assert not finite.holds(script.kept())
    assert script.broken == "parameter 0.bias"
    those[0][0].bias.requires_grad = False  # as a mask of infinities
    assert finite.holds(script.kept())
    assert script.broken is None


@pytest.mark.parametrize("broken", [None, "parameter 0.bias"])
def test_the_launcher_is_told_if_the_end_is_not_finite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str | None
) -> None:
    heard = Heard(monkeypatch)
    monkeypatch.setattr(Belongings, "broken", broken)
    job(tmp_path).run()
    # By the leader alone: what others know of is an earlier checkpoint.
    assert heard.ends == ([f"{broken} holds NaN or infinity"] if broken else [])


# Real processes.


@pytest.mark.parametrize("sampler", ["torch", "elastic"])
@pytest.mark.first("elastic")
@pytest.mark.promise("a script for DistributedDataParallel that is stopped and resumed")
def test_it_goes_on_within_a_pass(
    start: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
) -> None:
    check_resumed(start, monkeypatch, "cpu", sampler)


def check_resumed(
    start: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    sampler: str,
) -> None:
    """A job that was stopped within a pass comes to the same as one that was not, to the bit."""
    installed()
    script = HERE / "stops.py", device, sampler
    whole = start("run", "-n", 2, *script)
    assert whole.wait() == 0, whole.output
    how = "run", "-n", 2, "--checkpoint", "kept"
    with monkeypatch.context() as patch:
        patch.setenv("SLOW", "1")
        first = start(*how, *script)
    first.until("AT 2 5")
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait() == 75, first.output
    again = start(*how, "--resume", *script)
    assert again.wait() == 0, again.output
    for what in ("FINAL .*", "BUFFERS .*"):
        said = re.findall(what, unnamed(whole.output))
        assert sorted(said) == sorted(re.findall(what, unnamed(again.output))), again.output
    assert "AT 1" not in again.output  # one batch of each pass that was over


@pytest.mark.matrix
@pytest.mark.parametrize(("sampler", "workers"), [("torch", 2), ("elastic", 4)])
def test_it_goes_on_with_others_when_all_are_lost(
    start: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    workers: int,
) -> None:
    installed()
    how = "--checkpoint", "kept", "--checkpoint-every", 15
    monkeypatch.setenv("SLOW", "1")
    first = start("run", "-n", 3, *how, HERE / "stops.py", "cpu", sampler)
    first.until("AT 2 15")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    monkeypatch.delenv("SLOW")
    resume = "run", "-n", workers, *how, "--resume", HERE / "stops.py", "cpu", sampler
    again = start(*resume)
    assert again.wait() == 0, again.output
    finals = re.findall(r"FINAL \d (\w+)", again.output)
    assert len(finals) == workers
    assert len({*finals}) == 1
    seen = {
        (number, sample)
        for path in tmp_path.glob("used-*")
        for number, batch in map(json.loads, path.read_text().splitlines())
        for sample in batch
    }
    assert len(seen) == stops.PASSES * stops.SAMPLES
    over = start(*resume)
    assert over.wait() == 0
    assert "complete" in over.output
    assert "AT" not in over.output


@pytest.mark.matrix
def test_a_script_that_ends_with_nan_has_a_code_of_its_own(
    start: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed()
    monkeypatch.setenv("BREAKS", "1")
    running = start("run", "-n", 2, "--checkpoint", "kept", HERE / "stops.py", "cpu", "elastic")
    assert running.wait() == 65, running.output
    assert "parameter 0.weight holds NaN or infinity" in running.output
    assert ".not-finite.h5" in running.output


@pytest.mark.matrix
def test_a_script_that_cannot_be_seen_through_keeps_none(start: Any, tmp_path: Path) -> None:  # noqa: F811
    installed()
    running = start("run", "-n", 1, "--checkpoint", "kept", HERE / "stops.py", "cpu", "none")
    assert running.wait() == 1, running.output
    assert "gradients were summed outside of a pass:" in running.output


def test_no_pass_and_several_at_a_time_cannot_be_seen_through(
    alone: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entrance = alone.entrance
    monkeypatch.setattr(type(entrance.calls.group), "keeps", True)
    with pytest.raises(UsageError, match="summed outside of a pass"):
        entrance.sum_up()
    for _ in range(2):
        entrance.passes.begin(Pass([0], 4), Way(object()))
    with pytest.raises(UsageError, match="while several passes were under way"):
        entrance.sum_up()
