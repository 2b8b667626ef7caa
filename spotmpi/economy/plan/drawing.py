"""Plots of simulated trainings: how time and cost are spread, and one run with its workers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from spotmpi.economy.plan.events import Training, train
from spotmpi.economy.plan.outcomes import Campaign
from spotmpi.economy.quantities import HOUR, dollars, time_text
from spotmpi.errors import UsageError
from spotmpi.trace.colours import BLUE, GREY, INK, ORANGE

__all__ = ["check", "draw"]

_STYLES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-"},
    {"color": ORANGE, "linestyle": "--"},
)
_BINS = 40


def check(path: Path) -> None:
    """UsageError if no plot can be drawn into a file of this name. Local, blocking."""
    if path.is_dir():
        raise UsageError(f"--plot {path} is a folder; name a file in it")
    if path.suffix.lower().removeprefix(".") not in FigureCanvasBase.filetypes:
        raise UsageError(f"--plot {path}: expected a name that ends in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--plot {path} cannot be written; choose another file")


def draw(
    campaigns: Sequence[Campaign], training: Training, seed: int, title: str, path: Path
) -> None:
    """Draw two campaigns through the same fates. The format follows from the file's suffix.

    Local, blocking, about a second. UsageError if the file cannot be written.
    """
    figure = Figure(figsize=(10, 8), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    rows: Any = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    left, right = rows[0].subplots(1, 2)
    unit, name = _unit(campaigns)
    _spread(left, campaigns, [one.seconds / unit for one in campaigns], f"time, {name}")
    _spread(right, campaigns, [one.dollars for one in campaigns], "cost, dollars")
    _one_run(rows[1], campaigns, training, seed, unit, name)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError(f"the plot {path} cannot be written: {error}") from error


def _unit(campaigns: Sequence[Campaign]) -> tuple[float, str]:
    longest = max((float(one.seconds.max()) for one in campaigns if len(one.seconds)), default=0.0)
    return (HOUR, "hours") if longest > 2 * HOUR else (60.0, "minutes")


def _spread(
    axes: Axes, campaigns: Sequence[Campaign], samples: Sequence[NDArray[np.float64]], label: str
) -> None:
    """Histograms over the same bins, with the median of each. Counts are logarithmic: the many
    runs without a loss would hide all others."""
    every = np.concatenate(samples)
    axes.set_xlabel(label)
    axes.set_ylabel("runs (logarithmic)")
    _bare(axes)
    if not len(every):
        axes.text(0.5, 0.5, "no run ended", transform=axes.transAxes, ha="center", color=INK)
        return
    # What is beyond the 99.5th percentile would press all else together: it is in the last bin.
    low, high = float(every.min()), float(np.quantile(every, 0.995))
    bins = np.linspace(low, max(high, low * 1.01), _BINS + 1)
    for one, sample, style in zip(campaigns, samples, _STYLES, strict=True):
        if len(sample):
            kind: Any = "stepfilled" if style is _STYLES[0] else "step"
            missing = "" if len(sample) == len(one.outcomes) else ", of those that ended"
            name = f"{one.runtime.name}, median {np.median(sample):.3g}{missing}"
            shown = np.clip(sample, bins[0], bins[-1])
            axes.hist(shown, bins.tolist(), histtype=kind, alpha=0.7, label=name, **style)
            axes.axvline(float(np.median(sample)), linewidth=1, **style)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)
    axes.legend(frameon=False, fontsize=9)


def _one_run(
    part: Any, campaigns: Sequence[Campaign], training: Training, seed: int, unit: float, name: str
) -> None:
    """A bad run, as each runtime lived through it: that at the 95th percentile of the first."""
    order = np.argsort([one.seconds for one in campaigns[0].outcomes], kind="stable")
    run = int(order[int(0.95 * (len(order) - 1))])
    workers, done = part.subplots(2, 1, sharex=True)
    for one, style in zip(campaigns, _STYLES, strict=True):
        chance = np.random.default_rng([seed, run])
        outcome = train(training, one.runtime, chance, timeline=True)
        at = [moment.at_s / unit for moment in outcome.timeline]
        ended = math.isfinite(outcome.seconds)
        end = time_text(outcome.seconds) if ended else "never ended"
        said = f"{one.runtime.name}: {end}, {dollars(outcome.dollars)}"
        workers.step(at, [m.workers for m in outcome.timeline], where="post", lw=1.5, **style)
        done.plot(at, [100 * m.done for m in outcome.timeline], lw=1.5, label=said, **style)
    workers.set_title(
        f"run {run}: slower than 95 % of the runs with {campaigns[0].runtime.name}",
        fontsize=10,
        loc="left",
    )
    workers.set_ylabel("workers")
    workers.set_ylim(bottom=0)
    workers.yaxis.set_major_locator(MaxNLocator(integer=True))
    done.set_ylabel("done, %")
    done.set_ylim(-3, 103)
    done.set_xlabel(f"time, {name}")
    done.legend(frameon=False, fontsize=9, loc="lower right")
    for axes in (workers, done):
        _bare(axes)


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color=GREY, alpha=0.25)
