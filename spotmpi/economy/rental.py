"""A cluster at the prices of a market: what `events` can live through."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spotmpi.economy.availability import Availability
from spotmpi.economy.events import Counts, Plan, Runtime, Staff
from spotmpi.economy.lifetimes import Lifetime, Never
from spotmpi.economy.models import Model
from spotmpi.economy.prices import Market, Prices
from spotmpi.economy.profiles import Server
from spotmpi.economy.quantities import HOUR, Cluster, duration, time_text
from spotmpi.errors import UsageError

__all__ = ["RESTART", "SPOTMPI", "Terms", "fates", "rent", "replacement", "undisturbed_s"]

_PATIENCE = 20
"""A training that takes so many times as long as without a loss, or as the trace, is given up."""

SPOTMPI = Runtime(
    name="spotmpi",
    loss_s=0.1,
    join_s=0.05,
    leaves=True,
    rolls_back=False,
    restart_s=120.0,
    checkpoint_every_s=600.0,
    checkpoint_s=5.0,
)
"""Survivors go on: some 50 to 150 ms for a loss with 8 to 16 workers and 5 to 65 ms for a newcomer,
as ``spotmpi bench recovery`` and ``bench join`` measured them on two cores."""

RESTART = Runtime(
    name="restart",
    loss_s=120.0,
    join_s=125.0,
    leaves=False,
    rolls_back=True,
    restart_s=120.0,
    checkpoint_every_s=600.0,
    checkpoint_s=5.0,
)
"""All processes start again from the last checkpoint, at every loss. Before they do so for a
newcomer they write one: hence its time in ``join_s``."""


@dataclass(frozen=True)
class Terms:
    """What is rented, and what is taken from elsewhere than the price list (None: from there)."""

    market: Market = "spot"
    lifetime: Lifetime | None = None
    notice_s: float | None = None
    replacement_s: float | None = None
    availability: Availability | None = None
    server_market: Market = "on-demand"


def rent(
    model: Model,
    iterations: Callable[[Cluster], float],
    prices: Prices,
    cluster: Cluster,
    server: Server | None,
    terms: Terms,
) -> Plan:
    """The plan of a training on this cluster. UsageError for what has no price or is not known."""
    names = list(cluster)

    def speed(counts: Counts) -> float:
        there = {name: count for name, count in zip(names, counts, strict=True) if count}
        try:
            return model.rate(there) / max(iterations(there), 1e-9)
        except UsageError:  # it holds for the whole cluster (below), not for what is left of it
            return 0.0

    staff = [_staff(prices, name, cluster[name], terms.market, terms) for name in names]
    servers = None
    if server is not None:
        beside = Terms(market=terms.server_market)
        servers = _staff(prices, server.instance, server.count, terms.server_market, beside)
    patience = max(undisturbed_s(model, iterations, cluster), HOUR)
    if terms.availability is not None:
        patience = max(patience, terms.availability.length_s)
    return Plan(
        staff, speed, prices.billing, servers, terms.availability, give_up_s=_PATIENCE * patience
    )


def undisturbed_s(model: Model, iterations: Callable[[Cluster], float], cluster: Cluster) -> float:
    """Seconds of the training if nobody is lost and no checkpoint is written."""
    return iterations(cluster) / model.rate(cluster)


def replacement(text: str | None) -> float | None:
    """What a command line says of the time until another node trains; infinite: ``never``."""
    if text is None:
        return None
    return math.inf if text == "never" else duration(text, "--replacement")


def fates(prices: Prices, names: Iterable[str], terms: Terms) -> list[str]:
    """A sentence for each type: how long one has it, and what comes after it."""
    lines = []
    for name in names:
        offer = prices.offer(name)
        life = terms.lifetime or offer.lifetime
        start = offer.start_s if terms.replacement_s is None else terms.replacement_s
        notice = offer.notice_s if terms.notice_s is None else terms.notice_s
        if isinstance(life, Never):
            lines.append(f"{name}: {life.text}")
            continue
        if life is None:
            lines.append(f"{name}: nobody knows its lifetime, so it is never revoked (--lifetime)")
            continue
        told = f"told {time_text(notice)} before" if notice else "not told before"
        if start is None:
            after = "not replaced, as nobody knows how soon (--replacement)"
        else:
            after = f"replaced after {time_text(start)}" if math.isfinite(start) else "not replaced"
        lines.append(f"{name}: {life.text}; {told}, {after}")
    return lines


def _staff(prices: Prices, name: str, count: int, market: Market, terms: Terms) -> Staff:
    offer = prices.offer(name)
    spot = market == "spot"
    lifetime = terms.lifetime if terms.lifetime is not None else offer.lifetime
    notice = terms.notice_s if terms.notice_s is not None else offer.notice_s
    start = terms.replacement_s if terms.replacement_s is not None else offer.start_s
    if start is None or not spot:  # nobody knows when another one comes: none is counted on
        start = math.inf
    return Staff(
        name=name,
        wanted=count,
        dollars_per_hour=offer.price(market),
        lifetime=lifetime if spot and lifetime is not None else Never(),
        notice_s=notice if spot else 0.0,
        replacement_s=start,
    )
