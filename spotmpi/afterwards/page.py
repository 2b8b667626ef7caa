"""A training as one HTML page that needs nothing else: no script, no font, no network.

Whatever stands in a trace may be hostile: all text is escaped, numbers are written by us, and the
page itself forbids the browser to fetch or to run anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from spotmpi.afterwards import charts
from spotmpi.afterwards.charts import Axis, Mark
from spotmpi.errors import TraceError
from spotmpi.trace.interruptions import UNEXPLAINED, Interruption, Story, story
from spotmpi.trace.proof import findings
from spotmpi.trace.records import Record
from spotmpi.trace.recoveries import PARTS, named
from spotmpi.trace.timeline import Round
from spotmpi.version import VERSION

__all__ = ["page"]

_MOST_ROWS = 500
"""Of a table."""
_MOST_FLAGS = 12
"""Marks of a chart that have a label."""
_WORDS = {True: "holds", False: "FAILS", None: "unknown"}


@dataclass(frozen=True)
class _Seen:
    """What all sections are about."""

    told: Story
    rounds: Sequence[Round]
    """Those that count."""
    losses: Sequence[tuple[float, float]]
    x: Axis
    marks: Sequence[Mark]


def page(records: Sequence[Record], name: str, price: float | None = None) -> str:
    """The page of one training. ``name``: of its file; ``price``: of a host for an hour.

    TraceError for a trace without steps.
    """
    told = story(records)
    rounds = [one for one in told.rounds if not one.void]
    if not rounds:
        raise TraceError(f"{name} holds no step, so there is nothing to report")
    x = Axis(0.0, max(told.total, 1e-3))
    seen = _Seen(told, rounds, _losses(records, rounds), x, _marks(told.interruptions))
    body = "".join(
        [
            f"<header><h1>{escape(name)}</h1><p>{escape(_subtitle(records, seen))}</p></header>",
            _tiles(records, seen, price),
            _loss(seen),
            _workers(seen),
            _times(seen),
            _recoveries(seen),
            _checks(records),
            _interruptions(seen),
            f"<footer>Made by spotmpi {escape(VERSION)} from {escape(name)}.</footer>",
        ]
    )
    style = (resources.files("spotmpi.afterwards") / "page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(name)}</title><style>{style}</style></head><body><main>{body}</main>"
        "</body></html>\n"
    )


def _losses(records: Sequence[Record], rounds: Sequence[Round]) -> list[tuple[float, float]]:
    known = {
        record["step"]: float(record["loss"])
        for record in records
        if record["event"] == "step" and isinstance(record.get("loss"), float | int)
    }
    return [(one.at, known[one.last]) for one in rounds if one.last in known]


_STAYED = ("straggler", "once", "checkpoint")
"""What a worker may have held the others up with; in all else it was lost, came or left."""


def _marks(found: Iterable[Interruption]) -> list[Mark]:
    """Who was lost, came or left."""
    marks = []
    for one in found:
        if one.workers and one.cause not in _STAYED:
            kind = "change" if "join" in one.cause else "loss"
            sign = "+" if kind == "change" else "\N{MINUS SIGN}"
            died = one.at - 1e-3 * sum(one.parts.values())
            marks.append(Mark(died, sign + ",".join(map(str, one.workers)), kind))
    if len(marks) > _MOST_FLAGS:
        return [Mark(one.at, "", one.kind) for one in marks]
    return marks


def _subtitle(records: Sequence[Record], seen: _Seen) -> str:
    start = next((r for r in records if r["event"] == "start"), {})
    ends = [r for r in records if r["event"] == "end"]
    parts = [str(start[one]) for one in ("strategy", "optimizer") if start.get(one)]
    if isinstance(params := start.get("params"), int):
        parts.append(f"{params:,} parameters")
    hosts = {str(host) for host in start.get("hosts") or ()}
    if hosts:
        parts.append(f"{len(hosts)} host{'s' * (len(hosts) != 1)}")
    parts.append(str(ends[-1]["outcome"]) if ends else "not at its end")
    return ", ".join(parts)


def _tiles(records: Sequence[Record], seen: _Seen, price: float | None) -> str:
    told, last = seen.told, seen.rounds[-1]
    lost = sum(len(r["lost"]) for run in told.runs for r in _told_once(run.of("recovery")))
    changes = [r for run in told.runs for r in run.of("change")]
    joined, left = (sum(len(r[one]) for r in changes) for one in ("joined", "left"))
    first = len(seen.rounds[0].workers)
    tiles = [
        ("steps", f"{last.last + 1:,}"),
        ("loss", f"{seen.losses[-1][1]:.4g}" if seen.losses else "not told"),
        ("time", _duration(told.total)),
        ("goodput", f"{told.goodput:.1%}"),
        ("a usual step", _ms(told.usual or 0.0)),
        ("workers", f"{first} \N{RIGHTWARDS ARROW} {len(last.workers)}"),
        ("lost, left, joined", f"{lost}, {left}, {joined}"),
    ]
    if price is not None:
        hours = _host_hours(told)
        tiles.append(("cost", f"{price * hours:,.2f} USD ({hours:.3g} host hours)"))
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _told_once(records: Sequence[Record]) -> Iterable[Record]:
    return {record["generation"]: record for record in records}.values()


def _host_hours(told: Story) -> float:
    """For which hosts were in the training: each while one of its workers was."""
    seconds = 0.0
    for run in told.runs:
        at = run.began
        for one in run.rounds:
            hosts = {run.hosts.get(worker, "") for worker in one.workers}
            seconds += len(hosts) * max(0.0, one.at - at)
            at = max(at, one.at)
    return seconds / 3600


def _loss(seen: _Seen) -> str:
    if not seen.losses:
        return _section("Loss", "<p>The trace tells no loss.</p>")
    values = [value for _, value in seen.losses]
    y = Axis.of(values, log=min(values) > 0 and max(values) > 4 * min(values))
    drawn = charts.line(seen.x, y, seen.losses, "loss")
    said = f"Loss over time, from {values[0]:.4g} to {values[-1]:.4g}"
    return _section("Loss", charts.chart(seen.x, y, [drawn], said, seen.marks) + _seconds())


def _workers(seen: _Seen) -> str:
    counts: list[tuple[float, float]] = []
    for one in seen.rounds:
        begin = one.at - one.seconds
        if not counts or counts[-1][1] != len(one.workers):
            counts.append((begin if counts else 0.0, float(len(one.workers))))
    y = Axis.of([value for _, value in counts], zero=True)
    drawn = charts.steps(seen.x, y, counts, seen.told.total, "workers")
    said = f"Workers over time, from {counts[0][1]:.0f} to {counts[-1][1]:.0f}"
    picture = charts.chart(seen.x, y, [drawn], said, seen.marks, whole=True)
    return _section("Workers", picture + _seconds())


def _times(seen: _Seen) -> str:
    points = [
        (one.at, 1e3 * one.seconds / (one.last - one.first + 1), one.gap)
        for one in seen.rounds
        if one.seconds > 0
    ]
    if not points:
        return ""
    y = Axis.of([value for _, value, _ in points], log=True)
    usual = 1e3 * (seen.told.usual or 0.0)
    shapes = [charts.dots(seen.x, y, [(a, b) for a, b, gap in points if not gap], "usual")]
    shapes.append(charts.dots(seen.x, y, [(a, b) for a, b, gap in points if gap], "gap"))
    if usual > 0:
        shapes.insert(0, charts.line(seen.x, y, [(0.0, usual), (seen.told.total, usual)], "median"))
    said = f"Milliseconds of each step; usually {usual:.1f}"
    key = (
        '<p class="key"><i class="gap"></i>more than twice as long as usual '
        f'<i class="median"></i>usual, {usual:.1f} ms</p>'
    )
    picture = charts.chart(seen.x, y, shapes, said)
    return _section("Time of a step, ms", picture + _seconds() + key)


def _recoveries(seen: _Seen) -> str:
    found = [one for one in seen.told.interruptions if one.parts]
    if not found:
        return ""
    most = max(sum(one.parts.values()) for one in found)
    present = [part for part in PARTS if any(part in one.parts for one in found)]
    rows = "".join(
        f"<tr><td>{one.step}</td><td>{escape(named(one.workers))} ({escape(one.cause)})</td>"
        f"<td>{charts.bars([(part, one.parts.get(part, 0.0)) for part in present], most)}</td>"
        + "".join(f"<td>{one.parts.get(part, 0.0):.1f}</td>" for part in present)
        + f"<td>{sum(one.parts.values()):.1f}</td></tr>"
        for one in found[:_MOST_ROWS]
    )
    heads = "".join(f'<th class="number"><i class="{part}"></i>{part}</th>' for part in present)
    table = (
        '<table class="recoveries"><thead><tr><th>step</th><th>lost</th>'
        f'<th class="wide">ms since the death</th>{heads}<th class="number">all</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    return _section("Recoveries, ms", _wide(table) + _cut(len(found)))


def _interruptions(seen: _Seen) -> str:
    found = seen.told.interruptions
    if not found:
        return _section("Interruptions", "<p>None.</p>")
    rows = "".join(
        f"<tr{' class=unexplained' if one.cause == UNEXPLAINED else ''}>"
        f"<td>{one.at:.2f}</td><td>{one.step}</td><td>{escape(one.cause)}</td>"
        f"<td>{escape(', '.join(map(str, one.workers)))}</td><td>{1e3 * one.cost:.0f}</td>"
        f"<td>{escape(one.why)}</td></tr>"
        for one in found[:_MOST_ROWS]
    )
    table = (
        '<table class="interruptions"><thead><tr><th class="number">after, s</th>'
        '<th class="number">step</th><th>cause</th><th>workers</th><th class="number">cost, ms</th>'
        f"<th>why</th></tr></thead><tbody>{rows}</tbody></table>"
    )
    return _section("Interruptions", _wide(table) + _cut(len(found)))


def _checks(records: Sequence[Record]) -> str:
    rows = "".join(
        f'<tr class="{_WORDS[one.holds]}"><td>{_WORDS[one.holds]}</td><td>{escape(one.what)}</td>'
        f"<td>{escape(one.said)}</td></tr>"
        for one in findings(records)
    )
    return _section("Checked", _wide(f'<table class="checks"><tbody>{rows}</tbody></table>'))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _wide(table: str) -> str:
    return f'<div class="wide" tabindex="0">{table}</div>'


def _cut(rows: int) -> str:
    rest = rows - _MOST_ROWS
    return f"<p>and {rest} more, which `spotmpi why` shows</p>" if rest > 0 else ""


def _seconds() -> str:
    return '<p class="unit">seconds of training</p>'


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1.0 else f"{seconds:.2f} s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
