"""The file of a plan: what was asked, what was chosen, and which host is of which type.

`write` makes it, `read` takes it apart again, and `completed` lets what stands in it count wherever
the command line says nothing. Prices and profiles that are files are named by their whole path.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotmpi.economy.following.nodes import Node
from spotmpi.economy.plan.selection import Choice
from spotmpi.economy.quantities import Cluster, count_text, dollars, time_text
from spotmpi.economy.reading import Field, load
from spotmpi.errors import UsageError

__all__ = ["PlanFile", "completed", "read", "write"]

_TEXTS = (
    *("profile", "prices", "quota", "deadline", "confidence", "policy", "lifetime", "trace"),
    *("study", "notice", "replacement", "boot", "together", "recovery", "restart"),
    *("checkpoint_every", "checkpoint_cost"),
)
_NUMBERS = ("loss", "iterations")
_WHOLE = ("runs", "seed")
_FILES = ("profile", "prices", "lifetime", "trace", "together")
"""What may be the name of a file."""
_INSTEAD = (("lifetime", "trace", "study"), ("loss", "iterations"))
"""What takes the place of each other."""
_USUAL = {
    "confidence": "95",
    "policy": "spot",
    "runs": 1000,
    "seed": 0,
    "done": 0.0,
    "include_ps": False,
}
_ON_DEMAND = " on demand"


@dataclass(frozen=True)
class PlanFile:
    """What it says."""

    asked: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``spotmpi plan``, by their names in its namespace."""
    nodes: Cluster = field(default_factory=dict)
    hosts: Mapping[str, Node] = field(default_factory=dict)
    """What each host of a job is."""


def write(path: Path, options: argparse.Namespace, choice: Choice) -> None:
    """Write what was asked and chosen. Local, blocking; UsageError if that cannot be."""
    one = choice.candidate
    middle = choice.lived.dollars_below(0.5)
    costs = "" if middle is None else f", {dollars(middle.value)} (p50)"
    lines = [
        "# What `spotmpi plan` has chosen, and what it was asked. While the job runs, say",
        f"# spotmpi plan {path.name} --follow JOB",
        f"written: {datetime.date.today()}",
        f"# {time_text(one.seconds)} undisturbed{costs}",
        f"nodes: {_quoted(count_text(one.cluster))}",
        "asked:",
    ]
    for name in (*_TEXTS, *_NUMBERS, *_WHOLE):
        value = getattr(options, name)
        if value is not None:
            lines.append(f"  {name}: {_quoted(_whole_path(name, str(value)))}")
    if options.include_ps:
        lines.append('  include_ps: "true"')
    lines += [
        "# Which host of the job is of which type, where there are several types, as",
        '# {"h1": "p3.2xl", "h2": "p3.2xl on demand"}',
        "hosts: {}",
    ]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--write {path} cannot be written: {error.strerror}") from error


def read(path: Path) -> PlanFile:
    """Read it. Local, blocking; UsageError, with the line, for what is wrong in it."""
    root = load(path)
    root.only("written", "nodes", "asked", "hosts")
    asked: dict[str, Any] = {}
    for name, told in root.need("asked").items():
        if name in _TEXTS:
            asked[name] = told.text()
        elif name in _NUMBERS:
            asked[name] = told.number()
        elif name in _WHOLE:
            asked[name] = told.whole()
        elif name == "include_ps":
            asked[name] = told.text("true", "false") == "true"
        else:
            told.wrong(f"{told.name} is no option of spotmpi plan that a plan may hold")
    nodes, hosts = root.get("nodes"), root.get("hosts")
    return PlanFile(
        asked,
        {} if nodes is None else _cluster(nodes),
        {} if hosts is None else {name: _node(one) for name, one in hosts.items()},
    )


def completed(options: argparse.Namespace, plan: PlanFile) -> argparse.Namespace:
    """The options, with what the plan says where they say nothing, and else what is usual."""
    said = {name: value for name, value in vars(options).items() if value is not None}
    asked = dict(plan.asked)
    for names in _INSTEAD:
        if any(name in said for name in names):
            for name in names:
                asked.pop(name, None)
    merged = {**vars(options), **_USUAL, **asked, **said}
    for name in ("profile", "prices", "quota", "deadline"):
        if merged[name] is None:
            raise UsageError(
                f"--{name} is missing; say it, or name a plan that --write has written"
            )
    return argparse.Namespace(**merged)


def _cluster(field: Field) -> Cluster:
    from spotmpi.economy.quantities import cluster

    try:
        return cluster(field.text(), field.name)
    except UsageError as error:
        field.wrong(str(error))


def _node(field: Field) -> Node:
    text = field.text()
    return Node(text.removesuffix(_ON_DEMAND), text.endswith(_ON_DEMAND))


def _whole_path(name: str, text: str) -> str:
    before, mark, file = text.rpartition(":") if name == "lifetime" else ("", "", text)
    if name in _FILES and file and Path(file).is_file():
        return f"{before}{mark}{Path(file).resolve()}"
    return text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
