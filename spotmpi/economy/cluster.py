"""``spotmpi simulate cluster``: what a training on nodes that vanish takes, and what it costs."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotmpi.economy import availability, lifetimes, prices, profiles
from spotmpi.economy.events import Runtime
from spotmpi.economy.outcomes import Campaign, Estimate, campaign, estimate, quantile
from spotmpi.economy.prices import Prices
from spotmpi.economy.profiles import Profile
from spotmpi.economy.quantities import (
    Cluster,
    cluster,
    count_text,
    dollars,
    duration,
    percent,
    time_text,
)
from spotmpi.economy.rental import (
    RESTART,
    SPOTMPI,
    Terms,
    fates,
    rent,
    replacement,
    undisturbed_s,
)
from spotmpi.errors import UsageError

__all__ = ["add_arguments", "main"]

_PROGRESS_SECONDS = 0.5
_MOST = 1_000_000
"""Workers; each is a number or two in memory, in every run."""

Sample = NDArray[np.float64]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Live through many trainings on a cluster of spot nodes, from revocation to revocation, "
        "and say how long they took and what they cost: with spotmpi, and beside it with a system "
        "that restarts from its last checkpoint, through the same fates. Without --profile and "
        "--prices it is the ResNet-32 of Li et al. (ICAC 2019) on K80, P100 and V100."
    )
    parser.epilog = (
        "lifetimes: never, exponential:10h, weibull:10h,0.8, bathtub:..., sample:FILE\n"
        "traces: CSV of ms,add|remove,node or of ms,count, or JSON with metadata.gap_seconds\n\n"
        "example: spotmpi simulate cluster --cluster K80:4 --runs 1000 --plot k80.png"
    )
    add = parser.add_argument
    add("--cluster", required=True, metavar="TYPE:N,...", help="what is rented, as K80:4,V100:1")
    add("--profile", metavar="FILE", help="the training, as `spotmpi profile` writes it")
    add("--prices", metavar="FILE", help="prices and lifetimes (YAML or CSV)")
    add("--loss", type=float, metavar="L", help="train to this loss, if the profile has a model")
    add("--iterations", type=float, metavar="J", help="train for so many iterations of a worker")
    fate = parser.add_mutually_exclusive_group()
    fate.add_argument(
        "--lifetime", metavar="L", help="of every worker, instead of the price list's"
    )
    fate.add_argument("--trace", type=Path, metavar="FILE", help="how many nodes there were, when")
    add("--notice", metavar="D", help="how long before it a revocation is announced, as 30s")
    add("--replacement", metavar="D", help="until another node trains; or never (price list)")
    add("--on-demand", action="store_true", help="workers that are not revoked, at their price")
    add("--spot-server", action="store_true", help="parameter servers that are revoked as well")
    add("--recovery", metavar="D", help=f"spotmpi, a loss: {time_text(SPOTMPI.loss_s)}")
    add("--restart", metavar="D", help=f"from a checkpoint: {time_text(RESTART.restart_s)}")
    add("--checkpoint-every", metavar="D", help=time_text(SPOTMPI.checkpoint_every_s))
    add("--checkpoint-time", metavar="D", help=f"to write one: {time_text(SPOTMPI.checkpoint_s)}")
    add("--runs", type=int, default=1000, metavar="N", help="default: 1000")
    add("--seed", type=int, default=0, metavar="S", help="default: 0")
    add("--plot", type=Path, metavar="PNG", help="histograms, and a run with its workers")
    add("--json", action="store_true", help="all figures, as JSON")


@dataclass(frozen=True)
class _Setting:
    """What is simulated."""

    cluster: Cluster
    profile: Profile
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
    for name, least in (("runs", 1), ("seed", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} is {getattr(options, name)}, expected at least {least}")
    setting = _setting(options)
    if options.plot is not None:
        _drawable(options.plot)
    plan = rent(
        setting.profile.model,
        setting.iterations,
        setting.prices,
        setting.cluster,
        setting.profile.server,
        setting.terms,
    )
    tell = _Progress(2 * options.runs)
    campaigns = [
        campaign(plan, runtime, options.runs, options.seed, tell.one)
        for runtime in setting.runtimes
    ]
    tell.end()
    if options.plot is not None:
        from spotmpi.economy import drawing

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
    from spotmpi.economy import drawing  # matplotlib takes a second to import

    drawing.check(path)


def _setting(options: argparse.Namespace) -> _Setting:
    if (options.profile is None) != (options.prices is None):
        there, missing = ("profile", "prices") if options.prices is None else ("prices", "profile")
        raise UsageError(f"--{there} needs --{missing}: the training and what its nodes cost")
    wanted = cluster(options.cluster, "--cluster")
    if (workers := sum(wanted.values())) > _MOST:
        raise UsageError(f"--cluster has {workers:,} workers, expected at most {_MOST:,}")
    if options.trace is not None and (options.notice or options.replacement):
        raise UsageError(
            "--trace says when nodes come and go: leave out --notice and --replacement"
        )
    profile = profiles.find(options.profile or "icac19")
    list_ = prices.find(options.prices or "icac19")
    iterations, work = profiles.work(profile, options.loss, options.iterations)
    terms = Terms(
        market="on-demand" if options.on_demand else "spot",
        lifetime=None
        if options.lifetime is None
        else lifetimes.parse(options.lifetime, "--lifetime"),
        notice_s=_duration(options.notice, "--notice"),
        replacement_s=replacement(options.replacement),
        availability=None if options.trace is None else availability.read(options.trace),
        server_market="spot" if options.spot_server else "on-demand",
    )
    if options.on_demand and (options.trace or options.lifetime):
        raise UsageError("--on-demand nodes are not revoked: leave out --lifetime and --trace")
    if options.trace is not None and len(wanted) > 1:
        raise UsageError(
            f"--trace says how many nodes there are, not of which type, and --cluster has "
            f"{len(wanted)} types; name one"
        )
    seconds = undisturbed_s(profile.model, iterations, wanted)
    hourly = _hourly(list_, wanted, profile, terms, terms.market)
    try:
        on_demand = prices.cost(
            seconds, _hourly(list_, wanted, profile, terms, "on-demand"), list_.billing
        )
    except UsageError:  # the list has no price for it
        on_demand = None
    return _Setting(
        wanted,
        profile,
        list_,
        iterations,
        work,
        terms,
        (_runtime(SPOTMPI, options), _runtime(RESTART, options)),
        seconds,
        prices.cost(seconds, hourly, list_.billing),
        on_demand,
    )


def _duration(text: str | None, what: str) -> float | None:
    return None if text is None else duration(text, what)


def _runtime(runtime: Runtime, options: argparse.Namespace) -> Runtime:
    """The same one with what the command line says of it."""
    given = {
        "restart_s": _duration(options.restart, "--restart"),
        "checkpoint_every_s": _duration(options.checkpoint_every, "--checkpoint-every"),
        "checkpoint_s": _duration(options.checkpoint_time, "--checkpoint-time"),
        "loss_s": None if runtime.rolls_back else _duration(options.recovery, "--recovery"),
    }
    if given["checkpoint_every_s"] == 0:
        raise UsageError("--checkpoint-every is 0, expected more")
    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    runtime = replace(runtime, **changed)
    if runtime.rolls_back:  # it starts again for a newcomer as well, after a checkpoint
        again = runtime.restart_s
        runtime = replace(runtime, loss_s=again, join_s=again + runtime.checkpoint_s)
    return runtime


def _hourly(
    list_: Prices, wanted: Cluster, profile: Profile, terms: Terms, market: prices.Market
) -> float:
    """Dollars per hour of a whole cluster with its servers."""
    workers = sum(list_.offer(name).price(market) * count for name, count in wanted.items())
    if profile.server is None:
        return workers
    server = list_.offer(profile.server.instance).price(
        terms.server_market if market == terms.market else "on-demand"
    )
    return workers + profile.server.count * server


def _title(setting: _Setting) -> str:
    return f"{setting.profile.model.name}, {setting.work}, on {count_text(setting.cluster)}"


def _opening(setting: _Setting, options: argparse.Namespace) -> list[str]:
    """What is assumed, before what follows from it."""
    error = setting.profile.model.error
    bound = (
        f"+- {percent(error)} (the profile's error)"
        if error is not None
        else "(the profile does not say how far off that may be)"
    )
    on_demand = setting.on_demand_dollars
    beside = "" if on_demand is None else f"; on demand {dollars(on_demand)}"
    return [
        _title(setting),
        f"prices of {setting.prices.as_of}, {setting.terms.market}: {setting.prices.source}",
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
    return fates(setting.prices, setting.cluster, setting.terms)


def _table(campaigns: list[Campaign]) -> list[str]:
    """A column for each runtime."""
    rows = [["", "", *(one.runtime.name for one in campaigns)]]
    for name, sample, text in (
        ("time", [one.seconds for one in campaigns], time_text),
        ("cost", [one.dollars for one in campaigns], dollars),
    ):
        columns = [_column(one, text) for one in sample]
        for i, figure in enumerate(("mean", "p50", "p95")):
            rows.append([name if i == 0 else "", figure, *(column[i] for column in columns)])
    rows.append(["ended", "", *(percent(one.ended.value, 1) for one in campaigns)])
    rows.append(["lost", "workers", *(f"{one.losses:.2f}" for one in campaigns)])
    rows.append(["done again", "", *(percent(one.undone, 1) for one in campaigns)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if any(0 < one.ended.value < 1 for one in campaigns):
        lines += ["", "times and costs are those of the runs that ended; the others were given up"]
    return lines


def _column(sample: Sample, text: Callable[[float], str]) -> list[str]:
    if not len(sample):
        return ["no run ended", "-", "-"]
    return [_shown(figure, text) for figure in _figures(sample)]


def _figures(sample: Sample) -> tuple[Estimate, Estimate, Estimate]:
    return estimate(sample), quantile(sample, 0.5), quantile(sample, 0.95)


def _shown(figure: Estimate, text: Callable[[float], str]) -> str:
    def end(value: float) -> str:
        return text(value) if math.isfinite(value) else "?"

    return f"{text(figure.value)} ({end(figure.low)} .. {end(figure.high)})"


def _json(
    setting: _Setting, campaigns: list[Campaign], options: argparse.Namespace
) -> dict[str, Any]:
    def plain(figure: Any) -> dict[str, float | None]:
        return {key: value if math.isfinite(value) else None for key, value in vars(figure).items()}

    def sums(sample: Sample) -> dict[str, Any] | None:
        if not len(sample):
            return None
        mean, p50, p95 = _figures(sample)
        return {"mean": plain(mean), "p50": plain(p50), "p95": plain(p95)}

    return {
        "training": setting.profile.model.name,
        "work": setting.work,
        "cluster": dict(setting.cluster),
        "market": setting.terms.market,
        "prices": {"as_of": setting.prices.as_of, "source": setting.prices.source},
        "model_error": setting.profile.model.error,
        "undisturbed": {
            "seconds": setting.undisturbed_s,
            "dollars": setting.undisturbed_dollars,
            "on_demand_dollars": setting.on_demand_dollars,
        },
        "runs": options.runs,
        "seed": options.seed,
        "runtimes": {
            one.runtime.name: {
                "seconds": sums(one.seconds),
                "dollars": sums(one.dollars),
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
