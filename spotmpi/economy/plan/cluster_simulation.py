"""``spotmpi simulate cluster``: what a training on nodes that vanish takes, and what it costs."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotmpi.economy.market import prices
from spotmpi.economy.market.prices import Prices
from spotmpi.economy.models import Model, profiles
from spotmpi.economy.plan import conditions, rental
from spotmpi.economy.plan.events import Runtime
from spotmpi.economy.plan.outcomes import Campaign, Estimate, campaign, estimate
from spotmpi.economy.plan.rental import Terms
from spotmpi.economy.plan.screen import columns, plain
from spotmpi.economy.quantities import (
    Cluster,
    cluster,
    count_text,
    dollars,
    percent,
    time_text,
)
from spotmpi.errors import UsageError
from spotmpi.options import at_least

__all__ = ["add_arguments", "main"]

_PROGRESS_SECONDS = 0.5
_MOST = 1_000_000
"""Workers; each is a number or two in memory, in every run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Simulate many trainings on a cluster of spot nodes, and say how long they took and what "
        "they cost. Each is simulated with spotmpi, and with a system that restarts from its last "
        "checkpoint; both lose the same nodes at the same times. Without --profile and --prices it "
        "is the ResNet-32 of Li et al. (ICAC 2019) on K80, P100 and V100."
    )
    parser.epilog = (
        "lifetimes: never, exponential:10h, weibull:10h,0.8, bathtub:..., sample:FILE\n"
        "traces: CSV of ms,add|remove,node or of ms,count, or JSON with metadata.gap_seconds\n\n"
        "example: spotmpi simulate cluster --cluster K80:4 --study trained --plot k80.png"
    )
    add = parser.add_argument
    add("--cluster", required=True, metavar="TYPE:N,...", help="what is rented, as K80:4,V100:1")
    add("--profile", metavar="FILE", help="the training, as `spotmpi profile` writes it")
    add("--prices", metavar="FILE", help="prices and lifetimes (YAML or CSV)")
    add("--loss", type=float, metavar="L", help="train to this loss, if the profile has a model")
    add("--iterations", type=float, metavar="J", help="train for so many iterations of a worker")
    conditions.add_arguments(parser)
    add("--on-demand", action="store_true", help="workers that are not revoked, at their price")
    add("--spot-server", action="store_true", help="parameter servers that are revoked as well")
    add("--runs", type=int, default=1000, metavar="N", help="trainings to simulate (1000)")
    add("--seed", type=int, default=0, metavar="S", help="seed of what happens by chance (0)")
    add("--plot", type=Path, metavar="PNG", help="draw histograms, and one run with its workers")
    add("--json", action="store_true", help="print all figures as JSON")


@dataclass(frozen=True)
class _Setting:
    """What is simulated."""

    cluster: Cluster
    model: Model
    prices: Prices
    iterations: Callable[[Cluster], float]
    work: str
    terms: Terms
    runtimes: tuple[Runtime, Runtime]
    undisturbed_s: float
    undisturbed_dollars: float
    on_demand_dollars: float | None


def main(options: argparse.Namespace) -> int:
    """Run the simulation and print what it came to. Blocking, seconds."""
    setting = _setting(options)
    plan = rental.rent(
        setting.model,
        setting.iterations,
        setting.prices,
        setting.cluster,
        setting.model.server,
        setting.terms,
    )
    tell = _Progress(2 * options.runs)
    campaigns = [
        campaign(plan, runtime, options.runs, options.seed, tell.one)
        for runtime in setting.runtimes
    ]
    tell.end()
    if options.plot is not None:
        from spotmpi.economy.plan import drawing

        drawing.draw(campaigns, plan, options.seed, _title(setting), options.plot)
    if options.json:
        print(json.dumps(_json(setting, campaigns, options), indent=2))
    else:
        print("\n".join([*_opening(setting, options), "", *_table(campaigns)]))
        if options.plot is not None:
            print(f"\ndrawn: {options.plot}")
    return 0


