"""``spotmpi bench exposed``: how much of its time a training between hosts spends on its rounds.

Hosts are namespaces on this machine, with one worker each and links of a given rate. A step takes a
given time in which its worker sleeps, as if an accelerator computed, and then the optimizer moves
all parameters. Each strategy trains twice: with the same hosts all the time, and with one that
comes after a quarter of the steps and one that is killed after three quarters. In the same turn a
training that never has a round says how long a step is alone.

*exposed* is what a step takes longer than alone, as a share of it, in the mean of all steps and on
the worker that lost most: waiting, packing, recovering and teaching newcomers count as well. *sent*
is what left a host's card in a step, all of it; whatever sends as much as synchronous SGD is 1.

Strategies with a round in each step take a tenth of the steps, and the training without rounds a
quarter. A newcomer learns in some ten rounds, and there are to be as many while it comes.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple

from spotmpi.bench.measuring import launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.figures import Aim
from spotmpi.bench.measuring.network import Network, missing
from spotmpi.bench.measuring.on_hosts import UNLIMITED, check_rate
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.strategies import named
from spotmpi.trace.records import read

__all__ = ["Run", "Told", "add_arguments", "alone_takes", "exposed", "lines", "main", "told"]

_ALONE = "localsgd:h=1000000"
"""Its only round is that at the end, which is not looked at."""
_BASE = "ssgd"
_STREAMING = "diloco:h=64,fragments=4,delay=4,mix=0.5,narrow=int8"
_AIM = 0.02
_LIMIT = 600.0
_DEEP_BREATH = 5.0
"""Seconds that a job gets to end by itself, once it has been told to."""
_LOOK = 1.0
"""Seconds from one look at the trace to the next: each takes a part of a core."""

Over = Mapping[int, Sequence[float]]
"""When each worker's steps were over, in seconds."""


class Run(NamedTuple):
    """One training."""

    over: Over
    """Of all workers that live in the end."""
    sent: float
    """MB that left the first host in a step, in the last three quarters of them."""


Runs = Mapping[str, Mapping[str, Sequence[Run]]]
"""Of each strategy, the trainings with the same hosts (steady) and while hosts come and go
(changing)."""


class Told(NamedTuple):
    """What one strategy comes to: medians of all its trainings."""

    exposed: Mapping[str, float]
    """Of each kind of training."""
    sent: float
    """MB a step, with the same hosts, ..."""
    of_base: float | None
    """... and as a share of what synchronous SGD sends, if that was measured."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how much of its time a training between hosts spends on its rounds, with the "
        "same hosts and while hosts come and go. The hosts are made on this machine. Needs root."
    )
    parser.epilog = "example: spotmpi bench exposed --json exposed.json\n\nAbout 9 minutes a turn."
    add = parser.add_argument
    add("--hosts", type=int, metavar="N", default=3, help="with one worker each (3)")
    add("--params", type=int, metavar="N", default=25_600_000, help="float32 (25600000)")
    add("--rate", metavar="R", default="1gbit", help="of a host's link, as tc has it (1gbit)")
    add("--ms", type=float, metavar="MS", default=250.0, help="that a step computes (250)")
    add("--steps", type=int, metavar="N", default=480, help="of a training (480)")
    add("--turns", type=int, metavar="N", default=3, help="trainings of each kind (3)")
    usual = [_BASE, _STREAMING]
    add("--strategies", nargs="+", metavar="NAME", default=usual, help=" ".join(usual))
    add("--json", type=Path, metavar="FILE", help="write the samples to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for. Blocking, many minutes."""
    if options.hosts < 2 or options.steps < 64 or min(options.params, options.turns) < 1:
        raise UsageError("--hosts is 2 or more, --steps 64 or more, the others 1 or more")
    check_rate(options.rate)
    if why := missing():
        raise UsageError(f"this bench makes hosts of its own: {why}")
    head = {"bench": "exposed", **machine.describe()}
    known = {one: getattr(options, one) for one in ("hosts", "params", "rate", "ms", "steps")}
    runs: dict[str, dict[str, list[Run]]] = {}
    with temporary_job.ended_by_signals():
        for _ in range(options.turns):
            for strategy in [_ALONE, *options.strategies]:
                for kind in ("steady",) if strategy == _ALONE else ("steady", "changing"):
                    run = _train(options, strategy, kind == "changing")
                    runs.setdefault(strategy, {}).setdefault(kind, []).append(run)
                    if options.json:  # again and again: it takes long
                        options.json.write_text(
                            json.dumps({**head, **known, "runs": _plain(runs)}) + "\n"
                        )
                    print(".", end="", flush=True)
    print("", *lines(runs), sep="\n")
    return 0


def exposed(over: Over, alone: float) -> float:
    """What a step takes longer than ``alone``, as a share of that: of the worker that lost most,
    in the mean of its steps."""
    return max(map(_pace, over.values())) / alone - 1


