"""Which host of a job is a node of which type, and what it has cost so far. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spotmpi.economy.market.prices import Prices, cost
from spotmpi.economy.plan.rental import Terms
from spotmpi.economy.quantities import Cluster
from spotmpi.errors import UsageError

__all__ = ["Node", "Nodes", "Stay"]


@dataclass(frozen=True)
class Node:
    """What is rented."""

    instance: str
    on_demand: bool = False


@dataclass
class Stay:
    """A host that trains, on the training's own clock."""

    host: str
    since_s: float
    until_s: float = math.inf
    """Infinite: it is there."""


class Nodes:
    """The types of a job's hosts: as they are told, as they were asked for, or the only one."""

    def __init__(self, told: Mapping[str, Node], types: Sequence[str]) -> None:
        self._told = dict(told)
        self._types = types
        self._expected: list[Node] = []
        """Of hosts that were asked for, and whose names nobody has told."""

    def expect(self, node: Node, names: Sequence[str], count: int) -> None:
        """So many were asked for; ``names`` are those that are known."""
        self._told.update(dict.fromkeys(names, node))
        self._expected += [node] * (count - len(names))

    def of(self, host: str) -> Node:
        """What a host is. UsageError if nobody can know."""
        if host not in self._told:
            if self._expected:
                self._told[host] = self._expected.pop(0)
            elif len(self._types) == 1:
                self._told[host] = Node(self._types[0])
            else:
                raise UsageError(
                    f"nobody knows of which type host {host} is, {' or '.join(self._types)}; write "
                    f'it into the plan: hosts: {{"{host}": "{self._types[0]}"}}'
                )
        return self._told[host]

    def cluster(self, hosts: Iterable[str], *, on_demand: bool = False) -> Cluster:
        """How many of each type these hosts are; or only those on demand."""
        nodes = map(self.of, hosts)
        return dict(Counter(one.instance for one in nodes if one.on_demand or not on_demand))

    def spent(self, stays: Iterable[Stay], now_s: float, prices: Prices, terms: Terms) -> float:
        """Dollars so far, the boot of each host among them."""
        total = 0.0
        for stay in stays:
            node = self.of(stay.host)
            offer = prices.offer(node.instance)
            seconds = min(stay.until_s, now_s) - stay.since_s + (terms.of(offer).boot_s or 0.0)
            hourly = offer.price("on-demand" if node.on_demand else "spot")
            total += cost(seconds, hourly, prices.billing)
        return total
