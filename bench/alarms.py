"""``spotmpi bench alarms``: whether hosts are thrown out to which nothing was done.

Hosts are namespaces of this machine (`network`), with workers that train on all of them at once
under ``spotmpi run --hosts``; every host that is lost is a false alarm. Half a minute without and
a minute and a half with other load on the cores (`load`) take turns.

Beside the alarms: how near it was. A sample is the longest silence of one host within one window
of five seconds, as its head has judged it and `spotmpi status` tells it, and how long it might have
been. The head judges whenever it wakes, every eighth of ``--detect-ms`` (25 ms where that is auto)
at least, and a host beats as often: silences of that length are usual.

At the end, without load, one host is cut off: a bench that misses that has proved nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from spotmpi import job_folder
from spotmpi.bench.measuring import launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.network import Network, missing
from spotmpi.bench.scripts import load
from spotmpi.errors import UsageError
from spotmpi.launch import processes
from spotmpi.launch.commands import client
from spotmpi.launch.commands.client import Gone
from spotmpi.launch.commands.status_table import numbers
from spotmpi.launch.control_messages import Report
from spotmpi.launch.head.control_socket import DESK
from spotmpi.launch.liveness import MOST, WINDOW
from spotmpi.launch.processes import cores
from spotmpi.launch.start import temporary_job
from spotmpi.trace import records as trace

__all__ = ["Alarm", "Found", "add_arguments", "main", "page", "plan", "read_trace", "thrown_out"]

_FLOATS = 100_000
_STEPS = 1_000_000_000
"""More than any job comes to: the bench ends it."""

_QUIET = 20
"""Steps before anything counts, and after the control."""

_TURN = 6
"""Windows without load; then come `_LOADED` times as many with it."""

_LOADED = 3

_ASKED_AFTER = 1.0
"""Seconds of a window, after which the head is asked for the one before."""

_TOLD_TO_END = 128 + signal.SIGTERM
"""The code of a job that has come to no other end."""

_LIMIT = 120.0
"""Seconds for the job to start, and for the control to be found."""

_SLACK = 2
"""Times what a host may be silent at most, in which the control must be found."""

_PLAIN = ("setpriv", "--bounding-set", "-sys_nice")
"""Has a command run as one whose user may not raise priorities, though root starts it."""


@dataclass(frozen=True)
class Alarm:
    """A worker that was thrown out, and ``load``: when."""

    worker: int
    host: str
    how: str
    load: str


@dataclass
class Found:
    """What one run has shown; milliseconds."""

    silences: dict[str, list[dict[str, float]]] = field(
        default_factory=lambda: {"without": [], "with": []}
    )
    """By load: for each window the hosts' longest."""
    allowed: dict[str, list[float]] = field(default_factory=lambda: {"without": [], "with": []})
    """By load: for each window how long a host might have been silent, the most of all hosts."""
    longest: dict[str, float] = field(default_factory=dict)
    """Of each host, before the control; also of windows that were asked for too late."""
    alarms: list[Alarm] = field(default_factory=list)
    cut_off: str = ""
    """The host of the control."""
    out: float | None = None
    """From its cutting off until the head had thrown it out; None: it had not."""
    resumed: float | None = None
    """... until the last of the others had taken a step."""
    failures: list[str] = field(default_factory=list)

    def note(self, status: Report, when: str, done_to: Iterable[int] = ()) -> None:
        """Take in whom a report has as thrown out for the first time, but those of ``done_to``."""
        known = {one.worker for one in self.alarms}.union(done_to)
        for worker, (host, how) in thrown_out(status).items():
            if worker not in known:
                self.alarms.append(Alarm(worker, host, how, when))

    def caught(self, detect_ms: int | None) -> bool:
        """Whether the control was, and in time."""
        within = self.out is not None and self.out <= _in_time(detect_ms)
        return within and self.resumed is not None

    def holds(self, detect_ms: int | None) -> bool:
        """Whether there was no false alarm, and the control was caught."""
        return not self.alarms and not self.failures and self.caught(detect_ms)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Count false alarms: hosts that live and count as lost all the same. Measure how near the "
        "others come to it, without and under other load on the same cores. Needs root."
    )
    bursts = ", ".join(map(str, load.BURSTS_MS))
    parser.epilog = (
        "example: spotmpi bench alarms --json alarms.json\n\n"
        f"A process of the load spins {bursts} ms by turns, and pauses half as long after each;\n"
        f"every other one is niced, by {load.NICE}.\n"
        "Exit code 1 if there was a false alarm, or the host that was cut off at the end was not\n"
        f"found within {_SLACK} x --detect-ms ({_SLACK} x {1e3 * MOST:.0f} ms if that is auto)."
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        metavar="M",
        help="under load; a third as many without it lie in between (10)",
    )
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="hosts (4)")
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="workers of each (4)")
    parser.add_argument(
        "--load",
        type=int,
        default=cores(),
        metavar="N",
        help="processes of the load (as many as there are cores)",
    )
    parser.add_argument(
        "--detect-ms",
        type=int,
        metavar="MS",
        help="as of spotmpi run (auto)",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="head and agents may not raise their priority, as for most users but root",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for. Blocking, 4/3 of ``--minutes``."""
    _check(options)
    head = machine.describe()
    found = Found()
    with temporary_job.ended_by_signals():
        try:
            _measure(options, found)
        except JobFailed as failed:
            found.failures.append(str(failed))
            print(f"FAILED {failed}", flush=True)
    if options.json:
        setting = {
            "minutes": options.minutes,
            "hosts": options.hosts,
            "slots": options.slots,
            "detect_ms": options.detect_ms or "auto",
            "plain": options.plain,
            "params": _FLOATS,
            "window_s": WINDOW,
            "turns_s": {"without": _TURN * WINDOW, "with": _LOADED * _TURN * WINDOW},
            "load": {
                "processes": options.load,
                "bursts_ms": load.BURSTS_MS,
                "pause": load.PAUSE,
                "every_other_niced_by": load.NICE,
            },
        }
        results = {"bench": "alarms", **head, "setting": setting, **asdict(found)}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    print("", *page(found, options.detect_ms), sep="\n")
    return 0 if found.holds(options.detect_ms) else 1


def page(found: Found, detect_ms: int | None) -> list[str]:
    """The table, every false alarm, and which targets hold."""
    lines = [
        "         | longest silence of a host in 5 s, ms |   allowed, ms |  false",
        "load     |       n    median       p99      max | median    max | alarms",
    ]
    for when, windows in found.silences.items():
        ms = sorted(value for window in windows for value in window.values())
        alarms = len(_grouped(one for one in found.alarms if one.load == when))
        figures = f"{0:7}" + 29 * " "
        if ms:
            figures = f"{len(ms):7} {median(ms):9.1f} {_p99(ms):9.1f} {ms[-1]:8.1f}"
        allowed = found.allowed[when] or [math.nan]
        room = f"{median(allowed):6.0f} {max(allowed):6.0f}"
        lines.append(f"{when:<8} | {figures} | {room} | {alarms:6}")
    lines.append("")
    for (host, how, when), workers in _grouped(found.alarms).items():
        at = {"with": "under load", "without": "without load"}.get(when, f"({when})")
        lines.append(f"  FALSE ALARM {at}: {host}, workers {numbers(workers)} ({how})")
    longest = max(found.longest.values(), default=math.nan)
    alarms = len(_grouped(found.alarms))
    said = f"{alarms} false alarms; the longest silence was {longest:.0f} ms"
    if detect_ms is not None:
        said += f", {longest / detect_ms:.0%} of --detect-ms {detect_ms}"
    if found.failures:
        said += "; but the job failed"
    lines.append(_target(alarms == 0 and not found.failures, said))
    said = f"control: {found.cut_off or 'no host'} was cut off, and not thrown out"
    if found.out is not None:
        within = f"{found.out:.0f} <= {_in_time(detect_ms):.0f} ms"
        said = f"control: {found.cut_off} was cut off, and thrown out after {within}"
    if found.resumed is not None:
        said += f"; the others went on after {found.resumed:.0f} ms"
    lines.append(_target(found.caught(detect_ms), said))
    return lines


def plan(minutes: float) -> list[bool]:
    """Whether there is load in a window, for each in order."""
    left = max(1, round(60 * minutes / WINDOW))
    windows: list[bool] = []
    while left:
        some = min(_LOADED * _TURN, left)
        windows += [False] * math.ceil(some / _LOADED) + [True] * some
        left -= some
    return windows


def thrown_out(status: Report) -> dict[int, tuple[str, str]]:
    """Workers that a report of `spotmpi status` has as gone: host, and how."""
    return {
        one.worker: (one.host, one.how or "")
        for one in status.workers
        if one.state in ("revoked", "turned away")
    }


def _check(options: argparse.Namespace) -> None:
    if (why := missing()) is not None:
        raise UsageError(f"bench alarms: {why}")
    if options.hosts < 2:
        raise UsageError("--hosts: the one that is cut off at the end leaves none; give 2 or more")
    least = min(options.slots, options.load, options.detect_ms or 1)
    if least < 1 or not 0 < options.minutes < math.inf:
        raise UsageError("--minutes, --slots, --load and --detect-ms are numbers of more than 0")
    if options.plain and shutil.which(_PLAIN[0]) is None:
        raise UsageError(f"--plain: {_PLAIN[0]} not found; install util-linux")
    if options.json and not options.json.resolve().parent.is_dir():
        raise UsageError(f"--json {options.json}: there is no such folder; make it first")


def _in_time(detect_ms: int | None) -> float:
    return _SLACK * (1e3 * MOST if detect_ms is None else detect_ms)


def _target(holds: bool, text: str) -> str:
    return f"  {'holds ' if holds else 'MISSED'}  {text}"


def _p99(ordered: Sequence[float]) -> float:
    return ordered[math.ceil(0.99 * len(ordered)) - 1]


def _grouped(alarms: Iterable[Alarm]) -> dict[tuple[str, str, str], list[int]]:
    """Workers that went together: one alarm."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for one in alarms:
        groups.setdefault((one.host, one.how, one.load), []).append(one.worker)
    return groups


def _measure(options: argparse.Namespace, found: Found) -> None:
    """Fill ``found``. Raises JobFailed; leaves nothing behind."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Network(Path(folder), options.hosts) as network,
        _Load(options.load) as beside,
    ):
        job = _Job(network, options.slots, options.detect_ms, options.plain)
        try:
            job.until_step(_QUIET)
            _watch(job, beside, plan(options.minutes), found)
            control = _control(job, network, found)
        finally:
            code = job.end()
        read_trace(job.records(), found, *control)
        if code != _TOLD_TO_END:
            raise JobFailed(
                f"the job ended with code {code} instead of {_TOLD_TO_END}:\n{job.said()}"
            )


def _watch(job: _Job, beside: _Load, windows: Sequence[bool], found: Found) -> None:
    """Let the load come and go, and see what the head says. Blocking, as long as it takes."""
    first = int(time.monotonic() // WINDOW) + 1
    before = ""
    for number, loaded in enumerate([*windows, False]):
        when = "with" if loaded else "without"
        time.sleep(max(0.0, (first + number) * WINDOW - time.monotonic()))
        turned = before not in ("", when)
        if turned:
            found.note(job.status(), before)  # what happened until now was before
        beside.switch(loaded)
        time.sleep(_ASKED_AFTER)
        status = job.status()
        found.note(status, when)
        in_time = int(time.monotonic() // WINDOW) == first + number
        if before and in_time:
            recent = {one.host: one.recent_silence_ms for one in status.hosts}
            heard = {host: ms for host, ms in recent.items() if ms is not None}
            found.silences[before].append(heard)
            allowed = [one.allowed_silence_ms for one in status.hosts if one.host in heard]
            if allowed:
                found.allowed[before].append(max(allowed))
        if turned:
            _tell(before, found)
        before = when
    found.longest = {one.host: one.longest_silence_ms for one in status.hosts}


def _tell(when: str, found: Found) -> None:
    turn = _LOADED * _TURN if when == "with" else _TURN
    last = [value for window in found.silences[when][-turn:] for value in window.values()]
    longest = max(last, default=math.nan)
    print(
        f"{when} load: longest silence {longest:.0f} ms, false alarms so far: "
        f"{len(_grouped(found.alarms))}",
        flush=True,
    )


def _control(
    job: _Job, network: Network, found: Found
) -> tuple[float, frozenset[int], frozenset[int]]:
    """Cut off the last host that trains. Blocking, until the others go on.

    Returns when, its workers, and the others that trained.
    """
    training = [one for one in job.status().workers if one.state == "training"]
    living = {
        host: frozenset(one.worker for one in training if one.host == host)
        for host in network.names
        if any(one.host == host for one in training)
    }
    if len(living) < 2:
        raise JobFailed(f"no two hosts are left for the control:\n{job.said()}")
    found.cut_off, victims = list(living.items())[-1]
    begin = time.monotonic()
    network.link(found.cut_off, "down")
    with suppress(_Late):
        status = job.until(lambda now: thrown_out(now).keys() >= victims)
        found.out = 1e3 * (time.monotonic() - begin)
        job.until_step((status.step or 0) + _QUIET)
    found.note(job.status(), "control", victims)
    return begin, victims, frozenset(one.worker for one in training) - victims


def read_trace(
    records: Iterable[trace.Record],
    found: Found,
    begin: float,
    victims: frozenset[int],
    others: frozenset[int],
) -> None:
    """When the last of the others went on after the control, which began at ``begin``.

    Also takes in deaths that the launcher knows nothing of.
    """
    moments: dict[int, float] = {}
    for record in records:
        if record["event"] == "recovery":
            known = {one.worker for one in found.alarms} | victims
            for worker in sorted(set(record["lost"]) - known):
                found.alarms.append(Alarm(worker, "?", "only the trace has it as lost", "unknown"))
        elif record["event"] == "recovered" and record["at"] >= begin:
            moments[record["worker"]] = 1e3 * (record["at"] - begin)
    if moments.keys() >= others:
        found.resumed = max(moments.values())


class _Load:
    """Processes that compute beside the job, or do not."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.switch(False)

    def switch(self, on: bool) -> None:
        """Have them run, or be gone."""
        while self._running and not on:
            self._running[-1].kill()
            self._running.pop().wait()
        while on and len(self._running) < self._number:
            self._running.append(
                subprocess.Popen(
                    [sys.executable, load.__file__, str(len(self._running))],
                    stdin=subprocess.DEVNULL,
                    preexec_fn=partial(processes.die_with_parent, os.getpid()),
                )
            )


class _Late(JobFailed):
    """What was waited for did not come in time."""


class _Job:
    """A training on all hosts of a network, as its launcher and its trace have it."""

    def __init__(self, network: Network, slots: int, detect_ms: int | None, plain: bool) -> None:
        self._trace = network.folder / "trace.jsonl"
        self._output = network.folder / "said"
        lower: Sequence[object] = ()
        python = ""
        if plain:
            lower = _PLAIN
            alias = network.folder / "python"
            alias.write_text(f'#!/bin/sh\nexec {" ".join(_PLAIN)} {sys.executable} "$@"\n')
            alias.chmod(0o755)
            python = f" python={alias}"
        file = network.hosts_file(*(f"{name} slots={slots}{python}" for name in network.names))
        script = launching.SCRIPTS / "training.py"
        command = network.in_head(
            *(*lower, sys.executable, "-m", "spotmpi", "run", "--hosts", file),
            *("--detect-ms", detect_ms or "auto", "--trace", self._trace),
            *(script, network.folder, _FLOATS, _STEPS, ""),
        )
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=network.environ,
                cwd=network.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(processes.die_with_parent, os.getpid()),
            )
        self._folder: Path | None = None

    def status(self) -> Report:
        """How the job stands. Blocking; raises JobFailed if it has ended, or does not answer."""
        deadline = time.monotonic() + _LIMIT
        while self._folder is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise JobFailed(f"the job did not start:\n{self.said()}")
            time.sleep(0.1)
            self._folder = self._find()
        try:
            return client.status(self._folder)
        except Gone as gone:
            raise JobFailed(f"{gone}:\n{self.said()}") from gone

    def until(self, condition: Callable[[Report], bool]) -> Report:
        """Wait until the status is so, and return it. Raises _Late."""
        deadline = time.monotonic() + _LIMIT
        while not condition(status := self.status()):
            if time.monotonic() > deadline:
                raise _Late(f"the job did not come so far:\n{self.said()}")
            time.sleep(0.01)
        return status

    def until_step(self, step: int) -> Report:
        """Wait until this step was taken; return the status then. Raises _Late."""
        return self.until(lambda now: (now.step or 0) >= step)

    def end(self) -> int:
        """End the job, however far it is; return its code. Blocking."""
        self._process.terminate()
        return self._process.wait()

    def said(self) -> str:
        """The launcher's last words."""
        return self._output.read_text(errors="replace")[-1500:]

    def records(self) -> Iterator[trace.Record]:
        """The trace."""
        return trace.read(self._trace)

    def _find(self) -> Path | None:
        """Of all jobs on this machine the one of this launcher."""
        for folder in job_folder.all_of_mine():
            with suppress(Gone):  # one that ends, or of which only a folder is left
                there = (folder / DESK).exists()
                if there and client.status(folder).launcher == self._process.pid:
                    return folder
        return None
