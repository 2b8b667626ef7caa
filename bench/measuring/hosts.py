"""``spotmpi bench recovery --hosts 3 6``: how long training stands still when a host is lost.

Hosts are namespaces of this machine (`network`), two workers on each, started over ssh. Three
kinds of losses take turns, one in a job of its own:

process  one worker of the second host dies by SIGKILL, and is not replaced: the baseline
killed   the second host dies, whole
silent   its link goes down, and nothing says so: detection is included

A sample runs from the moment at which the bench acts until the last survivor has committed its
first step afterwards, as its trace says (the hosts share one clock, being one machine).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from spotmpi.bench.measuring import launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.network import Network, missing
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch import processes
from spotmpi.launch.liveness import MEMORY
from spotmpi.launch.start import temporary_job
from spotmpi.trace import records as trace

__all__ = ["main"]

_KINDS = ("process", "killed", "silent")
_SLOTS = 2
_VICTIM = "h2"
_FLOATS = 1_000_000
_STEPS = 1_000_000
"""More than any job comes to: the bench ends it."""

_QUIET = 20
"""Steps before a loss, at least; up to twice as many."""

_LIMIT = 120.0
"""Seconds for a job to come to its loss, and for the survivors to go on after it."""

_CALM = 2 * MEMORY + 1.0
"""Seconds in which the head learns how regular beats are, if it is not told what is silent."""

_BEYOND_PROCESS = 20.0
_SILENT_MEDIAN, _SILENT_MOST = 300.0, 450.0

T = TypeVar("T")
Samples = dict[tuple[int, str], list[float]]


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for. Blocking, seconds per sample."""
    if (why := missing()) is not None:
        raise UsageError(f"--hosts: {why}")
    if min(options.hosts) < 2:
        raise UsageError("--hosts: one host that is lost leaves none; give 2 or more")
    head = machine.describe()
    found: Samples = {(hosts, kind): [] for hosts in options.hosts for kind in _KINDS}
    failures: list[str] = []
    with temporary_job.ended_by_signals():
        for _ in range(options.runs):
            for cell in random.sample(list(found), len(found)):
                try:
                    found[cell].append(_sample(*cell, options.detect_ms))
                except JobFailed as failed:
                    failures.append(f"{cell[0]} hosts, {cell[1]}: {failed}")
                    print(f"FAILED {failures[-1]}", flush=True)
                else:
                    ms = found[cell][-1]
                    print(f"{cell[0]} hosts, {cell[1]}: {ms:.0f} ms", flush=True)
    if options.json:
        cells = [{"hosts": h, "loss": k, "total_ms": ms} for (h, k), ms in found.items()]
        results = {"bench": "recovery of hosts", **head, "failures": failures, "cells": cells}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    print("", *page(found), sep="\n")
    return 1 if failures else 0


def page(found: Samples) -> list[str]:
    """The table, and which targets hold."""
    lines = [f"{'hosts':>5} {'workers':>7} {'loss':<8} {'n':>3} {'median ms':>10} {'max ms':>7}"]
    targets = []
    for (hosts, kind), ms in sorted(found.items()):
        if not ms:
            continue
        lines.append(
            f"{hosts:5} {hosts * _SLOTS:7} {kind:<8} {len(ms):3} {median(ms):10.0f} {max(ms):7.0f}"
        )
        base = found[hosts, "process"]
        if kind == "killed" and base:
            over = median(ms) - median(base)
            holds = over <= _BEYOND_PROCESS
            targets.append((holds, f"{hosts} hosts: killed {over:+.0f} ms <= process + 20 ms"))
        if kind == "silent":
            holds = median(ms) < _SILENT_MEDIAN and max(ms) < _SILENT_MOST
            said = f"{hosts} hosts: silent, median {median(ms):.0f} < 300, max {max(ms):.0f} < 450"
            targets.append((holds, said))
    return [
        *lines,
        "",
        *(f"  {'holds ' if holds else 'MISSED'}  {text}" for holds, text in targets),
    ]


def _sample(hosts: int, kind: str, detect_ms: int | None) -> float:
    """Milliseconds from one loss to the last survivor's next step. Blocking."""
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder), hosts) as network:
        job = _Job(network, detect_ms)
        try:
            job.until_step(random.randint(_QUIET, 2 * _QUIET))
            if kind == "silent" and detect_ms is None:
                time.sleep(_CALM)
            begin = time.monotonic()
            if kind == "process":
                os.kill(min(network.workers(_VICTIM)), signal.SIGKILL)
            elif kind == "killed":
                network.kill(_VICTIM)
            else:
                network.link(_VICTIM, "down")
            lost = 1 if kind == "process" else _SLOTS
            return 1e3 * (job.recovered(hosts * _SLOTS - lost) - begin)
        finally:
            job.end()


class _Job:
    """A training on all hosts of a network, and its trace."""

    def __init__(self, network: Network, detect_ms: int | None) -> None:
        self._trace = network.folder / "trace.jsonl"
        self._said = (network.folder / "said").open("w+b")
        file = network.hosts_file(*(f"{name} slots={_SLOTS}" for name in network.names))
        script = launching.SCRIPTS / "training.py"
        command = network.in_head(
            *(sys.executable, "-m", "spotmpi", "run", "--hosts", file, "--trace", self._trace),
            # A worker that starts would take the cores from those whose recovery is measured.
            *("--no-replace", "--detect-ms", detect_ms or "auto"),
            *(script, network.folder, _FLOATS, _STEPS, ""),
        )
        self._process = subprocess.Popen(
            command,
            env=network.environ,
            cwd=network.folder,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(processes.die_with_parent, os.getpid()),
        )

    def until_step(self, step: int) -> None:
        """Wait until a step is in the trace."""
        self._wait(lambda records: [r for r in records if r["event"] == "step"][step:])

    def recovered(self, survivors: int) -> float:
        """When the last of so many survivors had committed its first step after the loss."""

        def all_of(records: list[trace.Record]) -> list[float]:
            moments = [float(r["at"]) for r in records if r["event"] == "recovered"]
            return moments if len(moments) >= survivors else []

        return max(self._wait(all_of))

    def end(self) -> None:
        """End the job, however far it is."""
        self._process.terminate()
        self._process.wait()
        self._said.close()

    def _wait(self, wanted: Callable[[list[trace.Record]], list[T]]) -> list[T]:
        deadline = time.monotonic() + _LIMIT
        while not (found := wanted(self._records())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._said.seek(0)
                said = self._said.read().decode(errors="replace")
                raise JobFailed(f"the job did not come so far:\n{said[-1500:]}")
            time.sleep(0.02)
        return found

    def _records(self) -> list[trace.Record]:
        if not self._trace.exists():
            return []
        try:
            return list(trace.read(self._trace))
        except TraceError:
            return []  # its last line is being written
