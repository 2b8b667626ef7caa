"""Where the news of a training come from: a job that runs on this host, or a trace.

`follow` finds either. A source is asked to `look` again and again; what it has seen is `watched`.
Faults that may pass (a launcher that does not answer, a trace that is not there yet) are sentences
of `trouble`; a trace that is none is a TraceError.
"""

from __future__ import annotations

import datetime
import math
import select
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from spotmpi import job_folder
from spotmpi.economy.following.watched import Watched
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch.commands import client
from spotmpi.launch.commands.client import Gone, JobEnd
from spotmpi.launch.control_messages import AskShrink, Report, Said
from spotmpi.trace.records import Record, Tail

__all__ = ["End", "Job", "Source", "Trace", "follow"]

_HERE = ("training", "trained")
_COMING = ("starting", "waiting", "joining")
_QUIET_S = 60.0
"""A trace that has not grown for so long is worth a word."""
_LONGEST_STEP_S = 1e7


class End:
    """The training has ended; in order, or else why not."""

    def __init__(self, said: str, in_order: bool) -> None:
        self.said = said
        self.in_order = in_order


class Source(Protocol):
    """What is followed."""

    watched: Watched
    trouble: str
    """What is wrong just now; empty: nothing."""
    end: End | None

    @property
    def coming(self) -> list[str]:
        """Hosts that are there, and do not train yet."""

    def look(self) -> None:
        """See what is new. Blocking, for ten seconds at most."""

    def register(self, poll: select.poll) -> None:
        """Have a poll wake up when it ends, if it can."""


@contextmanager
def follow(name: str) -> Iterator[Source]:
    """A trace in this file, or else a job of this name. Gone, UsageError or TraceError if it is
    neither."""
    if Path(name).is_file():
        yield Trace(Path(name))
    elif job_folder.is_name(name.removeprefix(job_folder.PREFIX)):
        folder = client.find(name)
        with client.until_end(folder) as end:
            yield Job(folder, end)
    else:
        raise UsageError(
            f"--follow {name}: there is no such file, and it is no name of a job, as `spotmpi "
            "jobs` shows it (spotmpi-0123456789ab)"
        )


class Job:
    """A job of this user that runs on this host."""

    def __init__(self, folder: Path, end: JobEnd) -> None:
        self.watched = Watched()
        self.trouble = ""
        self.end: End | None = None
        self._folder, self._ending = folder, end
        self._report: Report | None = None

    @property
    def coming(self) -> list[str]:
        """Hosts whose workers start, wait or join."""
        if self._report is None:
            return []
        found = {one.host for one in self._report.workers if one.state in _COMING}
        return sorted(found - self.watched.hosts.keys())

    @property
    def gone(self) -> frozenset[str]:
        """Hosts on which no worker of the job lives."""
        workers = () if self._report is None else self._report.workers
        living = {one.host for one in workers if one.state in (*_HERE, *_COMING)}
        return frozenset({one.host for one in workers} - living)

    def register(self, poll: select.poll) -> None:
        """Its end is told through a socket."""
        poll.register(self._ending.fileno(), select.POLLIN)

    def look(self) -> None:
        """Ask it how it stands."""
        try:
            report = client.status(self._folder)
            self.trouble = ""
        except Gone as gone:
            self.trouble = str(gone)
            report = None
        if (last := self._ending.wait(0)) is not None:  # raises Gone if the launcher was killed
            report = last
            code, said = last.ending.code if last.ending else 0, ""
            if last.ending is not None:
                said = last.ending.sentence or last.ending.meaning
            self.trouble = ""
            self.end = End(
                f"the job has ended with code {code}" + (f": {said}" * bool(said)), not code
            )
        if report is not None:
            self._take(report)

    def shrink(self, host: str) -> None:
        """Have all workers of a host leave. UsageError if they cannot."""
        for one in () if self._report is None else self._report.workers:
            if one.host == host and one.state in (*_HERE, *_COMING):
                client.ask(self._folder, AskShrink(one.worker), Said)

    def _take(self, report: Report) -> None:
        first, self._report = self._report is None, report
        watched = self.watched
        here = Counter(one.host for one in report.workers if one.state in _HERE)
        if report.ending is not None:
            here = Counter(watched.hosts)
        elif first:
            watched.meet(here)  # since the job began, as far as anybody knows
            for host, until_s in _gone_before(report, here.keys()):
                watched.left_before(host, until_s)
            watched.begin(report.step or 0)
            if report.step:
                watched.step(report.step, report.loss)
        watched.pass_time(report.seconds)
        watched.meet(here)
        if report.step is not None and report.step > watched.steps:
            watched.step(report.step, report.loss)


