"""Plots: a training with its recoveries, from its trace, and the box plots of ``bench recovery``.

With ``economy.plan.drawing`` and ``bench.measuring.drawing`` the only module that imports
matplotlib, which spotmpi does not depend on (``.[demo]`` brings it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from spotmpi.errors import TraceError
from spotmpi.trace import replay
from spotmpi.trace.colours import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED
from spotmpi.trace.records import Record
from spotmpi.trace.recoveries import PARTS, Recovery, parts, recoveries

__all__ = ["FORMATS", "draw", "draw_boxes"]

FORMATS = (".png", ".svg", ".pdf")
"""What a picture of a training may be, by the end of its file's name."""

_COLORS = dict(zip(PARTS, (GREY, RED, ORANGE, PINK, BLUE), strict=True))
_SHOWN_CLOSELY = 3
"""Recoveries that get a panel of their own, at most."""
_CEILING = 300.0
"""Milliseconds: what the paper's recoveries stay below."""


def draw(records: Sequence[Record], path: Path) -> None:
    """Draw a run from the records of its trace: workers, loss and step time, and each recovery.

    The file's format follows from its suffix. Local, blocking, about a second. TraceError for a
    trace without steps or with missing ones.
    """
    steps = replay.steps(records)
    if not steps:
        raise TraceError("the trace holds no step, so there is nothing to draw")
    found = recoveries(records)
    close = [r for r in found if r.total is not None][:_SHOWN_CLOSELY]
    figure = Figure(figsize=(10, 9.5 if close else 7), layout="constrained")
    above: Any = figure
    if close:
        parts: Any = figure.subfigures(2, 1, height_ratios=(2.6, 1.1))
        above, below = parts
        _draw_closely(below, close)
    above.suptitle(_title(records, steps, found), fontsize=12, fontweight="bold", x=0.01, ha="left")
    _draw_run(above, steps, found)
    figure.savefig(path, dpi=150)


def draw_boxes(results: Mapping[str, Any], path: Path) -> None:
    """Draw the results of ``spotmpi bench recovery``, as its ``--json`` has them: Fig. 4.

    One panel for each size of the model. Boxes are quartiles with the median, crosses maxima.
    """
    cells = [cell for cell in results["cells"] if cell["spotmpi"] and cell["floor"]]
    cells.sort(key=lambda cell: (cell["params"], cell["workers"], cell["lost"]))
    panels = [list(group) for _, group in groupby(cells, key=lambda cell: cell["params"])]
    figure = Figure(figsize=(10, 1 + 3.6 * max(1, len(panels))), layout="constrained")
    axes = figure.subplots(max(1, len(panels)), 1, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel)
    figure.suptitle("Recovery from the loss of workers", fontweight="bold", x=0.01, ha="left")
    figure.supxlabel(_caption(results, cells), fontsize=8, color=INK, x=0.01, ha="left")
    figure.savefig(path, dpi=150)


# A run.


def _title(records: Sequence[Record], steps: Sequence[Record], found: Sequence[Recovery]) -> str:
    over = any(one["event"] == "end" and one["outcome"] == "finished" for one in records)
    lost = sum(len(recovery.lost) for recovery in found)
    first, last = (len(steps[i]["workers"]) for i in (0, -1))
    rest = f"{last} {'finish' if over else 'at the end'}"
    return f"{len(steps)} steps, {first} workers, {lost} revoked, {rest}"


def _draw_run(figure: Any, steps: Sequence[Record], found: Sequence[Recovery]) -> None:
    axes: Sequence[Axes] = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1.4, 1.4))
    seconds = [float(record["seconds"]) for record in steps]
    ends = list(accumulate(seconds))
    end_of = {int(record["step"]): end for record, end in zip(steps, ends, strict=True)}
    workers, loss, time = axes
    deaths = {r.step: end_of[r.step] - 1e-3 * (r.total or 0.0) for r in found if r.step in end_of}
    counts = [len(record["workers"]) for record in steps]
    # Those of a step are its survivors: before the death there were more.
    edges = [
        deaths.get(int(r["step"]), end - s) for r, end, s in zip(steps, ends, seconds, strict=True)
    ]
    workers.stairs(counts, [*edges, ends[-1]], color=BLUE, fill=True, alpha=0.25)
    workers.stairs(counts, [*edges, ends[-1]], color=BLUE, linewidth=1.5, baseline=None)
    workers.set(ylabel="workers", ylim=(0, max(counts) * 1.15))
    workers.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    known = [
        (end, record["loss"])
        for record, end in zip(steps, ends, strict=True)
        if isinstance(record.get("loss"), float | int)
    ]
    loss.plot(*zip(*known, strict=True) if known else ((), ()), color=GREEN, linewidth=1)
    if known and min(value for _, value in known) > 0:
        loss.set_yscale("log")
        _plain_numbers(loss)
    loss.set(ylabel="loss")
    took = [1e3 * s for s in seconds]
    time.plot(ends, took, ".", color=GREY, markersize=2.5, label="a step")
    hit = [(end_of[r.step], took[_index(steps, r.step)]) for r in found if r.step in end_of]
    if hit:
        time.plot(*zip(*hit, strict=True), "o", color=RED, markersize=6, label="with a recovery")
    usual = median(took)
    time.axhline(usual, color=INK, linewidth=0.8, linestyle=":", label=f"median {usual:.1f} ms")
    time.legend(loc="upper right", fontsize=8, ncols=3, framealpha=0.9)
    time.set(ylim=(min(took) / 1.5, max(took) * 4))
    time.set_yscale("log")
    _plain_numbers(time)
    time.set(ylabel="step time, ms", xlabel="seconds of training", xlim=(0, ends[-1]))
    for axis in axes:
        _clean(axis)
    _mark(axes, [(deaths[r.step], r) for r in found if r.step in deaths], ends[-1])


