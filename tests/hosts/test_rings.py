"""Sums that go from host to host, over real lines, while hosts and workers vanish."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.arrays.narrowing import FORMATS
from spotmpi.bench.measuring.network import Network
from spotmpi.optimizers import SGD
from spotmpi.replay import check_exactly_once, check_replicas, replay
from spotmpi.trace import records as trace
from tests import learning
from tests.hosts import large
from tests.patience import NEVER_SILENT
from tests.running import Running


@pytest.mark.parametrize(
    ("lost", "how", "size"),
    [
        # Each event, each way and each size with another: no plane knows which event it was.
        ("a host", "whole", large.MEDIUM),
        ("a host", "int8", large.SIZE),
        ("a worker that is replaced", "whole", large.SIZE),
        ("a worker that is replaced", "bf16", large.SIZE),
        ("a worker that is replaced", "one by one", large.MEDIUM),
        ("a host whose workers are told to leave", "one by one", large.SIZE),
    ],
)
def test_a_training_between_hosts_is_what_its_trace_says_to_the_bit(
    network: Callable[[int], Network], lost: str, how: str, size: int
) -> None:
    """A host with one worker, one with three and one with two, of which something is lost."""
    there = network(3)
    file = there.folder / "trace.jsonl"
    hosts = there.hosts_file("h1 slots=1", "h2 slots=3", "h3 slots=2")
    command = there.in_head(
        *(sys.executable, "-m", "spotmpi", "run", "--hosts", hosts, "--trace", file),
        *NEVER_SILENT,
        *(Path(large.__file__), how, size),
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
    form = how if how in FORMATS else None
    assert {record.get("narrow") for record in steps} == {form}
    ways = {"ring", "straight"} if size == large.SIZE else {"first", "straight"}
    check_ways(records, {"ring"} if form else ways)
    if lost != "a worker that is replaced":
        assert sizes[-1] == [1, 3]
    else:
        assert [1, 2, 2] in sizes
        assert sizes[-1] == [1, 2, 3]
    finals = {words[2:4] for words in final_lines(job.output)}
    ((fingerprint, passes),) = finals
    check_exactly_once(records, large.SAMPLES, int(passes))
    check_replicas(records)
    again = replay(records, large.start(size), large.gradient, SGD(lr=0.02))
    assert large.fingerprint(again) == fingerprint


def check_ways(records: list[dict[str, Any]], ways: set[str]) -> None:
    """The small array goes by the first workers. If there are several ways for the large one, it
    tries them whenever its members have changed, and goes on by the fastest."""
    chosen: dict[int, tuple[int, str]] = {}
    steps = [record for record in records if record["event"] == "step"]
    for record in records:
        if record["event"] == "way":
            assert record["array"] == 1
            assert record["ms"].keys() == ways
            assert record["ms"][record["way"]] == min(record["ms"].values())
            chosen[record["generation"]] = record["step"], record["way"]
        elif record["event"] == "step":
            first, second = record["ways"]
            assert first == "first"
            since, way = chosen.get(record["generation"], (record["step"], ""))
            assert second in (ways if record["step"] <= since else {way})
    assert {record["ways"][1] for record in steps} == ways
    assert bool(chosen) == (len(ways) > 1)
    assert steps[-1]["generation"] in chosen or len(ways) == 1


def wait(job: Running, file: Path, steps: int) -> None:
    """Until the trace has so many."""
    while learning.steps(file) < steps:
        assert job.alive, f"{job.wait()}: {job.output}"


def final_lines(output: str) -> list[tuple[str, ...]]:
    """What workers said last: FINAL, who, and the rest."""
    lines = (line.partition("FINAL ") for line in output.splitlines())
    return [("FINAL", *said.split()) for _, final, said in lines if final]