def _gone_before(report: Report, there: Any) -> Iterator[tuple[str, float]]:
    """Hosts that were lost before anybody looked, and when, counted from the job's beginning."""
    since = datetime.datetime.fromisoformat(report.since)
    last: dict[str, float] = {}
    for one in report.workers:
        if one.host not in there and one.when is not None and one.state in ("revoked", "left"):
            when = (datetime.datetime.fromisoformat(one.when) - since).total_seconds()
            last[one.host] = max(last.get(one.host, 0.0), when)
    yield from last.items()


class Trace:
    """A trace in a file, of a training that may still run."""

    def __init__(self, path: Path) -> None:
        self.watched = Watched()
        self.trouble = ""
        self.end: End | None = None
        self._path, self._tail = path, Tail(path)
        self._homes: dict[int, str] = {}
        self._clock: tuple[str, float] | None = None
        """The host whose clock the last record had, and what it said."""
        self._begun = False

    @property
    def coming(self) -> list[str]:
        """A trace tells nothing of them."""
        return []

    def register(self, poll: select.poll) -> None:
        """Nobody tells that it ends."""

    def look(self) -> None:
        """Read what has come."""
        for record in self._tail.new():
            if self._tail.began_anew:
                self.watched, self._clock, self.end, self._begun = Watched(), None, None, False
                self._tail.began_anew = False
            try:
                self._take(record)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise TraceError(
                    f"{self._path}: a record lacks what a trace of spotmpi has ({error!r}); is it "
                    "one?"
                ) from error
        if not self._begun:
            raise TraceError(
                f"{self._path} has no start record, so nobody knows who trains; give the trace of "
                "a whole run"
            )
        silent = time.time() - self._path.stat().st_mtime
        self.trouble = ""
        if self.end is None and silent > _QUIET_S:
            self.trouble = f"the trace has not grown for {silent:.0f} s: does it still train?"

    def _take(self, record: Record) -> None:
        event, watched = record["event"], self.watched
        if event == "start":
            workers = [int(worker) for worker in record["workers"]]
            hosts = record.get("hosts") or ["localhost"] * len(workers)
            self._homes = dict(zip(workers, map(str, hosts), strict=True))
            self._begun, self.end = True, None
            self._pass_time(record, workers, 0.0)
            watched.meet(self._on(workers))
            watched.begin(watched.steps)
        elif event == "change":
            joined = [int(worker) for worker in record["joined"]]
            hosts = record.get("hosts") or [f"of worker {worker}" for worker in joined]
            self._homes.update(zip(joined, map(str, hosts), strict=True))
        elif event == "resume":
            watched.begin(int(record["step"]))
        elif event == "step":
            workers = [int(worker) for worker in record["workers"]]
            loss = record["loss"]
            self._pass_time(record, workers, float(record["seconds"]))
            watched.meet(self._on(workers))
            number = None if loss is None else float(loss)
            watched.step(int(record["step"]) + 1, number)
        elif event == "end":
            self._pass_time(record, [int(worker) for worker in record["workers"]], 0.0)
            outcome = str(record["outcome"])
            self.end = End(f"the training has ended: {outcome}", outcome == "finished")

    def _on(self, workers: list[int]) -> dict[str, int]:
        return dict(Counter(self._homes.get(one, f"of worker {one}") for one in workers))

    def _pass_time(self, record: Record, workers: list[int], seconds: float) -> None:
        """By the clock of the host that has written the record; the first worker's."""
        at = float(record["at"])
        host = self._homes.get(workers[0], "") if workers else ""
        if not (math.isfinite(at) and 0 <= seconds <= _LONGEST_STEP_S):
            raise ValueError(f"times are {at:g} and {seconds:g} s")
        before, self._clock = self._clock, (host, at)
        passed = seconds
        if before is not None and before[0] == host and at >= before[1]:
            passed = at - before[1]
        self.watched.pass_time(self.watched.elapsed_s + passed)
