"""Sums that go from host to host, over real lines, while hosts and workers vanish."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.bench.network import Network
from spotmpi.optimizers import SGD
from spotmpi.trace import records as trace
from spotmpi.trace.replay import check_exactly_once, check_replicas, replay
from tests import learning
from tests.hosts import large
from tests.running import Running


@pytest.mark.parametrize(
    ("lost", "how"),
    [
        ("a host", None),
        ("a host", "bf16"),
        ("a host", "int8"),
        ("a host", "one by one"),
        ("a worker that is replaced", None),
        ("a worker that is replaced", "fp16"),
        ("a worker that is replaced", "int8"),
        ("a worker that is replaced", "one by one"),
        ("a host whose workers are told to leave", "one by one"),
    ],
)
def test_a_training_between_hosts_is_what_its_trace_says_to_the_bit(
    network: Callable[[int], Network], lost: str, how: str | None
) -> None:
    """A host with one worker, one with three and one with two, of which something is lost."""
    there = network(3)
    file = there.folder / "trace.jsonl"
    hosts = there.hosts_file("h1 slots=1", "h2 slots=3", "h3 slots=2")
    command = there.in_head(
        *(sys.executable, "-m", "spotmpi", "run", "--hosts", hosts, "--trace", file),
        Path(large.__file__),
        *([how] if how else []),
    )
    job = Running(command, there.folder, environ=there.environ)
    try:
        wait(job, file, 20)
        if lost == "a host":
            there.kill("h3")
        elif lost == "a host whose workers are told to leave":
            for worker in ("4", "5"):
                shrink = (sys.executable, "-m", "spotmpi", "shrink", "--worker", worker)
                subprocess.run(there.in_head(*shrink), env=there.environ, check=True)
            job.until("workers? [45].* on h3 left before step", times=2)
        else:
            os.kill(min(there.workers("h2")), signal.SIGKILL)
            job.until("worker 6 on h2 has joined")
        wait(job, file, learning.steps(file) + 30)
        (there.folder / "enough").touch()
        assert job.wait() == 0, job.output
    finally:
        job.close()
    records = list(trace.read(file))
    steps = [record for record in records if record["event"] == "step"]
    sizes = [sorted(map(len, record["hosts"])) for record in steps]
    assert sizes[0] == [1, 2, 3]
    form = None if how == "one by one" else how
    assert {record.get("narrow") for record in steps} == {form}
    if lost != "a worker that is replaced":
        assert sizes[-1] == [1, 3]
    else:
        assert [1, 2, 2] in sizes
        assert sizes[-1] == [1, 2, 3]
    finals = {words[2:4] for words in final_lines(job.output)}
    ((fingerprint, passes),) = finals
    check_exactly_once(records, large.SAMPLES, int(passes))
    check_replicas(records)
    again = replay(records, large.start(), large.gradient, SGD(lr=0.02))
    assert large.fingerprint(again) == fingerprint


def wait(job: Running, file: Path, steps: int) -> None:
    """Until the trace has so many."""
    while learning.steps(file) < steps:
        assert job.alive, f"{job.wait()}: {job.output}"


def final_lines(output: str) -> list[tuple[str, ...]]:
    """What workers said last: FINAL, who, and the rest."""
    lines = (line.partition("FINAL ") for line in output.splitlines())
    return [("FINAL", *said.split()) for _, final, said in lines if final]
