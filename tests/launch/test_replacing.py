"""Workers that are killed on a host that stays are replaced, and more are asked for."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import learning
from tests.launch.asking import folder_of

DYING = """
import os, pathlib, signal
import numpy as np, spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

enough = 0.0
with spotmpi.Trainer({"w": np.zeros(8)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    while not enough:
        for batch in trainer.batches(64, batch_size=4):
            trainer.step({"w": np.ones(8)})
            if trainer.worker > 2 or (trainer.worker, trainer.steps) == (1, 30):
                os.kill(os.getpid(), signal.SIGKILL)
        enough = trainer.mean(float(pathlib.Path("enough").exists()))
print("TRAINED", trainer.worker)
"""


class Training:
    """A training on this host."""

    def __init__(self, start: Callable[..., object], folder: Path, *options: object) -> None:
        self.start, self.folder = start, folder
        self.trace = folder / "trace.jsonl"
        self.job = start("run", "--trace", self.trace, *options, learning.SCRIPT, 40)

    def until_step(self, step: int) -> Training:
        """Wait until the trace has so many lines of steps."""
        while learning.steps(self.trace) < step:
            assert self.job.alive, self.job.wait()
        return self

    def wrapper(self, worker: int) -> int:
        """The process id of a worker's wrapper, once it is there: its worker is its child."""
        first, newcomer = f"OMPI_COMM_WORLD_RANK={worker}", f"SPOTMPI_NEWCOMER={worker}"
        while True:
            for pid in self.job.wrappers:
                try:
                    environ = Path(f"/proc/{pid}/environ").read_text().split("\0")
                except OSError:
                    continue
                late = any(one.startswith("SPOTMPI_NEWCOMER=") for one in environ)
                if newcomer in environ or (first in environ and not late):
                    return pid
            assert self.job.alive, self.job.wait()

    def kill(self, *workers: int) -> None:
        """Kill workers (not their wrappers) by SIGKILL, at once."""
        victims = [pid for one in workers for pid in self.job.children(self.wrapper(one))]
        assert len(victims) == len(workers)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    def check(self, *survivors: int) -> None:
        """They have finished with equal replicas; every sample counted once in each pass."""
        (self.folder / "enough").touch()
        assert self.job.wait() == 0, self.job.output
        learning.check(self.job.output, self.trace, survivors)


@pytest.fixture
def train(start, tmp_path: Path) -> Callable[..., Training]:
    """``train("-n", 3, "--replace")`` starts a training."""

    def begin(*options: object) -> Training:
        return Training(start, tmp_path, *options).until_step(30)

    return begin


@pytest.fixture
def hosts(tmp_path: Path) -> list[object]:
    """Three workers on this host, as on any other."""
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    return ["--hosts", tmp_path / "hosts"]


@pytest.fixture(params=["one host", "hosts"])
def replaced(request: pytest.FixtureRequest, hosts: list[object]) -> list[object]:
    """Three workers, of which those are replaced that are killed."""
    return ["-n", 3, "--replace"] if request.param == "one host" else hosts


@pytest.mark.matrix
def test_a_worker_that_is_killed_is_replaced_so_that_the_job_may_lose_as_many_again(
    train, replaced: list[object], tmp_path: Path
) -> None:
    training = train(*replaced, "--min-workers", 2, "--checkpoint", tmp_path / "kept")
    for lost, comes in ((1, 3), (3, 4)):
        training.kill(lost)
        training.job.until(f"worker {lost} on localhost was revoked .*; 2 of 3 workers remain")
        training.job.until(f"worker {comes} on localhost starts in place of worker {lost}")
        training.job.until(f"worker {comes} on localhost has joined")
    assert training.job.output.count("say `spotmpi shrink --worker W`") == 1
    assert ("--no-replace" in training.job.output) is ("--replace" not in replaced)
    training.check(0, 2, 4)


@pytest.mark.parametrize("where", ["one host", "hosts"])
@pytest.mark.matrix
def test_nobody_is_where_that_was_not_asked_for(train, hosts: list[object], where: str) -> None:
    training = train(*(["-n", 3] if where == "one host" else [*hosts, "--no-replace"]))
    training.kill(1)
    training.job.until("2 of 3 workers remain")
    grow = training.start("grow", "--workers", 1)
    if where == "one host":
        assert grow.wait() == 2
        assert "start it with --replace to have it grow on this host" in grow.output
        training.check(0, 2)
    else:  # this one is the first that comes
        assert grow.wait() == 0, grow.output
        training.job.until("worker 3 on localhost has joined")
        training.check(0, 2, 3)
    assert "in place of" not in training.job.output


@pytest.mark.matrix
def test_a_place_in_which_workers_die_again_and_again_is_given_up(
    start, hosts: list[object], tmp_path: Path
) -> None:
    """As they do where there is too little memory for one more."""
    (tmp_path / "script.py").write_text(DYING)
    job = start("run", *hosts, "script.py")
    job.until("nobody is started any more in place of worker 6 on localhost: 4 times in a row")
    assert len(re.findall("worker [3-6] on localhost starts in place of", job.output)) == 4
    (tmp_path / "enough").touch()
    assert job.wait() == 0, job.output
    assert job.output.count("TRAINED") == 2


@pytest.mark.matrix
def test_a_training_that_ends_while_a_replacement_starts_waits_for_nobody(
    train, hosts: list[object], ended
) -> None:
    training = train(*hosts)
    training.kill(1)
    training.job.until("worker 3 on localhost starts in place of worker 1")
    starting = training.wrapper(3)
    training.check(0, 2)
    assert ended(starting)


@pytest.mark.matrix
def test_all_are_told_to_stop_and_one_is_killed_meanwhile(
    train, hosts: list[object], tmp_path: Path
) -> None:
    training = train(*hosts, "--checkpoint", tmp_path / "kept")
    stop = training.start("stop")
    stop.until("the workers stop after this step")
    training.kill(1)
    assert training.job.wait() == 75, training.job.output
    assert "in place of" not in training.job.output


@pytest.mark.matrix
def test_the_leader_and_another_are_killed_at_once(train) -> None:
    training = train("-n", 3, "--replace")
    training.kill(0, 2)
    training.job.until("worker [34] on localhost has joined", times=2)
    training.check(1, 3, 4)


@pytest.mark.matrix
def test_the_replacement_is_killed_while_it_starts(train) -> None:
    training = train("-n", 3, "--replace")
    training.kill(0)
    for worker in (3, 4):
        os.kill(training.wrapper(worker), signal.SIGKILL)
        training.job.until(f"worker {worker} on localhost did not join: SIGKILL")
    training.job.until("worker 5 on localhost has joined")
    training.check(1, 2, 5)


@pytest.mark.parametrize("victim", ["replacement", "sponsor"])
@pytest.mark.matrix
def test_one_of_the_two_is_killed_while_the_replacement_is_admitted(train, victim: str) -> None:
    training = train("-n", 3, "--replace")
    training.kill(0)
    training.job.started(r"stand_in\.py \S+ 3")
    training.kill(3 if victim == "replacement" else 1)
    lost = {0} if victim == "replacement" else {0, 1}
    joined = training.job.until(r"worker (\d) on localhost has joined", times=len(lost))
    training.check(*({0, 1, 2} - lost), *(int(found[1]) for found in joined))


@pytest.mark.matrix
def test_below_min_workers_nobody_waits_for_a_replacement(train, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    training = train("-n", 3, "--replace", "--min-workers", 3, "--checkpoint", kept)
    training.kill(1)
    assert training.job.wait() == 75, training.job.output
    assert list(kept.glob("*.h5"))


@pytest.mark.matrix
def test_a_job_on_one_host_grows(train) -> None:
    training = train("-n", 2, "--replace")
    grow = training.start("grow", "--workers", 2)
    assert grow.wait() == 0, grow.output
    assert "2 workers more on localhost: they join while the others train" in grow.output
    training.job.until("worker [23] on localhost has joined", times=2)
    training.kill(2)
    training.job.until("worker 4 on localhost has joined")
    elsewhere = training.start("grow", "--host", "h5")
    assert elsewhere.wait() == 2
    assert "this job was started with -n, for this host alone" in elsewhere.output
    training.check(0, 1, 3, 4)


@pytest.mark.matrix
def test_a_worker_that_was_taken_out_is_not_replaced(train) -> None:
    training = train("-n", 3, "--replace")
    assert training.start("shrink", "--worker", 1).wait() == 0
    training.job.until("worker 1 on localhost left before step")
    training.kill(2)
    training.job.until("worker 3 on localhost has joined")
    training.check(0, 3)


@pytest.mark.matrix
def test_a_spare_takes_the_place_of_one_that_is_killed(train) -> None:
    training = train("-n", 3, "--spares", 1)
    training.kill(0)
    training.job.until("worker 2 on localhost has joined")
    training.check(1, 2)


PLACED = """
import os
import numpy as np, spotmpi
with spotmpi.Group([np.zeros(1)]):
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    print("PLACE", *(os.environ[name] for name in names), "END")
"""


def test_a_torch_script_s_host_has_as_many_workers_as_began_without_spares(
    start, tmp_path: Path
) -> None:
    script = tmp_path / "placed.py"
    script.write_text(PLACED)
    job = start("run", "-n", 3, "--spares", 1, script)
    assert job.wait() == 0, job.output
    assert {*re.findall("PLACE (.+) END", job.output)} == {"0 2 0 2", "1 2 1 2"}, job.output


@pytest.mark.matrix
def test_everything_goes_with_a_launcher_that_is_killed_while_a_replacement_starts(
    train, ended
) -> None:
    training = train("-n", 3, "--replace")
    training.kill(0)
    everything = [training.wrapper(3), *training.job.wrappers, *training.job.stand_ins]
    os.kill(training.job.pid, signal.SIGKILL)
    assert training.job.wait() == -signal.SIGKILL
    assert all(ended(pid) for pid in everything)


@pytest.mark.matrix
def test_kept_alive_a_job_that_is_killed_as_a_whole_goes_on_from_its_checkpoint(
    train, tmp_path: Path
) -> None:
    kept = ("--checkpoint", tmp_path / "kept", "--checkpoint-every", 20)
    training = train("-n", 2, "--keep-alive", *kept).until_step(100)
    name = folder_of(training.job).name
    training.kill(0, 1)
    training.job.until("every worker was revoked\n")
    training.job.until("starting again, from its newest checkpoint")
    while '"event":"resume"' not in (text := training.trace.read_text()):
        assert training.job.alive, training.job.wait()
    training.until_step(text.count('"event":"step"') + 20)
    assert folder_of(training.job).name == name
    training.check(0, 1)


@pytest.mark.matrix
def test_a_job_that_is_killed_as_a_whole_again_and_again_is_not_started_for_ever(
    start, tmp_path: Path
) -> None:
    job = Training(start, tmp_path, "-n", 2, "--keep-alive", "--revoke", "0,1@5").job
    assert job.wait() == 69
    assert job.output.count("starting again, from the beginning: it has no checkpoint") == 3
    assert "4 times in a row all workers were lost within 60 s" in job.output
