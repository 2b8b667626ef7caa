"""``spotmpi bench wire``: how far a step on several hosts is off that `spotmpi profile` predicts.

Hosts are namespaces on this machine, with one worker each and links of a given rate. Runs on some
numbers of hosts are what it predicts from, runs on others are what it is compared with; all of them
take turns.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.bench.measuring import launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.network import Network, missing
from spotmpi.economy.models import calibration, step_times, trials
from spotmpi.economy.models.calibration import Fit, Measured
from spotmpi.errors import UsageError
from spotmpi.launch.processes import cores
from spotmpi.launch.start import temporary_job
from spotmpi.trace import records

__all__ = ["add_arguments", "main"]

_FROM, _TO, _TURNS = (1, 2), (3, 4, 5), 3
_RATE = "1gbit"
_FLOATS, _SIDE, _STEPS = 1_000_000, 300, 50
_TARGET = 0.15
_LIMIT = 120.0
"""Seconds of a run."""
_TO_END = 10.0
"""Seconds that a job gets to end by itself, once it has been told to."""
_GRADIENT_MB = 4e-6 * _FLOATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how far off `spotmpi profile` is for steps on several hosts. The hosts are made "
        f"on this machine, with one worker each and {_GRADIENT_MB:g} MB of gradients. Needs root."
    )
    parser.epilog = "example: spotmpi bench wire --json wire.json\n\nAbout 3 minutes."
    add = parser.add_argument
    add("--hosts", type=int, nargs="+", metavar="N", default=_FROM, help="to predict from (1 2)")
    add("--predict", type=int, nargs="+", metavar="N", default=_TO, help="to predict (3 4 5)")
    add("--rate", metavar="R", default=_RATE, help=f"of a host's link, as tc has it ({_RATE})")
    add("--turns", type=int, metavar="T", default=_TURNS, help=f"runs of each ({_TURNS})")
    add("--json", type=Path, metavar="FILE", help="write all step times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a run failed. Blocking, minutes."""
    if (why := missing()) is not None:
        raise UsageError(f"hosts cannot be made here: {why}")
    if min(*options.hosts, *options.predict, options.turns) < 1 or max(options.hosts) < 2:
        raise UsageError("--hosts takes 2 or more, and all numbers are at least 1")
    if options.json and not options.json.resolve().parent.is_dir():
        raise UsageError(f"{options.json}: there is no such folder; make it first")
    head = machine.describe()
    runs: list[Measured] = []
    failures: list[str] = []
    with temporary_job.ended_by_signals():
        for _ in range(options.turns):
            for hosts in sorted({*options.hosts, *options.predict}):
                try:
                    runs += _run(hosts, options.rate)
                except JobFailed as error:
                    failures.append(f"{hosts} hosts: {error}")
                    print(f"FAILED {failures[-1]}", flush=True)
    seen = [run for run in runs if run.hosts in options.hosts]
    fit = calibration.calibrate(seen, cores(), _GRADIENT_MB)
    print(*page(fit, runs, options.predict), sep="\n")
    if options.json:
        results = to_json(head, fit, runs, failures, options)
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failures else 0


def page(fit: Fit, runs: list[Measured], predict: list[int]) -> list[str]:
    """What was measured and predicted, for people."""
    lines = [f"{'hosts':>5} {'measured, ms':>13} {'predicted, ms':>14} {'error':>8}"]
    for hosts in sorted({run.hosts for run in runs}):
        measured, predicted = _measured(runs, hosts), fit.host.step(1, hosts, _GRADIENT_MB)
        error = predicted / measured - 1
        said = "" if hosts in predict else "fitted"
        if hosts in predict:
            held = "holds" if abs(error) <= _TARGET else "MISSED"
            said = f"{held} at most {100 * _TARGET:.0f} % off"
        lines.append(
            f"{hosts:5} {1e3 * measured:13.2f} {1e3 * predicted:14.2f} {100 * error:+7.1f}%  {said}"
        )
    return lines


def to_json(
    head: dict[str, Any], fit: Fit, runs: list[Measured], failures: list[str], options: Any
) -> dict[str, Any]:
    """All step times and what they were measured on, in the values of JSON."""
    return {
        "bench": "wire",
        **head,
        "rate": options.rate,
        "gradient_mb": _GRADIENT_MB,
        "predicted_from": list(options.hosts),
        "failures": failures,
        "parameters": vars(fit.host),
        "hosts": [
            {
                "hosts": hosts,
                "measured_s": _measured(runs, hosts),
                "predicted_s": fit.host.step(1, hosts, _GRADIENT_MB),
                "runs": [
                    [round(s, 6) for s in run.seconds[:_STEPS]]
                    for run in runs
                    if run.hosts == hosts
                ],
            }
            for hosts in sorted({run.hosts for run in runs})
        ],
    }


def _measured(runs: list[Measured], hosts: int) -> float:
    """Seconds of a step: the median of the runs' medians."""
    return median(run.median for run in runs if run.hosts == hosts)


def _run(hosts: int, rate: str) -> list[Measured]:
    """One job on so many hosts, until it has taken its steps. Leaves nothing behind."""
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder), hosts) as network:
        network.limit(rate)
        file = network.folder / "trace.jsonl"
        script = launching.SCRIPTS / "computing.py"
        hosts_file = network.hosts_file(*(f"{name} slots=1" for name in network.names))
        command = network.in_head(
            *(sys.executable, "-m", "spotmpi", "run", "--hosts", hosts_file, "--trace", file),
            *(*launching.NOBODY_SILENT, script, _FLOATS, _SIDE),
        )
        end, environ = signal.SIGTERM, network.environ
        with temporary_job.started(
            command, environ, network.folder, end=end, patience_s=_TO_END
        ) as (
            process,
            said,
        ):
            wanted = _STEPS + step_times.WARM_UP + 1
            done = trials.follow(process, file, wanted, _LIMIT)
            if done < wanted:
                raise JobFailed(
                    f"the job had done {done} of {wanted} steps when it ended, or its {_LIMIT:.0f} "
                    f"s; its last words:\n{temporary_job.last_words(said)}"
                )
        return step_times.read(records.read(file), f"the run on {hosts} hosts").runs
