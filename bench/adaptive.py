"""``spotmpi bench adaptive``: hosts come one after another, and the line gets too slow for them.

One training for each way to follow: fixed strategies, and policies. Each begins on one host with
one worker; after some seconds the next host is asked for (`spotmpi grow`), and so on. The hosts are
made for it on this machine, and their links have a stated rate. A step takes a given time in which
its worker sleeps, as if an accelerator computed.

*throughput* is what a worker does, in samples a second, as a share of what it does alone: of a
training with synchronous SGD, as long as it is on one host. It is taken from the second half of the
time with so many hosts, when a policy has had the first half to look around.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any

from spotmpi.bench.measuring import figures, launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.network import Network, missing
from spotmpi.bench.measuring.on_hosts import check_rate
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.trace.records import Record, read

__all__ = ["add_arguments", "main", "page", "throughputs"]

WAYS = ("ssgd", "adpsgd:control=16", "diloco:h=16", "below", "best")
"""The last two are policies: see scripts/adapting.py."""
_POLICIES = ("below", "best")
_PATIENCE = 120.0
"""Seconds that a host gets to join: it learns in some ten rounds."""
_LOOK = 0.2
_ENOUGH, _MORE, _FALLEN = 0.95, 1.5, 0.4

Cells = dict[str, dict[int, list[float]]]
"""For each way and number of hosts, samples a second and worker, of each training."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the bench."""
    parser.description = "Measure strategies and policies while hosts come one after another."
    parser.epilog = "example: spotmpi bench adaptive --hosts 4 --rate 200mbit --json adaptive.json"
    for name, usual, text in (
        ("--hosts", 4, "hosts in the end"),
        ("--params", 500_000, "size of the model, in float32"),
        ("--turns", 3, "trainings of each kind"),
    ):
        parser.add_argument(name, type=int, default=usual, metavar="N", help=f"{text} ({usual})")
    parser.add_argument("--rate", default="200mbit", help="of each link, as tc says it (200mbit)")
    parser.add_argument("--ms", type=float, default=65.0, metavar="MS", help="of a step (65)")
    parser.add_argument(
        "--seconds", type=float, default=16.0, metavar="S", help="with so many hosts (16)"
    )
    parser.add_argument(
        "--ways", nargs="+", default=[*WAYS], metavar="WAY", help=f"of {', '.join(WAYS)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (.png, .svg, .pdf)")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for. Blocking, many minutes."""
    if options.hosts < 2 or min(options.params, options.turns) < 1 or options.seconds < 4:
        raise UsageError("--hosts is 2 or more, --seconds 4 or more, the others 1 or more")
    check_rate(options.rate)
    if why := missing():
        raise UsageError(f"this bench makes hosts of its own: {why}")
    head = {"bench": "adaptive", **machine.describe()}
    known = {name: getattr(options, name) for name in ("params", "rate", "ms", "seconds")}
    cells: Cells = {way: {} for way in options.ways}
    changes: dict[str, list[list[Any]]] = {way: [] for way in options.ways}
    with temporary_job.ended_by_signals():
        for turn in range(options.turns):
            for way in options.ways:
                records, marks = _train(options, way)
                for hosts, one in throughputs(records, marks).items():
                    cells[way].setdefault(hosts, []).append(round(one, 4))
                said = [[r["step"], r["strategy_name"]] for r in records if _changes(r)]
                changes[way].append(said)
                print(f"{turn + 1}/{options.turns} {way}: {cells[way]} {said}", flush=True)
                if options.json:  # again and again: it takes long
                    results = {**head, **known, "cells": cells, "changes": changes}
                    options.json.write_text(json.dumps(results, indent=1) + "\n")
    print("", *page(cells), sep="\n")
    if options.plot:
        from spotmpi.bench.measuring.drawing import draw_throughputs  # brings matplotlib

        draw_throughputs(shares(cells), options.plot)
    return 0


def _changes(record: Record) -> bool:
    return bool(record["event"] == "strategy")


def _train(options: argparse.Namespace, way: str) -> tuple[list[Record], dict[int, float]]:
    """One training; its trace, and since when (on this machine's clock) there were so many hosts.
    Leaves nothing behind."""
    names = [f"h{number}" for number in range(1, options.hosts + 1)]
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder), len(names)) as network:
        network.limit(options.rate)
        trace = network.folder / "trace.jsonl"
        hosts_file = network.hosts_file(f"{names[0]} slots=1")
        program = [sys.executable, "-m", "spotmpi"]
        script = launching.SCRIPTS / "adapting.py"
        command = network.in_head(
            *(*program, "run", "--hosts", hosts_file, *launching.NOBODY_SILENT),
            *("--trace", trace, script, way, options.params, options.ms),
        )
        started = temporary_job.started(
            command, network.environ, network.folder, end=signal.SIGTERM, patience_s=10.0
        )
        marks: dict[int, float] = {}
        with started as (process, said):
            for many, name in enumerate(names, 1):
                if many > 1:
                    job = launching.job_of(process)
                    asked = network.in_head(*program, "grow", "--host", name, "--job", job)
                    subprocess.run(asked, env=network.environ, check=True, capture_output=True)
                _until_there(trace, many, process, said)
                marks[many] = time.monotonic()
                time.sleep(options.seconds)
            marks[len(names) + 1] = time.monotonic()
        return list(read(trace)), marks


def _until_there(trace: Path, many: int, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    """Wait until so many workers take steps. Raises JobFailed."""
    deadline = time.monotonic() + _PATIENCE
    while not _taking_steps(trace, many):
        if process.poll() is not None or time.monotonic() > deadline:
            last = temporary_job.last_words(said)
            raise JobFailed(f"{many} hosts do not train; the last words:\n{last}")
        time.sleep(_LOOK)


def _taking_steps(trace: Path, many: int) -> bool:
    if not trace.exists():
        return False
    steps = [record for record in read(trace) if record["event"] == "step"]
    return bool(steps) and len(steps[-1]["workers"]) == many


def throughputs(records: Iterable[Record], marks: Mapping[int, float]) -> dict[int, float]:
    """Samples a second and worker in the second half of the time between two marks."""
    steps = [record for record in records if record["event"] == "step"]
    found: dict[int, float] = {}
    for many in sorted(marks)[:-1]:
        begin, end = marks[many], marks[many + 1]
        some = [
            record
            for record in steps
            if (begin + end) / 2 <= record["at"] < end and len(record["workers"]) == many
        ]
        seconds = sum(record["seconds"] for record in some)
        if not some or not seconds:
            raise JobFailed(f"no steps of {many} workers were measured")
        used = sum(one["weight"] for record in some for one in record["contributions"])
        found[many] = used / seconds / many
    return found


def shares(cells: Mapping[str, Mapping[int, Sequence[float]]]) -> dict[str, dict[int, list[float]]]:
    """Of what one worker does alone with synchronous SGD, or whatever was measured first."""
    first = cells.get("ssgd") or next(iter(cells.values()))
    alone = median(first[1])
    return {
        way: {many: [one / alone for one in some] for many, some in cell.items()}
        for way, cell in cells.items()
    }


def page(cells: Mapping[str, Mapping[int, Sequence[float]]]) -> list[str]:
    """The table, and what was to be reached."""
    found = shares(cells)
    sizes = sorted(next(iter(found.values())))
    lines = [f"{'':24}" + "".join(f"{many:>8}" for many in sizes) + "   hosts"]
    for way, cell in found.items():
        lines.append(f"{way:24}" + "".join(f"{median(cell[many]):8.2f}" for many in sizes))
    return [*lines, "", *map(str, aims(found))]


def aims(found: Mapping[str, Mapping[int, Sequence[float]]]) -> Iterable[figures.Aim]:
    """The policy is as good as the best, and better than what the line is too slow for."""
    fixed = [way for way in found if way not in _POLICIES]
    if "best" not in found or not fixed:
        return
    middle = {way: {many: median(some) for many, some in found[way].items()} for way in found}
    sizes = sorted(middle["best"])
    worst = min(middle["best"][many] / max(middle[way][many] for way in fixed) for many in sizes)
    said = f"best is at least {_ENOUGH} of the best fixed strategy at every size: {worst:.2f}"
    yield figures.Aim(said, worst >= _ENOUGH)
    if "ssgd" in middle:
        fallen = [many for many in sizes if middle["ssgd"][many] < _FALLEN]
        if fallen:
            for way in [one for one in _POLICIES if one in middle]:
                ratio = middle[way][fallen[0]] / middle["ssgd"][fallen[0]]
                said = f"{way} is {_MORE} times ssgd with {fallen[0]} hosts: {ratio:.2f}"
                yield figures.Aim(said, ratio >= _MORE)
