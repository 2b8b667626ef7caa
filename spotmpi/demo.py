"""``spotmpi demo``: train on a real data set while four of eight workers are killed, and prove it.

The training is an ordinary `spotmpi run` of an ordinary script. What is claimed at the end is not
what the workers say of themselves, but what follows from the trace that they left.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import spotmpi
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch.commands import run
from spotmpi.launch.commands.doctor import problems
from spotmpi.launch.start.installation import search
from spotmpi.trace import replay
from spotmpi.trace.records import Record, read

__all__ = ["add_arguments", "main", "proof", "recoveries"]

WORKERS = 8
REVOCATIONS = ("0,3,5@150", "6@400")
IMAGES, PASSES = 1437, 40
"""What jobs/digits.py trains on."""

_SCRIPT = Path(spotmpi.__file__).parent / "jobs" / "digits.py"
_PLOT = Path("spotmpi-demo.png")
_EXTRAS = {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        f"Train a small network on scikit-learn's digits with {WORKERS} workers on this host, kill "
        "four of them, and check what happened. Takes less than a minute."
    )
    parser.epilog = "example: spotmpi demo --plot demo.png"
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, default=_PLOT, help="where to draw it (%(default)s)"
    )


def main(options: argparse.Namespace) -> int:
    """Train, check the trace, draw it. Blocking; returns the exit code."""
    missing = [package for module, package in _EXTRAS.items() if find_spec(module) is None]
    if missing:
        return _refuse([f"more packages are needed: python -m pip install {' '.join(missing)}"])
    if wrong := problems(search(os.environ), WORKERS, os.environ):
        return _refuse(wrong)
    from spotmpi.trace import plots  # needs matplotlib

    plot: Path = options.plot
    if not plot.parent.is_dir():
        raise UsageError(f"--plot {plot}: there is no folder {plot.parent}")
    with tempfile.TemporaryDirectory(prefix="spotmpi-demo-") as folder:
        trace = Path(folder) / "trace.jsonl"
        _say(_plan())
        code = _run(_command(trace))
        if code != 0:
            return code
        records = list(read(trace))
    _say("\nWhat the trace says of it:\n")
    for line in recoveries(records):
        _say(f"  {line}")
    _say("\nChecked, from the trace:\n")
    for line in proof(records, IMAGES, PASSES):
        _say(f"  {line}")
    plots.draw(records, plot)
    _say(f"\nThe plot of this run: {plot.resolve()}")
    return 0


def recoveries(records: Sequence[Record]) -> Iterator[str]:
    """A line for each recovery: who was lost, how long it took, and what took how long.

    The whole step is given as well: the kernel reports a death only after it has taken down the
    process's memory, and the survivors wait for that, too.
    """
    told = {record["generation"]: record for record in records if record["event"] == "recovery"}
    steps = {record["step"]: 1e3 * record["seconds"] for record in replay.steps(records)}
    for number, record in enumerate(told.values(), start=1):
        mine = [
            other
            for other in records
            if other["event"] == "recovered" and other["generation"] == record["generation"]
        ]
        totals = [other["total_ms"] for other in mine if other["total_ms"] is not None]
        took = f"{max(totals):.1f} ms" if totals else "a time unknown"
        parts = ", ".join(
            f"{phase} {record[f'{phase}_ms']:.1f}"
            for phase in ("detect", "revoke", "reconcile", "accept", "restart")
            if record[f"{phase}_ms"] is not None
        )
        # After a repair the writer may name the step after the one in which it happened.
        stretched = max(steps.get(record["step"] - back, 0.0) for back in (0, 1))
        yield (
            f"recovery {number}: {_named(record['lost'])} lost; {len(mine)} survivors go on {took} "
            f"after the death ({parts}); {record['verdict']}; "
            f"the whole step took {stretched:.0f} ms"
        )
    usual = statistics.median(steps.values())
    yield f"for comparison: an ordinary step took {usual:.1f} ms (median)"


def proof(records: Sequence[Record], samples: int, passes: int) -> Iterator[str]:
    """What was promised, each checked from the trace. TraceError for what does not hold."""
    start, end = _only(records, "start"), _only(records, "end")
    lost = {w for record in records if record["event"] == "recovery" for w in record["lost"]}
    _hold(lost.isdisjoint(end["workers"]), f"workers {sorted(lost)} were lost and yet finished")
    _hold(
        sorted([*lost, *end["workers"]]) == start["workers"],
        f"of {start['workers']} only {end['workers']} finished and {sorted(lost)} were lost",
    )
    yield f"survivors: {_named(end['workers'])} of {len(start['workers'])} finished"

    steps = replay.steps(records)
    recovered = [record for record in records if record["event"] == "recovered"]
    _hold(len(steps) == end["step"], f"{end['step']} steps ended, {len(steps)} are in the trace")
    _hold(all(record["lost_steps"] == 0 for record in recovered), "a survivor lost a step")
    yield f"steps lost: 0; the trace has steps 0 to {len(steps) - 1}, each once"

    again = sum(record["recomputed_gradients"] for record in recovered)
    _hold(again == 0, f"{again} gradients were computed twice")
    yield f"gradients computed again: 0, in {len(recovered)} reports of survivors"

    _hold(all(record["digest"] for record in steps), "a step has no digest of the parameters")
    _hold(end["outcome"] == "finished", f"the run did not finish, it {end['outcome']}")
    compared = replay.check_replicas(records)
    _hold(compared == len(recovered), f"only {compared} survivors digested their parameters")
    yield (
        f"replicas: bit-identical in {compared} digests of survivors after recoveries; in the "
        f"{len(steps)} steps the workers compared theirs, and would have ended the job"
    )

    replay.check_exactly_once(records, samples, passes)
    yield f"samples: each of {samples} images was used exactly once in each of {passes} passes"


def _command(trace: Path) -> list[str]:
    revocations = [word for revocation in REVOCATIONS for word in ("--revoke", revocation)]
    job = [str(_SCRIPT), "--passes", str(PASSES)]
    return ["-n", str(WORKERS), *revocations, "--trace", str(trace), *job]


def _plan() -> str:
    deaths = []
    for revocation in REVOCATIONS:
        workers, _, step = revocation.partition("@")
        deaths.append(
            f"  step {step:>4}: SIGKILL for {_named(workers.split(','))} in the all-reduce"
        )
    return "\n".join(
        [
            f"{WORKERS} workers on this host are going to train a small network to read digits",
            f"({IMAGES} images, {PASSES} passes). Not all of them will live to see the end:",
            "",
            *deaths,
            "",
            "The script has no code for failures. You can do the same by hand:",
            "",
            f"  spotmpi run {shlex.join(_command(Path('run.jsonl')))}",
            "",
            "Starting the workers takes the longest.",
            "",
        ]
    )


def _run(command: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="spotmpi run")
    run.add_arguments(parser)
    return run.main(parser.parse_args(list(command)))


def _refuse(reasons: Sequence[str]) -> int:
    for reason in reasons:
        print(f"spotmpi demo: {reason}", file=sys.stderr)
    return 1


def _named(workers: Sequence[object]) -> str:
    names = [str(worker) for worker in workers]
    if len(names) == 1:
        return f"worker {names[0]}"
    return f"workers {', '.join(names[:-1])} and {names[-1]}"


def _only(records: Sequence[Record], event: str) -> Record:
    found = [record for record in records if record["event"] == event]
    _hold(len(found) == 1, f"it has {'more than one' if found else 'no'} {event}")
    return found[0]


def _hold(true: bool, otherwise: str) -> None:
    if not true:
        raise TraceError(f"the trace does not prove what it should: {otherwise}")


def _say(line: str) -> None:
    # The launcher writes to the same terminal, past Python's buffer.
    print(line, flush=True)
