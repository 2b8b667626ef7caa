"""A cluster at the prices of a market: what `events` can live through."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from spotmpi.economy.market.availability import Availability
from spotmpi.economy.market.lifetimes import Lifetime, Never
from spotmpi.economy.market.prices import Market, Offer, Prices, cost
from spotmpi.economy.models import Model, Server
from spotmpi.economy.plan.events import Counts, Runtime, Staff, Training
from spotmpi.economy.quantities import HOUR, Cluster, duration, percent, time_text
from spotmpi.errors import UsageError

__all__ = [
    "CHECKPOINT_EVERY_S",
    "CHECKPOINT_S",
    "Fate",
    "RECOVERY_S",
    "RESTART_S",
    "Terms",
    "boot_s",
    "fates",
    "hourly",
    "on_demand",
    "rent",
    "replacement",
    "restarting",
    "spotmpi",
]

_PATIENCE = 20
"""A training that takes so many times as long as without a loss, or as the trace, is given up."""

RECOVERY_S = 0.1
JOIN_S = 0.05
"""Of a loss with 8 to 16 workers: some 50 to 150 ms. Of a newcomer: 5 to 65 ms. As ``spotmpi bench
recovery`` and ``bench join`` measured them on two cores."""
RESTART_S = 120.0
CHECKPOINT_EVERY_S = 600.0
CHECKPOINT_S = 5.0


def spotmpi(
    recovery_s: float = RECOVERY_S,
    restart_s: float = RESTART_S,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    checkpoint_s: float = CHECKPOINT_S,
) -> Runtime:
    """Survivors go on; a restart is needed only where nobody is left."""
    return Runtime(
        name="spotmpi",
        loss_s=recovery_s,
        join_s=JOIN_S,
        leaves=True,
        rolls_back=False,
        restart_s=restart_s,
        checkpoint_every_s=checkpoint_every_s,
        checkpoint_s=checkpoint_s,
    )


def restarting(
    restart_s: float = RESTART_S,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    checkpoint_s: float = CHECKPOINT_S,
) -> Runtime:
    """All processes start again from the last checkpoint, at every loss. Before they do so for a
    newcomer they write one."""
    return Runtime(
        name="restart",
        loss_s=restart_s,
        join_s=checkpoint_s + restart_s,
        leaves=False,
        rolls_back=True,
        restart_s=restart_s,
        checkpoint_every_s=checkpoint_every_s,
        checkpoint_s=checkpoint_s,
    )


class Fate(NamedTuple):
    """Of one type, by the terms or else by the price list; None: nobody knows."""

    lifetime: Lifetime | None
    notice_s: float
    start_s: float | None
    boot_s: float | None
    """The part of it that is billed; also what a training waits for at its beginning."""


@dataclass(frozen=True)
class Terms:
    """What is rented, and what is taken from elsewhere than the price list (None: from there)."""

    market: Market = "spot"
    lifetime: Lifetime | None = None
    notice_s: float | None = None
    replacement_s: float | None = None
    availability: Availability | None = None
    server_market: Market = "on-demand"
    boot_s: float | None = None
    together: float = 0.0
    """As `events.Training` has it."""
    zone: float = 0.0
    """As `events.Training` has it."""
    guessed_lifetime: Lifetime | None = None
    """Of types whose lifetime nobody knows."""

    def of(self, offer: Offer) -> Fate:
        """What becomes of a spot node of this type."""
        return Fate(
            self.lifetime or offer.lifetime or self.guessed_lifetime,
            offer.notice_s if self.notice_s is None else self.notice_s,
            offer.start_s if self.replacement_s is None else self.replacement_s,
            self._boot_s(offer),
        )

    def _boot_s(self, offer: Offer) -> float | None:
        known = offer.start_s if offer.boot_s is None else offer.boot_s
        return known if self.boot_s is None else self.boot_s


def rent(
    model: Model,
    iterations: Callable[[Cluster], float],
    prices: Prices,
    cluster: Cluster,
    server: Server | None,
    terms: Terms,
) -> Training:
    """The training on this cluster. UsageError for what has no price or is not known."""
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
    startup_s = boot_s(prices, names, terms)
    patience = max(startup_s + iterations(cluster) / model.rate(cluster), HOUR)
    if terms.availability is not None:
        patience = max(patience, terms.availability.length_s)
    return Training(
        staff,
        speed,
        prices.billing,
        servers,
        terms.availability,
        together=terms.together,
        zone=terms.zone,
        ready_s=startup_s,
        give_up_s=_PATIENCE * patience,
    )


def boot_s(prices: Prices, names: Iterable[str], terms: Terms) -> float:
    """Seconds from when such nodes are billed until all of them train; of those of which nobody
    knows, 0."""
    boots = [terms.of(prices.offer(name)).boot_s for name in names]
    return max((boot for boot in boots if boot is not None and math.isfinite(boot)), default=0.0)


def hourly(
    prices: Prices,
    cluster: Cluster,
    market: Market,
    server: Server | None,
    server_market: Market = "on-demand",
) -> float:
    """Dollars per hour of a cluster and its server. UsageError for what has no price."""
    dollars = sum(prices.offer(name).price(market) * count for name, count in cluster.items())
    if server is None:
        return dollars
    return dollars + server.count * prices.offer(server.instance).price(server_market)


def on_demand(
    prices: Prices, cluster: Cluster, server: Server | None, seconds: float
) -> float | None:
    """Dollars of so long on demand; None where the list has no such price of one of the types."""
    try:
        return cost(seconds, hourly(prices, cluster, "on-demand", server), prices.billing)
    except UsageError:
        return None


def replacement(text: str | None) -> float | None:
    """What a command line says of the time until another node trains; infinite: ``never``."""
    if text is None:
        return None
    return math.inf if text == "never" else duration(text, "--replacement")


def fates(prices: Prices, names: Iterable[str], terms: Terms) -> list[str]:
    """A sentence for each type: how long one has it, and what comes after it."""
    lines = []
    if prices.study is not None:
        lines.append(f"lifetimes of the study {prices.study!r}: {prices.studies[prices.study]}")
    for name in names:
        life, notice, start, boot = terms.of(prices.offer(name))
        first = (
            f"{name}: trains {time_text(boot)} after its creation, which are paid"
            if boot is not None
            else f"{name}: nobody knows how long it boots, so it trains at once (--boot)"
        )
        if isinstance(life, Never):
            lines.append(f"{first}; {life.text}")
            continue
        if life is None:
            lines.append(f"{first}; nobody knows its lifetime; never revoked below (--lifetime)")
            continue
        told = f"told {time_text(notice)} before" if notice else "not told before"
        if start is None:
            after = "not replaced, as nobody knows how soon (--replacement)"
        else:
            after = f"replaced after {time_text(start)}" if math.isfinite(start) else "not replaced"
        lines.append(f"{first}; {life.text}; {told}, {after}")
    if terms.together:
        lines.append(
            f"nodes of a type go together: each with probability {percent(terms.together)} as one "
            "of those that go at once"
        )
    if terms.zone:
        lines.append(
            f"nodes of all types go together: each with probability {percent(terms.zone)} as one "
            "of those of the zone that go at once"
        )
    return lines


def _staff(prices: Prices, name: str, count: int, market: Market, terms: Terms) -> Staff:
    offer = prices.offer(name)
    spot = market == "spot"
    lifetime, notice, start, boot = terms.of(offer)
    if start is None or not spot:  # nobody knows when another one comes: none is counted on
        start = math.inf
    return Staff(
        name=name,
        wanted=count,
        dollars_per_hour=offer.price(market),
        lifetime=lifetime if spot and lifetime is not None else Never(),
        notice_s=notice if spot else 0.0,
        replacement_s=start,
        boot_s=boot or 0.0,
    )
