"""The plots of ``spotmpi bench convergence``, ``adaptive``, ``accuracy`` and ``curves``. Imports
matplotlib, which spotmpi does not depend on (``.[demo]`` brings it)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spotmpi.trace.colours import BLUE, INK, ORANGE

__all__ = ["draw_accuracies", "draw_losses", "draw_races", "draw_throughputs"]

_WAYS = ("#7f7f7f", "#2ca02c", "#9467bd", "#8c564b", BLUE, ORANGE)
_HIGHEST = 3.2
"""Of a loss: it falls below that in the first tenth of a training."""
_SIDES = (("without", BLUE, -0.15), ("with", ORANGE, 0.15))


def draw_accuracies(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the cells of the bench: a panel for each set, a dot for each training, and medians.

    The file's format follows from its suffix. Local, blocking, about a second.
    """
    panels = [(name, list(group)) for name, group in groupby(cells, key=lambda cell: cell["set"])]
    wide = max(9.0, 1.2 * max(len(panel) for _, panel in panels))
    figure = Figure(figsize=(wide, 0.8 + 3.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (name, panel) in zip(axes, panels, strict=True):
        _draw(axis, name, panel)
    figure.suptitle("Test accuracy by strategy", fontweight="bold", x=0.01, ha="left")
    axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=9, frameon=False)
    figure.savefig(path, dpi=130)


def _draw(axis: Axes, name: str, cells: Sequence[Mapping[str, Any]]) -> None:
    for side, color, shift in _SIDES:
        for at, cell in enumerate(cells):
            percents = [100 * accuracy for accuracy in cell[side].values()]
            axis.plot(
                [at + shift] * len(percents),
                percents,
                "o",
                color=color,
                alpha=0.6,
                markersize=6,
                markeredgewidth=0,
                label=f"{side} revocations" if at == 0 else None,
            )
            middle = median(percents)
            axis.plot(
                [at + shift - 0.12, at + shift + 0.12], [middle] * 2, color=INK, linewidth=1.8
            )
    axis.set_xticks(range(len(cells)), [_lines(cell["strategy"]) for cell in cells], fontsize=9)
    axis.set(ylabel="test accuracy, %", xlim=(-0.6, len(cells) - 0.4))
    axis.set_title(name, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)


def draw_throughputs(shares: Mapping[str, Mapping[int, Sequence[float]]], path: Path) -> None:
    """Draw what a worker does with so many hosts, as a share of what it does alone: a line for each
    way to follow, through medians, and a dot for each training.

    The file's format follows from its suffix. Local, blocking, about a second.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axis = figure.subplots()
    colors = ("#7f7f7f", "#2ca02c", "#9467bd", ORANGE, BLUE)
    for (way, cell), color in zip(shares.items(), colors, strict=False):
        sizes = sorted(cell)
        middles = [100 * median(cell[many]) for many in sizes]
        axis.plot(sizes, middles, "-", color=color, linewidth=2.2, label=way)
        for many in sizes:
            axis.plot(
                [many] * len(cell[many]),
                [100 * one for one in cell[many]],
                "o",
                color=color,
                alpha=0.6,
                markersize=5,
                markeredgewidth=0,
            )
    axis.set(xlabel="hosts", ylabel="throughput of a worker, % of one alone", ylim=(0, 110))
    axis.set_xticks(sorted(next(iter(shares.values()))))
    axis.set_title("Hosts come one after another", fontweight="bold", loc="left")
    axis.legend(fontsize=9, frameon=False, loc="lower left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    figure.savefig(path, dpi=130)


def draw_races(
    cells: Sequence[Mapping[str, Any]],
    ways: Mapping[str, str],
    bars: Mapping[str, float],
    deaths: Sequence[float],
    path: Path,
) -> None:
    """Draw the cells of ``bench accuracy``: for each set the accuracy of each training over the
    seconds, with its bar and the moments of ``deaths``; and how long each took to the bar, with the
    median, and how many never got there.
    ``ways``: all of them, with what they are called here.

    The file's format follows from its suffix. Local, blocking, about a second.
    """
    names = list(dict.fromkeys(cell["set"] for cell in cells))
    rank = {way: at for at, way in enumerate(ways)}
    colors = {way: _WAYS[at % len(_WAYS)] for way, at in rank.items()}
    figure = Figure(figsize=(11, 0.6 + 3.6 * len(names)), layout="constrained")
    rows = figure.subplots(len(names), 2, squeeze=False, width_ratios=(3, 2))
    for name, (curves, taken) in zip(names, rows, strict=True):
        some = [cell for cell in cells if cell["set"] == name]
        for cell in some:
            seconds, accuracies = zip(*cell["curve"], strict=True)
            percents = [100 * one for one in accuracies]
            curves.plot(seconds, percents, "-", color=colors[cell["way"]], lw=1.1, alpha=0.7)
            if cell["seconds"] is not None:
                at = rank[cell["way"]]
                taken.plot(cell["seconds"], at, "o", color=colors[cell["way"]], alpha=0.6)
        for way, at in rank.items():
            took = [cell["seconds"] for cell in some if cell["way"] == way]
            if not took:
                continue
            middle = median(math.inf if one is None else one for one in took)
            if middle < math.inf:
                taken.plot([middle] * 2, [at - 0.25, at + 0.25], color=INK, linewidth=1.8)
            if never := took.count(None):
                where, place = taken.get_yaxis_transform(), {"ha": "right", "va": "bottom"}
                text = f"{never} of {len(took)} never"
                taken.text(0.99, at - 0.1, text, transform=where, fontsize=8, **place)
        curves.axhline(100 * bars[name], color=INK, linewidth=1.0)
        for moment in deaths:
            curves.axvline(moment, color="#bbbbbb", linewidth=1.0, linestyle=":")
        curves.set(ylabel="test accuracy, %", xlim=(0, None), ylim=(100 * bars[name] - 15, None))
        curves.set_title(
            f"{name}: each training, the bar, and deaths (dotted)", fontsize=10, loc="left"
        )
        taken.set_title(
            f"seconds to {100 * bars[name]:g} %, each and the median", fontsize=10, loc="left"
        )
        taken.set_yticks(range(len(ways)), list(ways.values()), fontsize=9)
        for text, way in zip(taken.get_yticklabels(), ways, strict=True):
            text.set_color(colors[way])
        taken.set(ylim=(len(ways) - 0.5, -0.5), xlim=(0, None))
        for axis in (curves, taken):
            axis.set(xlabel="seconds since the first step")
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(color="#dddddd", linewidth=0.6)
            axis.set_axisbelow(True)
    figure.savefig(path, dpi=130)


def draw_losses(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the cells of ``bench curves``: a panel for each number of killed workers. It has the
    range of all unharmed trainings, and a line for each killed one, which ends in a dot.

    The file's format follows from its suffix. Local, blocking, about a second.
    """
    calm = [np.transpose(one["curve"]) for one in cells if not one["lost"]]
    numbers = sorted({one["lost"] for one in cells} - {0})
    figure = Figure(figsize=(5.5 * max(1, len(numbers)), 4.2), layout="constrained")
    panels = figure.subplots(1, max(1, len(numbers)), squeeze=False, sharey=True)[0]
    for axis, lost in zip(panels, numbers or [0], strict=True):
        if calm:
            at = calm[0][0]
            losses = [np.interp(at, *one) for one in calm]
            low, high = np.min(losses, axis=0), np.max(losses, axis=0)
            label = f"{len(calm)} unharmed: from the least to the most"
            axis.fill_between(at / 1e3, low, high, color="#999999", alpha=0.5, lw=0, label=label)
        labels = {}
        for cell in cells:
            if cell["lost"] == lost != 0:
                color = BLUE if cell["sampler"] == "ElasticSampler" else ORANGE
                used, loss = np.transpose(cell["curve"])
                (line,) = axis.plot(used / 1e3, loss, "-", color=color, lw=1.1, alpha=0.8)
                axis.plot(used[-1] / 1e3, loss[-1], "o", color=color, markersize=4)
                labels[cell["sampler"]] = line
        for name, line in labels.items():
            line.set_label(name)
        axis.set(xlabel="samples used, thousands", xlim=(0, None), ylim=(None, _HIGHEST))
        axis.set_title(f"{lost} of the workers killed", fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.legend(fontsize=9, frameon=False)
    panels[0].set(ylabel="loss of letters that are not trained on")
    figure.savefig(path, dpi=130)


def _lines(strategy: str) -> str:
    """A name, with its options below."""
    return strategy.replace(":", "\n").replace(",", "\n")