def _drawable(path: Path) -> None:
    """Complain before the runs, rather than after them, of a plot that cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: python -m pip install matplotlib")
    from spotmpi.economy.plan import drawing  # matplotlib takes a second to import

    drawing.check(path)


def _setting(options: argparse.Namespace) -> _Setting:
    wanted = cluster(options.cluster, "--cluster")
    _check(options, wanted)
    terms = conditions.terms(
        options,
        wanted,
        "--cluster",
        market="on-demand" if options.on_demand else "spot",
        server_market="spot" if options.spot_server else "on-demand",
    )
    both = conditions.runtimes(options)
    model = profiles.find(options.profile or "icac19")
    list_ = prices.find(options.prices or "icac19")
    iterations, work = profiles.work(model, options.loss, options.iterations)
    list_ = conditions.offered(options, list_, () if options.on_demand else wanted)
    seconds = rental.boot_s(list_, wanted, terms) + iterations(wanted) / model.rate(wanted)
    hourly = rental.hourly(list_, wanted, terms.market, model.server, terms.server_market)
    return _Setting(
        wanted,
        model,
        list_,
        iterations,
        work,
        terms,
        (both.spotmpi, both.restarting),
        seconds,
        prices.cost(seconds, hourly, list_.billing),
        rental.on_demand(list_, wanted, model.server, seconds),
    )


def _check(options: argparse.Namespace, wanted: Cluster) -> None:
    """UsageError for what contradicts itself."""
    at_least(options, runs=1, seed=0)
    if (workers := sum(wanted.values())) > _MOST:
        raise UsageError(f"--cluster has {workers:,} workers, expected at most {_MOST:,}")
    if (options.profile is None) != (options.prices is None):
        there, missing = ("profile", "prices") if options.prices is None else ("prices", "profile")
        raise UsageError(f"--{there} needs --{missing}: the training and what its nodes cost")
    if options.plot is not None:
        _drawable(options.plot)


def _title(setting: _Setting) -> str:
    return f"{setting.model.name}, {setting.work}, on {count_text(setting.cluster)}"


def _opening(setting: _Setting, options: argparse.Namespace) -> list[str]:
    """What is assumed, before what follows from it."""
    error = setting.model.error
    bound = (
        f"+- {percent(error)} (the profile's error)"
        if error is not None
        else "(the profile does not say how far off that may be)"
    )
    on_demand = setting.on_demand_dollars
    beside = "" if on_demand is None else f"; on demand {dollars(on_demand)}"
    return [
        _title(setting),
        (
            f"prices of {setting.prices.as_of}{setting.prices.age}, {setting.terms.market}: "
            f"{setting.prices.source}"
        ),
        *_fates(setting),
        (
            f"undisturbed: {time_text(setting.undisturbed_s)} {bound}, "
            f"{dollars(setting.undisturbed_dollars)}{beside}"
        ),
        (
            f"{options.runs} run{'s' if options.runs > 1 else ''}, seed {options.seed}; in "
            "brackets the 95 % interval of chance"
        ),
    ]


def _fates(setting: _Setting) -> list[str]:
    if setting.terms.market == "on-demand":
        return []
    if (supply := setting.terms.availability) is not None:
        return [
            (
                f"nodes as in the trace: {supply.counts.min()} to {supply.counts.max()} over "
                f"{time_text(supply.length_s)}; each run begins somewhere in it"
            )
        ]
    return rental.fates(setting.prices, setting.cluster, setting.terms)


def _table(campaigns: list[Campaign]) -> list[str]:
    """A column for each runtime."""
    rows = [["", "", *(one.runtime.name for one in campaigns)]]
    for name, all_figures, text in (
        ("time", [_figures(one.seconds, one.seconds_below) for one in campaigns], time_text),
        ("cost", [_figures(one.dollars, one.dollars_below) for one in campaigns], dollars),
    ):
        for figure in ("mean", "p50", "p95"):
            shown = [_shown(figures[figure], text) for figures in all_figures]
            rows.append([name if figure == "mean" else "", figure, *shown])
    rows.append(["ended", "", *(percent(one.ended.value, 1) for one in campaigns)])
    rows.append(["lost", "workers", *(f"{one.losses:.2f}" for one in campaigns)])
    rows.append(["done again", "", *(percent(one.undone, 1) for one in campaigns)])
    lines = columns(rows)
    if any(0 < one.ended.value < 1 for one in campaigns):
        lines += ["", "the means are those of the runs that ended; the others were given up"]
    return lines


def _figures(
    ended: NDArray[np.float64], below: Callable[[float], Estimate | None]
) -> dict[str, Estimate | None]:
    """The mean of the runs that ended, and quantiles of all; None: too few ended."""
    mean = estimate(ended) if len(ended) else None
    return {"mean": mean, "p50": below(0.5), "p95": below(0.95)}


def _shown(figure: Estimate | None, text: Callable[[float], str]) -> str:
    if figure is None:
        return "never ends"

    def end(value: float) -> str:
        return text(value) if math.isfinite(value) else "?"

    return f"{text(figure.value)} ({end(figure.low)} .. {end(figure.high)})"


def _json(
    setting: _Setting, campaigns: list[Campaign], options: argparse.Namespace
) -> dict[str, Any]:
    def sums(figures: dict[str, Estimate | None]) -> dict[str, Any]:
        return {name: plain(figure) for name, figure in figures.items()}

    return {
        "training": setting.model.name,
        "work": setting.work,
        "cluster": dict(setting.cluster),
        "market": setting.terms.market,
        "prices": {"as_of": setting.prices.as_of, "source": setting.prices.source},
        "model_error": setting.model.error,
        "undisturbed": {
            "seconds": setting.undisturbed_s,
            "dollars": setting.undisturbed_dollars,
            "on_demand_dollars": setting.on_demand_dollars,
        },
        "runs": options.runs,
        "seed": options.seed,
        "runtimes": {
            one.runtime.name: {
                "seconds": sums(_figures(one.seconds, one.seconds_below)),
                "dollars": sums(_figures(one.dollars, one.dollars_below)),
                "ended": plain(one.ended),
                "losses": one.losses,
                "undone": one.undone,
            }
            for one in campaigns
        },
    }


class _Progress:
    """Says on standard error how far it is, if somebody watches."""

    def __init__(self, runs: int) -> None:
        self._runs, self._done = runs, 0
        self._watched = sys.stderr.isatty()
        self._shown = time.monotonic()

    def one(self, _: int) -> None:
        """One more run is through."""
        self._done += 1
        if self._watched and time.monotonic() - self._shown > _PROGRESS_SECONDS:
            self._shown = time.monotonic()
            print(f"\r{self._done} of {self._runs} runs", end="", file=sys.stderr)

    def end(self) -> None:
        """All are through."""
        if self._watched:
            print("\r\033[K", end="", file=sys.stderr)