def told(runs: Runs) -> Iterator[tuple[str, Told]]:
    """What each strategy comes to."""
    alone = alone_takes(runs)
    base = runs.get(_BASE)
    for strategy, kinds in runs.items():
        if strategy == _ALONE:
            continue
        shares = {
            kind: median(exposed(run.over, alone) for run in some) for kind, some in kinds.items()
        }
        mb = median(run.sent for run in kinds["steady"])
        of = None if base is None else mb / median(run.sent for run in base["steady"])
        yield strategy, Told(shares, mb, of)


def alone_takes(runs: Runs) -> float:
    """Seconds that a step takes where there is no round, of the slowest worker: all share cores."""
    return median(max(map(_pace, run.over.values())) for run in runs[_ALONE]["steady"])


def lines(runs: Runs) -> Iterator[str]:
    """The table, and whether the aim is reached."""
    yield f"alone a step takes {1e3 * alone_takes(runs):.1f} ms"
    yield f"{'strategy':54} {'exposed':>9} {'changing':>9} {'MB a step':>10} {'of ssgd':>8}"
    aims = []
    for strategy, (shares, mb, share) in told(runs):
        of = "" if share is None else f"{share:8.4f}"
        yield f"{strategy:54} {shares['steady']:9.2%} {shares['changing']:9.2%} {mb:10.3f} {of}"
        if named(strategy).delay:
            for kind, lost in shares.items():
                text = f"{strategy}, {kind}: at most {_AIM:.0%} exposed: {lost:.2%}"
                aims.append(Aim(text, lost <= _AIM))
    yield from map(str, aims)


def _pace(some: Sequence[float]) -> float:
    return (some[-1] - some[0]) / (len(some) - 1)


def _plain(runs: Runs) -> object:
    return {
        strategy: {kind: [run._asdict() for run in some] for kind, some in kinds.items()}
        for strategy, kinds in runs.items()
    }


def _train(options: argparse.Namespace, strategy: str, changing: bool) -> Run:
    """One training. Leaves nothing behind. JobFailed."""
    often = named(strategy).every == 1
    steps = options.steps // (4 if strategy == _ALONE else 10 if often else 1)
    hosts = options.hosts + changing
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder), hosts) as network:
        if options.rate != UNLIMITED:
            network.limit(options.rate)
        found, trace = network.folder / "over", network.folder / "trace"
        found.mkdir()
        first = [f"{name} slots=1" for name in network.names[: options.hosts]]
        program = [sys.executable, "-m", "spotmpi"]
        command = network.in_head(
            *(*program, "run", "--hosts", network.hosts_file(*first)),
            *(*launching.NOBODY_SILENT, "--strategy", strategy, "--trace", trace),
            *(launching.SCRIPTS / "pacing.py", found, options.params, options.ms, steps, 1, 0),
        )
        started = temporary_job.started(
            command, network.environ, network.folder, end=signal.SIGTERM, patience_s=_DEEP_BREATH
        )
        with started as (process, said):
            quarter = _until(trace, steps // 4, process, said) if strategy != _ALONE else 0
            before = _bytes(network)
            if changing:
                _come(network, [*program, "grow", "--job", launching.job_of(process)])
                _until(trace, 3 * steps // 4, process, said)
                network.kill(network.names[1])
            code = process.wait(_LIMIT)
            gone = _bytes(network) - before
            if code:
                last = temporary_job.last_words(said)
                raise JobFailed(f"ended with code {code}; its last words:\n{last}")
        over = {int(one.name): json.loads(one.read_text()) for one in sorted(found.iterdir())}
    if len(over) != options.hosts:  # one more, and one less
        raise JobFailed(
            f"{options.hosts} workers were to end, and these did: {[*over]}; a newcomer learns in "
            "some ten rounds: perhaps --steps are too few"
        )
    return Run(over, gone / 1e6 / (len(over[0]) - quarter))


def _come(network: Network, grow: Sequence[str]) -> None:
    """The last host is asked for, and comes meanwhile."""
    grow = network.in_head(*grow, "--host", network.names[-1])
    asked = subprocess.run(grow, env=network.environ, capture_output=True, text=True)
    if asked.returncode:
        raise JobFailed(f"{network.names[-1]} does not come: {asked.stderr}")


def _until(trace: Path, steps: int, process: subprocess.Popen[bytes], said: IO[bytes]) -> int:
    """Wait until the trace has so many steps; how many it has. JobFailed."""
    deadline = time.monotonic() + _LIMIT
    taken = 0
    while taken < steps:
        if process.poll() is not None or time.monotonic() > deadline:
            last = temporary_job.last_words(said)
            raise JobFailed(f"only {taken} steps were taken; the last words:\n{last}")
        time.sleep(_LOOK)
        if trace.exists():
            taken = sum(record["event"] == "step" for record in read(trace))
    return taken


def _bytes(network: Network) -> int:
    """That have left the card of the first host."""
    show = network.in_host(network.names[0], "cat", "/sys/class/net/eth0/statistics/tx_bytes")
    return int(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
