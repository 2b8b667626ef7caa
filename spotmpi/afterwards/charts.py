"""Charts for a page: SVG that stretches with it, and labels beside it that do not.

The shapes of a chart fill whatever room there is, so their coordinates are shares of it, and lines
and dots have the same width however they are stretched. All text is HTML, of the page's own size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Axis", "Mark", "bars", "chart", "dots", "line", "steps"]

_POINTS = 600
"""Of a line, at most: more than a screen has columns for them."""

_LETTER = 0.02
"""Of a chart's width: what a letter of a label takes where the screen is narrow."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """The numbers from ``low`` to ``high``, as shares of a length."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Sequence[float], log: bool = False, zero: bool = False) -> Axis:
        """Room for all ``values``; ``zero``: from there on."""
        low, high = (0.0 if zero else min(values)), max(values)
        if log:
            return cls(low / 1.3, high * 1.3, True)
        room = 0.06 * (high - low) or abs(high) or 1.0
        return cls(low if zero else low - room, high + room)

    def share(self, value: float) -> float:
        """Where a value is: 0 is the low end, 1 the high one."""
        if self.log:
            value, low, high = math.log(value), math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    def ticks(self, whole: bool = False) -> list[float]:
        """A few round numbers on it."""
        if self.log:
            first = math.floor(math.log10(self.low))
            last = math.ceil(math.log10(self.high))
            found = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
            inside = [one for one in found if self.low <= one <= self.high]
            return inside[:: max(1, -(-len(inside) // 5))] or [math.sqrt(self.low * self.high)]
        size = 10.0 ** math.floor(math.log10((self.high - self.low) or 1.0))
        step = next(
            (size * m for m in (0.1, 0.2, 0.5, 1.0, 2.0) if (self.high - self.low) <= 5 * size * m),
            2 * size,
        )
        if whole:
            step = max(1.0, math.ceil(step))
        first = math.ceil(self.low / step - 1e-9)
        return [step * n for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Mark:
    """A moment through the whole height of a chart, and its label."""

    at: float
    label: str
    kind: str
    """Its class: ``loss`` or ``change``."""


def chart(
    x: Axis,
    y: Axis,
    shapes: Sequence[str],
    said: str,
    marks: Sequence[Mark] = (),
    shown: Callable[[float], str] = "{:g}".format,
    whole: bool = False,
) -> str:
    """One chart. ``shapes``: by the functions below; ``said``: what it shows, for those who do not
    see it; ``shown``: how a number on the upright axis is written."""
    ups = [(1.0 - y.share(tick), shown(tick)) for tick in y.ticks(whole)]
    along = [(x.share(tick), f"{tick:g}") for tick in x.ticks()]
    grid = "".join(f'<path class="grid" d="M0 {1e3 * at:.1f}H1000"/>' for at, _ in ups)
    lines = "".join(
        f'<path class="mark {escape(one.kind)}" d="M{1e3 * x.share(one.at):.1f} 0V1000"/>'
        for one in marks
    )
    labels = "".join(
        f'<span class="up" style="top:{1e2 * at:.2f}%">{escape(text)}</span>' for at, text in ups
    )
    below = "".join(
        f'<span class="along" style="left:{1e2 * at:.2f}%">{escape(text)}</span>'
        for at, text in along
    )
    flags = "".join(
        f'<span class="flag {escape(kind)}" style="left:{1e2 * at:.2f}%">{escape(label)}</span>'
        for at, label, kind in _flags(x, marks)
    )
    return (
        f'<div class="chart"><div class="flags">{flags}</div><div class="ups">{labels}</div>'
        f'<svg role="img" aria-label="{escape(said)}" viewBox="0 0 1000 1000" '
        f'preserveAspectRatio="none">{grid}{"".join(shapes)}{lines}</svg>'
        f'<div class="alongs">{below}</div></div>'
    )


def _flags(x: Axis, marks: Sequence[Mark]) -> list[tuple[float, str, str]]:
    """Where labels are, what they say, and their class; those that would overlap are one."""
    found: list[tuple[float, str, str]] = []
    for one in sorted((one for one in marks if one.label), key=lambda one: one.at):
        at, label, kind = x.share(one.at), one.label, one.kind
        if found:
            before, said, kinds = found[-1]
            if at - before < _LETTER * (len(said) + len(label) + 1) / 2:
                found[-1] = (before + at) / 2, f"{said} {label}", kind if kind == kinds else ""
                continue
        found.append((at, label, kind))
    return found


def line(x: Axis, y: Axis, points: Sequence[Point], kind: str) -> str:
    """Points one after another."""
    return f'<path class="line {kind}" d="{_path(x, y, _thinned(points))}"/>'


def dots(x: Axis, y: Axis, points: Sequence[Point], kind: str) -> str:
    """Points by themselves: strokes of no length, whose round ends no stretching makes oval."""
    drawn = "".join(
        f"M{1e3 * x.share(a):.1f} {1e3 * (1 - y.share(b)):.1f}h0" for a, b in _thinned(points)
    )
    return f'<path class="dots {kind}" d="{drawn}"/>'


def steps(x: Axis, y: Axis, points: Sequence[Point], end: float, kind: str) -> str:
    """Each value from its moment on, to the next one's; with the area below."""
    if not points:
        return ""
    path = f"M{1e3 * x.share(points[0][0]):.1f} {1e3 * (1 - y.share(points[0][1])):.1f}"
    for at, value in points[1:]:
        path += f"H{1e3 * x.share(at):.1f}V{1e3 * (1 - y.share(value)):.1f}"
    path += f"H{1e3 * x.share(end):.1f}"
    area = f"{path}V1000H{1e3 * x.share(points[0][0]):.1f}Z"
    return f'<path class="area {kind}" d="{area}"/><path class="line {kind}" d="{path}"/>'


def bars(parts: Sequence[tuple[str, float]], most: float) -> str:
    """Lengths one after another, as shares of ``most``; each with the name of its class."""
    spans = "".join(
        f'<i class="{escape(name)}" style="width:{1e2 * length / most:.2f}%"></i>'
        for name, length in parts
        if length > 0 < most
    )
    return f'<span class="bar">{spans}</span>'


def _path(x: Axis, y: Axis, points: Sequence[Point]) -> str:
    places = [f"{1e3 * x.share(a):.1f} {1e3 * (1 - y.share(b)):.1f}" for a, b in points]
    return f"M{'L'.join(places)}" if places else ""


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """As many as can be seen: of each bundle its first, lowest and highest."""
    if len(points) <= _POINTS:
        return points
    size = -(-len(points) // (_POINTS // 3))
    found: list[Point] = []
    for begin in range(0, len(points), size):
        bundle = points[begin : begin + size]
        kept = {bundle[0], min(bundle, key=_height), max(bundle, key=_height)}
        found += sorted(kept)
    return found


def _height(point: Point) -> float:
    return point[1]
