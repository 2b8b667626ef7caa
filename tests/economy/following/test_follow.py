"""``spotmpi plan --follow``: jobs and traces, and all that may become of them meanwhile."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi import cli, job_folder
from spotmpi.trace.records import Trace
from tests import learning
from tests.running import Running

PROFILE = """\
model: ring
name: training
gradient_mb: 0.001
loss: {g1: 100, g3: 1000, g5: 0.1, workers: 1}
instances:
  node: {workers_per_host: 1, cores: 2, compute_s: 0.1, exchange_s_per_worker: 0, bandwidth_mbps: 9}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """36,000 batches in an hour, on one or two nodes."""
    (tmp_path / "prices.csv").write_text("name,spot,on_demand,boot\nnode,1.0,3.0,60s\n")
    (tmp_path / "profile.yaml").write_text(PROFILE)
    file = tmp_path / "cluster.yaml"
    asked = {
        "profile": str(tmp_path / "profile.yaml"),
        "prices": str(tmp_path / "prices.csv"),
        "quota": "node:2",
        "deadline": "2h",
        "iterations": 36000,
        "runs": 20,
        "lifetime": "never",
    }
    file.write_text(json.dumps({"asked": asked}))
    return file


class Clock:
    """A training's."""

    now = 5000.0

    def __call__(self) -> float:
        return self.now


class Training:
    """Writes a trace, as a run on one host does."""

    def __init__(self, path: Path, hosts: tuple[str, ...] = ("a",)) -> None:
        self.path, self._clock, self._step = path, Clock(), 0
        self._trace = Trace(path, self._clock)
        self._workers = list(range(len(hosts)))
        self._trace.write("start", workers=self._workers, hosts=list(hosts), params=250)

    def steps(self, count: int, seconds: float = 0.1, loss: float | None = None) -> Training:
        for _ in range(count):
            self._clock.now += seconds
            fields = {"step": self._step, "workers": self._workers, "seconds": seconds}
            self._trace.write("step", loss=loss, **fields)
            self._step += 1
        return self

    def end(self) -> None:
        self._trace.write("end", step=self._step, workers=self._workers, outcome="finished")


def followed(capsys: Any, plan: Path, what: object, *more: str, code: int) -> str:
    assert cli.main(["plan", str(plan), "--follow", str(what), *more]) == code
    streams = capsys.readouterr()
    assert (streams.err == "") == (code in (0, 3))
    return str(streams.out + streams.err)


def test_a_trace_that_has_ended_says_whether_it_was_in_time_and_what_it_cost(
    capsys: Any, plan: Path, tmp_path: Path
) -> None:
    Training(tmp_path / "t", ("a", "b")).steps(3540, seconds=1.0).end()
    out = followed(capsys, plan, tmp_path / "t", code=0)
    assert "the training has ended: finished" in out
    assert "after 59.0 min, within the deadline of 2.00 h; it cost $2.00 by the price list" in out
    late = followed(capsys, plan, tmp_path / "t", "--deadline", "50min", code=3)
    assert "later than the deadline of 50.0 min" in late
    Training(tmp_path / "u").steps(30, loss=0.9).end()
    loss = followed(capsys, plan, tmp_path / "u", "--loss", "0.5", code=3)
    assert "at a loss of 0.9, and not 0.5, which was asked for" in loss


def test_what_cannot_be_followed_is_said_in_a_sentence(
    capsys: Any, plan: Path, tmp_path: Path
) -> None:
    said = followed(capsys, plan, tmp_path / "none", code=2)
    assert "there is no such file, and it is no name of a job" in said
    (tmp_path / "garbage").write_bytes(os.urandom(300).replace(b"\n", b"") + b"\n")
    assert "line 1 is not a record" in followed(capsys, plan, tmp_path / "garbage", code=1)
    (tmp_path / "poem").write_text('{"event":"step","at":1}\n')
    assert "a record lacks what a trace" in followed(capsys, plan, tmp_path / "poem", code=1)
    (tmp_path / "empty").touch()
    assert "has no start record" in followed(capsys, plan, tmp_path / "empty", code=1)
    for wrong in ('"seconds":-1', '"seconds":1e999', '"workers":7', '"at":"noon"'):
        Training(tmp_path / "t").steps(3)
        name = wrong.partition(":")[0]
        fields = {'"seconds"': '"seconds":1', '"workers"': '"workers":[0]', '"at"': '"at":9e3'}
        fields[name] = wrong
        with (tmp_path / "t").open("a") as file:
            file.write('{"event":"step","step":3,"loss":null,' + ",".join(fields.values()) + "}\n")
        assert "a record lacks what" in followed(capsys, plan, tmp_path / "t", code=1)
        (tmp_path / "t").unlink()
    assert "needs a job" in followed(
        capsys, plan, Training(tmp_path / "t").steps(3).path, "--apply", "true", code=2
    )


