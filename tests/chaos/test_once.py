"""What is done once is done, whoever really dies over it; and the others wait for it in peace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.test_revocations import HERE, TIMEOUT, Job

PASSES = 2


@pytest.fixture(params=[pytest.param("Plain", marks=pytest.mark.matrix), "Node"])
def run(run_spotmpi, tmp_path: Path, request):
    """``run(workers, chaos, "loop" or "end")`` -> Job, over both data planes."""
    path = tmp_path / "trace.jsonl"
    (tmp_path / "kept").mkdir()

    def start(workers: int, chaos: str, once: str, *options: str) -> Job:
        script = [HERE / "script.py", "--passes", str(PASSES), "--plane", request.param]
        wide = request.param == "Node"
        script += ["--wide"] if wide else []
        done = run_spotmpi(
            ["run", "-n", str(workers), "--trace", path, *options, *script, "--once", once],
            timeout=TIMEOUT,
            env={"CHAOS": chaos},
        )
        job = Job(done, path, PASSES, wide)
        job.check()
        return job

    return start


def kept(job: Job, folder: Path) -> dict[str, list[int]]:
    """Who did it, at which moment; each file is whole, and as the last one wrote it."""
    found: dict[str, list[int]] = {}
    for moment, worker in re.findall(r"KEPT (\S+) by (\d+)", job.out):
        found.setdefault(moment, []).append(int(worker))
    for moment, workers in found.items():
        assert (folder / "kept" / moment).read_text() == f"{workers[-1]} kept {moment}"
    return found


@pytest.mark.parametrize(
    ("workers", "chaos", "dead"),
    [
        (2, "0:work:1", {0}),
        pytest.param(
            4, "0:work:2,1:work:1,2:worked:1", {0, 1, 2}, marks=pytest.mark.promise("once")
        ),
        (4, "0:worked:2,2:Wait:20", {0, 2}),
        (4, "0:work:3,1:Poll:1", {0, 1}),
        (5, "3:Wait:9,0:work:2,4:Rebuild:2", {0, 3, 4}),
    ],
)
def test_in_the_loop_it_is_done_whoever_dies(
    run, tmp_path: Path, workers: int, chaos: str, dead: set[int]
) -> None:
    """In the middle of it, right after it, and beside it."""
    job = run(workers, chaos, "loop")
    assert job.survivors == set(range(workers)) - dead, job.out + job.err
    steps = len(job.of("step"))
    found = kept(job, tmp_path)
    assert found.keys() == {*(f"step-{step}" for step in range(3, steps + 1, 3)), "end"}
    for done_by in found.values():
        assert set(done_by[:-1]) <= dead


@pytest.mark.parametrize("moment", ["work", "worked"])
@pytest.mark.parametrize("leaders", [1, 2])
def test_after_the_loop_no_result_is_lost(run, tmp_path: Path, moment: str, leaders: int) -> None:
    """The very last thing that a job does."""
    job = run(3, ",".join(f"{leader}:{moment}:1" for leader in range(leaders)), "end")
    assert job.survivors == set(range(leaders, 3))
    ((_, done_by),) = kept(job, tmp_path).items()
    # Who dies before its value is on its way leaves the next one to do it.
    assert done_by == list(range(leaders if moment == "work" else 0, leaders + 1))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_while_its_value_is_on_its_way_anybody_may_die(run, tmp_path: Path, count: int) -> None:
    """The rounds that carry it are the last ones but one."""
    calm = run(3, "", "end")
    # Each round has one Wait; the last is that of the end, before it come three of once().
    waits = len(calm.of("step")) + 1 + 4
    job = run(3, f"0:Wait:{waits + 1 - count}", "end")
    assert job.survivors == {1, 2}, job.err
    assert kept(job, tmp_path)


FAILING = """
import numpy as np, spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

def evaluate():
    raise OSError("no room for the model")

with spotmpi.Trainer({"w": np.zeros(3)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    for batch in trainer.batches(40, batch_size=2):
        trainer.step({"w": np.ones(3)})
        if CATCH:
            try:
                trainer.once(evaluate)
            except spotmpi.errors.OnceError as error:
                assert "no room for the model" in str(error)
    trainer.once(evaluate if not CATCH else lambda: print("SAVED"))
"""


@pytest.mark.parametrize("catch", [True, False])
def test_what_it_raises_is_one_clear_error_on_all(run_spotmpi, tmp_path: Path, catch: bool) -> None:
    """And if the script catches it, training goes on."""
    (tmp_path / "train.py").write_text(FAILING.replace("CATCH", str(catch)))
    done = run_spotmpi(["run", "-n", "3", "train.py"], timeout=TIMEOUT)
    said = done.stdout + done.stderr
    assert done.returncode == (0 if catch else 1), said
    if catch:
        assert said.count("SAVED") == 1
        return
    assert said.count("OSError: no room for the model") == 1
    assert 'raise OSError("no room for the model")' in said
    assert "trainer.once() failed on worker 0 at step 7" in said
    assert said.count("Traceback (most recent call last)") == 1


LONG = """
import sys, time
import numpy as np, spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

def evaluate():
    until = time.monotonic() + 4
    while time.monotonic() < until:
        np.sort(np.random.default_rng(0).normal(size=1000))
    return trainer.worker

with spotmpi.Trainer({"w": np.zeros(3)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    for batch in trainer.batches(40, batch_size=2):
        trainer.step({"w": np.ones(3)})
    assert trainer.once(evaluate) == 0
"""


def test_nobody_is_taken_for_a_worker_that_hangs(run_spotmpi, tmp_path: Path) -> None:
    """It works for four times as long as anybody may do nothing."""
    (tmp_path / "train.py").write_text(LONG)
    done = run_spotmpi(["run", "-n", "3", "--stall-timeout", "1", "train.py"], timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert "revoked" not in done.stderr
