"""``spotmpi bench join``: how long a newcomer takes, and how long the others pause for it.

All agents are on this machine. The job trains with so many workers, then a host with one more
comes. Of its steps, as the trace has them:

calm     those before the host comes: median and slowest, the baseline
start    from then until the newcomer is admitted: its interpreter starts, on the same cores
door     the pause in which it is admitted, as the others measure it
lessons  the steps in which it learns, admission included: the slowest of them
after    those in which it trains, with one worker more on the same cores: their median

The pause is what the slowest lesson took beyond a calm step, or one afterwards if that is longer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from spotmpi.bench.measuring import launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.figures import size
from spotmpi.errors import UsageError
from spotmpi.launch import processes
from spotmpi.launch.start import temporary_job
from spotmpi.trace import records as trace

__all__ = ["Job", "Sample", "add_arguments", "main", "page"]

_LARGE = 25_600_000
_STEPS = 1_000_000_000
"""More than any job comes to: the bench ends it."""

_CALM = 3.0
"""Seconds of training before the host comes, and 20 steps at least."""

_LIMIT = 240.0
"""Seconds for a job to come to its newcomer's first steps."""

_PAUSE = 50.0


@dataclass(frozen=True)
class Sample:
    """One newcomer; milliseconds but for ``seconds``."""

    seconds: float
    """From the start of the agent until the newcomer trains."""
    calm: float
    slowest_calm: float
    slowest_start: float
    door: float
    slowest_lesson: float
    lessons: int
    """Steps in which it learnt."""
    after: float

    @property
    def pause(self) -> float:
        """By how much the slowest step of its lessons was longer than the others are."""
        return self.slowest_lesson - max(self.calm, self.after)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the bench."""
    parser.description = (
        "Measure how long a newcomer takes until it trains, and how long the others pause for it."
    )
    parser.epilog = (
        "example: spotmpi bench join --workers 4 --params 1000000\n\n"
        "Exit code 1 if a job failed. About half a minute for each sample."
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[2, 4],
        metavar="N",
        help="numbers of workers before the newcomer (2 4)",
    )
    parser.add_argument(
        "--params",
        type=int,
        nargs="+",
        default=[1_000_000, _LARGE],
        metavar="P",
        help="sizes of the model, in float32 (1 M, 25.6 M)",
    )
    parser.add_argument("--runs", type=int, default=5, metavar="R", help="samples of each (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for. Blocking, half a minute per sample."""
    if min(*options.workers, *options.params, options.runs) < 1:
        raise UsageError("--workers, --params and --runs are 1 or more")
    head = machine.describe()
    found: dict[tuple[int, int], list[Sample]] = {
        (workers, params): [] for workers in options.workers for params in options.params
    }
    failures: list[str] = []
    with temporary_job.ended_by_signals():
        for _ in range(options.runs):
            for workers, params in found:
                try:
                    sample = _sample(workers, params)
                except JobFailed as failed:
                    failures.append(f"{workers} workers, {size(params)}: {failed}")
                    print(f"FAILED {failures[-1]}", flush=True)
                else:
                    found[workers, params].append(sample)
                    print(f"{workers} workers, {size(params)}: {sample}", flush=True)
    if options.json:
        cells = [
            {"workers": workers, "params": params, "samples": list(map(asdict, samples))}
            for (workers, params), samples in found.items()
        ]
        results = {"bench": "join", **head, "failures": failures, "cells": cells}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    print("", *page(found), sep="\n")
    return 1 if failures else 0


def page(found: dict[tuple[int, int], list[Sample]]) -> list[str]:
    """The table, and which targets hold."""
    rows = [
        "                   | trains |  calm step, ms |  after | slowest step |  door |  pause, ms",
        "workers floats   n | in (s) |  median    max | median | start lesson |    ms | median max",
    ]
    targets = []
    for (workers, params), samples in found.items():
        if not samples:
            continue
        calm = median(one.calm for one in samples)
        pauses = [one.pause for one in samples]
        rows.append(
            f"{workers:7} {size(params):>6} {len(samples):3} |"
            f" {median(one.seconds for one in samples):6.1f} |"
            f" {calm:7.1f} {median(one.slowest_calm for one in samples):6.0f} |"
            f" {median(one.after for one in samples):6.1f} |"
            f" {median(one.slowest_start for one in samples):5.0f}"
            f" {median(one.slowest_lesson for one in samples):6.0f} |"
            f" {median(one.door for one in samples):5.1f} |"
            f" {median(pauses):6.0f} {max(pauses):4.0f}"
        )
        most = max(calm, median(one.after for one in samples), _PAUSE)
        holds = median(pauses) < most
        targets.append(
            f"  {'holds ' if holds else 'MISSED'}  {workers} workers, {size(params)}: pause "
            f"{median(pauses):.0f} ms < {most:.0f} (a step, or 50 ms)"
        )
    return [*rows, "", *targets]