def test_the_job_of_another_user_is_none(capsys: Any, plan: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes folders of others")
    folder = job_folder.home() / "spotmpi-0123456789ab"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    try:
        said = followed(capsys, plan, folder.name, code=1)
    finally:
        folder.rmdir()
    assert "there is no job spotmpi-0123456789ab of yours on this host" in said


Start = Callable[..., Running]

LONG = ("--iterations", "1e9", "--every", "1s")
"""Whatever this machine does meanwhile."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("run", ...)`` starts a command in a folder of its own."""
    made: list[Running] = []

    def command(*arguments: object, program: str = "spotmpi") -> Running:
        words = [sys.executable, "-m", program, *map(str, arguments)]
        made.append(Running(words, tmp_path))
        return made[-1]

    yield command
    for one in made:
        one.close()


@pytest.mark.matrix
def test_a_trace_is_followed_while_it_is_written(start: Start, plan: Path, tmp_path: Path) -> None:
    training = Training(tmp_path / "t").steps(100)
    watch = start("plan", plan, "--follow", tmp_path / "t", "--every", "1s")
    watch.until(r"10.0 s of 2.00 h: step 100, on node:1; \$0.0194 so far")
    watch.until(r"as it is: 100 % in time, ends in 59\.\d min \(p95 59\.\d min\), \$1\.0\d in all")
    watch.until("keep it: no cluster of the quota is cheaper and in time")
    with (tmp_path / "t").open("a") as file:
        file.write('{"event":"step","step":100,"wor')  # and its writer is killed
    training.steps(4000, seconds=0.5)
    watch.until(r"step 4100, on node:1")
    watch.until(r"at 0.20 times the speed that the profile expects")
    watch.until("add node:1: .* in time, .*; no cluster of the quota is in time; this is the")
    training.end()
    assert watch.wait() == 0


@pytest.mark.matrix
def test_a_job_is_followed_to_its_end_though_its_head_pauses(
    start: Start, plan: Path, tmp_path: Path
) -> None:
    job = start("run", "-n", 2, learning.SCRIPT, 1)
    name = named(start)
    watch = start("plan", plan, *LONG, "--follow", name)
    watch.until(r"step \d+, loss \S+, on node:1; \$0.\d+ so far")
    watch.until("as it is: ")
    os.kill(job.pid, signal.SIGSTOP)
    watch.until(f"{name} does not answer: its launcher is stopped")
    os.kill(job.pid, signal.SIGCONT)
    watch.until("as it is: ", times=watch.output.count("as it is: ") + 1)
    (tmp_path / "enough").touch()
    assert watch.wait() == 0
    assert "the job has ended with code 0" in watch.output
    assert "within the deadline of 2.00 h" in watch.output
    assert job.wait() == 0


@pytest.mark.matrix
def test_a_job_whose_launcher_is_killed_is_over(start: Start, plan: Path) -> None:
    job = start("run", "-n", 1, learning.SCRIPT, 1)
    watch = start("plan", plan, *LONG, "--follow", named(start))
    watch.until("as it is: ")
    os.kill(job.pid, signal.SIGKILL)
    assert watch.wait() == 1
    assert "was killed, and the job with it" in watch.output


def named(start: Start) -> str:
    """The name of the only job, once it trains."""
    while True:
        asked = start("status", "--json")
        if asked.wait() == 0:
            report = json.loads(asked.output)
            if report["step"]:
                return str(report["job"])
