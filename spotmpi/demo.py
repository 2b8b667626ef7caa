"""``spotmpi demo``: train on a real data set while four of eight workers are killed, and prove it.

The training is an ordinary `spotmpi run` of an ordinary script. What is claimed at the end is not
what the workers say of themselves, but what follows from the trace that they left.
"""

from __future__ import annotations

import argparse
import os
import shlex
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
from spotmpi.trace.proof import findings
from spotmpi.trace.records import Record, read
from spotmpi.trace.recoveries import described, named

__all__ = ["add_arguments", "main", "proven"]

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
    for line in described(records):
        _say(f"  {line}")
    _say("\nChecked, from the trace:\n")
    for line in proven(records):
        _say(f"  {line}")
    plots.draw(records, plot)
    _say(f"\nThe plot of this run: {plot.resolve()}")
    return 0


def proven(records: Sequence[Record]) -> Iterator[str]:
    """What was promised, each checked from the trace. TraceError for what does not hold."""
    for one in findings(records):
        if not one.holds:
            raise TraceError(f"the trace does not prove what it should: {one.what}: {one.said}")
        yield f"{one.what}: {one.said}"
    whole = [(one["n"], one["passes"]) for one in records if one["event"] == "batches"]
    outcomes = [one["outcome"] for one in records if one["event"] == "end"]
    if set(whole) != {(IMAGES, PASSES)} or outcomes != ["finished"]:
        raise TraceError(
            f"the trace is not of {IMAGES} images in {PASSES} passes to the end, but of {whole}, "
            f"which {outcomes}"
        )


def _command(trace: Path) -> list[str]:
    revocations = [word for revocation in REVOCATIONS for word in ("--revoke", revocation)]
    job = [str(_SCRIPT), "--passes", str(PASSES)]
    return ["-n", str(WORKERS), *revocations, "--trace", str(trace), *job]


def _plan() -> str:
    deaths = []
    for revocation in REVOCATIONS:
        workers, _, step = revocation.partition("@")
        deaths.append(
            f"  step {step:>4}: SIGKILL for {named(workers.split(','))} in the all-reduce"
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


def _say(line: str) -> None:
    # The launcher writes to the same terminal, past Python's buffer.
    print(line, flush=True)
