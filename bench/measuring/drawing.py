"""The plot of ``spotmpi bench convergence``. Imports matplotlib, which spotmpi does not depend on
(``.[demo]`` brings it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spotmpi.trace.colours import BLUE, INK, ORANGE

__all__ = ["draw_accuracies"]

_SIDES = (("without", BLUE, -0.15), ("with", ORANGE, 0.15))


def draw_accuracies(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the cells of the bench: a panel for each set, a dot for each training, and medians.

    The file's format follows from its suffix. Local, blocking, about a second.
    """
    panels = [(name, list(group)) for name, group in groupby(cells, key=lambda cell: cell["set"])]
    figure = Figure(figsize=(9, 0.8 + 3.2 * len(panels)), layout="constrained")
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
    axis.set_xticks(range(len(cells)), [_lines(cell["strategy"]) for cell in cells])
    axis.set(ylabel="test accuracy, %", xlim=(-0.6, len(cells) - 0.4))
    axis.set_title(name, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)


def _lines(strategy: str) -> str:
    """A name, with its options below."""
    return strategy.replace(":", "\n").replace(",", "\n")