def _mark(axes: Sequence[Axes], marks: Sequence[tuple[float, Recovery]], width: float) -> None:
    """Each recovery through all panels, from death to last commit; its label over the first."""
    room, level, before = 0.16 * width, 0, -float("inf")
    for at, recovery in marks:
        for axis in axes:
            axis.axvline(at, color=RED, linewidth=1, linestyle="--", zorder=1)
            axis.axvspan(
                at, at + 1e-3 * (recovery.total or 0.0), color=RED, alpha=0.25, linewidth=0
            )
        # Labels that would overlap climb.
        level = level + 1 if at - before < room else 0
        before = at
        right = at > width - room
        axes[0].annotate(
            recovery.label,
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if right else 3, 3 + 26 * level),
            textcoords="offset points",
            ha="right" if right else "left",
            va="bottom",
            fontsize=8.5,
            color=RED,
        )


def _index(steps: Sequence[Record], step: int) -> int:
    return step - int(steps[0]["step"])


# A recovery.


def _draw_closely(figure: Any, found: Sequence[Recovery]) -> None:
    axes: Sequence[Axes] = figure.subplots(1, len(found), squeeze=False)[0]
    for axis, recovery in zip(axes, found, strict=True):
        shown = sorted(recovery.survivors, key=lambda record: int(record["worker"]))
        for row, record in enumerate(shown):
            left = 0.0
            for part, width in parts(record).items():
                axis.barh(row, width, left=left, color=_COLORS[part], height=0.7, linewidth=0)
                left += width
        names = [str(record["worker"]) for record in shown]
        axis.set_yticks(range(len(shown)), names)
        axis.invert_yaxis()
        axis.set(xlabel="ms since the death", xlim=(0, None))
        axis.set_title(
            f"step {recovery.step}: {recovery.label}".replace("\n", ", "), fontsize=9, color=RED
        )
        _clean(axis)
        axis.grid(axis="y", visible=False)
    axes[0].set_ylabel("survivor")
    there = {part for one in found for record in one.survivors for part in parts(record)}
    handles = [_patch(color, part) for part, color in _COLORS.items() if part in there]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(1, len(handles)),
        fontsize=8.5,
        frameon=False,
    )


# Box plots.


def _draw_panel(axis: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    ticks: list[tuple[float, str]] = []
    at = 0.0
    for workers, group in groupby(cells, key=lambda cell: cell["workers"]):
        first = at
        for cell in group:
            for side, color, shift in (("floor", ORANGE, -0.2), ("spotmpi", BLUE, 0.2)):
                totals = [float(sample["total"]) for sample in cell[side]]
                _box(axis, at + shift, totals, color)
            count = min(len(cell["spotmpi"]), len(cell["floor"]))
            ticks.append((at, f"{cell['lost']} lost\nn = {count}"))
            at += 1
        axis.annotate(
            f"{workers} workers",
            ((first + at - 1) / 2, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -4),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=9.5,
            fontweight="bold",
        )
        at += 0.6
    axis.set_xticks([x for x, _ in ticks], [text for _, text in ticks])
    top = max(float(s["total"]) for c in cells for side in ("floor", "spotmpi") for s in c[side])
    keys = [
        _patch(ORANGE, "bare ULFM: revoke, shrink, all-reduce"),
        _patch(BLUE, "spotmpi: a committed step"),
    ]
    if top > _CEILING / 3:
        keys.append(
            axis.axhline(
                _CEILING, color=INK, linewidth=0.9, linestyle=":", label="maximum in the paper"
            )
        )
        top = max(top, _CEILING)
    axis.set(ylabel="death to last commit, ms", ylim=(0, 1.3 * top), xlim=(-0.6, at - 1))
    axis.set_title(f"{cells[0]['params'] / 1e6:g} M float32", fontsize=10, loc="left")
    _clean(axis)
    axis.grid(axis="x", visible=False)
    axis.legend(
        handles=keys,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(keys),
        fontsize=8.5,
        frameon=False,
    )


def _box(axis: Axes, at: float, totals: Sequence[float], color: str) -> None:
    axis.boxplot(
        [list(totals)],
        positions=[at],
        widths=0.3,
        whis=(0, 75),
        showfliers=False,
        showcaps=False,
        patch_artist=True,
        boxprops={"facecolor": color, "alpha": 0.45, "edgecolor": color},
        whiskerprops={"linewidth": 0},
        medianprops={"color": INK, "linewidth": 1.8},
    )
    axis.plot(at, max(totals), "x", color=color, markersize=6, markeredgewidth=1.8)


def _caption(results: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> str:
    machine, versions = results["machine"], results["versions"]
    count = sum(len(cell["spotmpi"]) for cell in cells)
    return (
        f"Boxes: quartiles and median; crosses: maxima. {count} recoveries of spotmpi, "
        f"taken in turn with the floor's. {machine['cpu']}, {machine['cores']} cores, "
        f"Open MPI {versions['Open MPI']}, {results['date'][:10]}"
    )


# Looks.


def _patch(color: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=color, alpha=0.8, label=label)


def _plain_numbers(axis: Axes) -> None:
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _clean(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
