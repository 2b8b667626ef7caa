"""``spotmpi why``: each interruption of a training, what it was, and what it has cost."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spotmpi.afterwards.perfetto import perfetto
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch.commands import client
from spotmpi.options import exit_codes
from spotmpi.trace.interruptions import UNEXPLAINED, Interruption, Story, story
from spotmpi.trace.runs import alone, of_file, printable

__all__ = ["add_arguments", "lines", "main", "summary"]

_HEAD = ("after", "step", "cause", "workers", "cost", "")
_TIMES = {1: "once", 2: "twice"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi why [--perfetto FILE] [JOB | RUN.jsonl]"
    parser.description = (
        "Say what interrupted a training, a line each: when, which step, the cause, which workers, "
        "what it cost, and of a recovery what took how long; and its goodput, the share of the "
        "time in which steps advanced. From the trace of a training that is over, or of a job that "
        "runs. docs/traces.md says how causes are found."
    )
    parser.epilog = "example: spotmpi why run.jsonl\n\n" + exit_codes(
        {
            0: "it was shown",
            1: "the file is no trace, or the job has none here",
            2: "wrong arguments, or several jobs run",
        }
    )
    parser.add_argument(
        "what",
        metavar="JOB|RUN.jsonl",
        nargs="?",
        help="the trace, or the name of a running job (the only one, if you give nothing)",
    )
    parser.add_argument(
        "--perfetto",
        metavar="FILE",
        type=Path,
        help="write all rounds of all workers to FILE, for ui.perfetto.dev or chrome://tracing",
    )


def main(options: argparse.Namespace) -> int:
    """Show each training of the trace. Blocking."""
    trace = _trace(options.what)
    if options.perfetto is not None:
        _write(trace, options.perfetto)
    trainings = of_file(trace)
    for number, records in enumerate(trainings, 1):
        if len(trainings) > 1:
            print(f"training {number} of {len(trainings)}")
        for line in lines(story(records)):
            print(line)
    return 0


def _write(trace: Path, output: Path) -> None:
    if output.suffix != ".json":
        raise UsageError(f"--perfetto {output}: give a name that ends in .json")
    made = perfetto(story(alone(trace)))
    try:
        output.write_text(made, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--perfetto {output} cannot be written: {error.strerror}") from error


def _trace(what: str | None) -> Path:
    """The file that is meant. Raises UsageError, or TraceError if the job has none."""
    if what is not None and Path(what).exists():
        return Path(what)
    try:
        folder = client.find(what, "spotmpi why NAME")
    except client.Gone as gone:
        if what is None:
            raise
        raise UsageError(
            f"there is no trace {what}, and no job of this name runs on this host; give one of them"
        ) from gone
    name = client.status(folder).trace
    if name is None:
        raise TraceError(
            f"{folder.name} writes no trace, so nothing is known of its interruptions: start it "
            "with `spotmpi run --trace RUN.jsonl`"
        )
    if not (path := Path(name)).exists():
        raise TraceError(
            f"the trace of {folder.name} is not on this host: {name} lies where its first worker "
            "runs, and is there once it has trained"
        )
    return path


def lines(told: Story) -> Iterator[str]:
    """A training's: its goodput, what each cause has cost, and a table of what interrupted it."""
    yield from summary(told)
    if len(told.interruptions) > 1:
        yield _by_cause(told.interruptions)
    rows = [_HEAD, *map(_row, told.interruptions)]
    if len(rows) > 1:
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        for row in rows:
            cells = [
                f"{cell:>{width}}" if column in (0, 1, 4) else f"{cell:<{width}}"
                for column, (cell, width) in enumerate(zip(row, widths, strict=False))
            ]
            yield "  ".join([*cells, row[5]]).rstrip()


def summary(told: Story) -> Iterator[str]:
    """In two sentences."""
    if told.usual is None:
        yield "no step is in the trace yet"
        return
    spent = told.total - told.lost
    yield (
        f"goodput {told.goodput:.1%}: steps advanced in {spent:.1f} of {told.total:.1f} s"
        + _began(told)
    )
    gaps = [one for one in told.interruptions if one.gap]
    unknown = sum(one.cause == UNEXPLAINED for one in gaps)
    one = len(gaps) == 1
    rest = f"{unknown} of them unexplained" if unknown else f"{'' if one else 'each '}has a cause"
    yield (
        f"a usual step takes {1e3 * told.usual:.1f} ms; "
        f"{len(gaps)} interruption{'' if one else 's'} took more than twice that"
        + (f", and {rest}" if gaps else "")
    )


def _by_cause(found: Sequence[Interruption]) -> str:
    """Among a hundred stragglers nobody finds the one loss: the dearest cause first."""
    costs: dict[str, list[float]] = {}
    for one in found:
        costs.setdefault(printable(one.cause), []).append(one.cost)
    dearest = sorted(costs.items(), key=lambda item: -sum(item[1]))
    told = (
        f"{cause} {1e3 * sum(each):.0f} ms ({_TIMES.get(len(each), f'{len(each)} times')})"
        for cause, each in dearest
    )
    return f"cost by cause: {', '.join(told)}"


def _began(told: Story) -> str:
    time: Any = told.runs[0].records[0].get("time")
    if not isinstance(time, int | float):
        return ""
    try:
        moment = datetime.datetime.fromtimestamp(time).astimezone()
    except (ValueError, OverflowError, OSError):
        return ""
    return f", since {moment.isoformat(sep=' ', timespec='seconds')}"


def _row(one: Interruption) -> Sequence[str]:
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in one.parts.items())
    said = "; ".join(filter(None, [f"{parts} ms" if parts else "", printable(one.why)]))
    workers = ",".join(map(str, one.workers)) or "-"
    cause, cost = printable(one.cause), f"{1e3 * one.cost:.0f} ms"
    return f"{one.at:.2f} s", str(one.step), cause, workers, cost, said