def _sample(workers: int, params: int) -> Sample:
    with tempfile.TemporaryDirectory() as name, _job(Path(name), workers, params) as job:
        job.agent("first", workers)
        job.until_steps(20)
        time.sleep(_CALM)
        begin = time.monotonic()
        job.agent("later", 1)
        job.until("has joined", begin)
        job.until_steps(len(job.steps()) + 15)
        return job.measure(begin)


@contextmanager
def _job(folder: Path, workers: int, params: int) -> Iterator[Job]:
    job = Job(folder, workers, params)
    try:
        yield job
    finally:
        job.end()


class Job:
    """A training that hosts come to, and its trace."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        params: int,
        environ: Mapping[str, str] = {},
    ) -> None:
        self._folder = folder
        # An agent knows of its own workers only, and these cores are for those of all.
        yielding = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1", **environ}
        self._environ = temporary_job.environment(yielding)
        self._trace = folder / "trace.jsonl"
        self._running: list[subprocess.Popen[bytes]] = []
        self._said = (folder / "said").open("w+b")
        script = launching.SCRIPTS / "training.py"
        token = ("--token-file", folder / "token")
        self._start(
            *("run", "--listen", "127.0.0.1:0", *token, "-n", workers, "--trace", self._trace),
            *launching.NOBODY_SILENT,
            *(script, folder, params, _STEPS, ""),
        )
        self._joined: float | None = None
        text = self.until("waiting for", time.monotonic())
        self._address = text.split(" at ")[1].split()[0]

    def agent(self, name: str, slots: int) -> subprocess.Popen[bytes]:
        """A host comes; returns its agent."""
        token = self._folder / "token"
        at = ("--head", self._address, "--token-file", token)
        return self._start("agent", *at, "--name", name, "--slots", slots)

    def until(self, words: str, since: float, times: int = 1) -> str:
        """Wait until the launcher has said this so often; return all that it said."""
        while (text := self.said()).count(words) < times:
            self._check(since)
            time.sleep(0.01)
        self._joined = time.monotonic()
        return text

    def until_steps(self, count: int) -> None:
        """Wait until so many steps are in the trace."""
        since = time.monotonic()
        while len(self.steps()) < count:
            self._check(since)
            time.sleep(0.05)

    def steps(self) -> list[trace.Record]:
        """So far."""
        return [record for record in self._records() if record["event"] == "step"]

    def measure(self, begin: float) -> Sample:
        """What came of the newcomer; its agent was started at ``begin``."""
        records = self._records()
        (change,) = [record for record in records if record["event"] == "change"]
        steps = [record for record in records if record["event"] == "step"]
        learnt = next(r["step"] for r in steps if len(r["workers"]) > len(steps[0]["workers"]))
        calm = [1e3 * r["seconds"] for r in steps[10:] if r["at"] < begin]
        start = [
            1e3 * r["seconds"] for r in steps if r["at"] >= begin and r["step"] < change["step"]
        ]
        lessons = [1e3 * r["seconds"] for r in steps if change["step"] <= r["step"] < learnt]
        assert self._joined is not None
        return Sample(
            seconds=self._joined - begin,
            calm=median(calm),
            slowest_calm=max(calm),
            slowest_start=max(start),
            door=change["pause_ms"],
            slowest_lesson=max(lessons),
            lessons=len(lessons),
            after=median(1e3 * r["seconds"] for r in steps if r["step"] >= learnt),
        )

    def end(self) -> None:
        """End the job, however far it is."""
        for process in self._running:
            process.terminate()
            process.wait()
        self._said.close()

    def _start(self, *arguments: object) -> subprocess.Popen[bytes]:
        self._running.append(
            subprocess.Popen(
                _command(arguments),
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(processes.die_with_parent, os.getpid()),
            )
        )
        return self._running[-1]

    def _check(self, since: float) -> None:
        if self._running[0].poll() is not None or time.monotonic() - since > _LIMIT:
            raise JobFailed(f"the job did not come so far:\n{self.said()[-1500:]}")

    def said(self) -> str:
        """All that the launcher and the agents have said."""
        return (self._folder / "said").read_text(errors="replace")

    def _records(self) -> list[trace.Record]:
        found: list[trace.Record] = []
        if self._trace.exists():
            for line in self._trace.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # else it is being written
                    found.append(json.loads(line))
        return found


def _command(arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", "spotmpi", *map(str, arguments)]
