"""What the clocks of hosts showed at one and the same moment, from the rounds that all were in.

Nobody can complete a round before all have come to it. So for a worker of one host and one of
another, the moment at which the first had completed a round comes after that at which the second
came to it, and the other way round. Each round bounds from both sides by how much the clock of one
host is ahead of the other's; the tightest bounds of all rounds are an interval that the truth lies
in, and half of it is the error. (Clocks that run at different speeds may leave none: then the error
is by how much the bounds contradict each other.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spotmpi.trace.records import Record

__all__ = ["Clock", "aligned", "hosts_of"]

Passage = tuple[float, float]
"""When a worker came to a round, and when it had completed it, on its host's clock."""


@dataclass(frozen=True)
class Clock:
    """One host's."""

    ahead: float
    """Seconds, of that of the first host."""
    error: float | None
    """Seconds by which that may be wrong; None: nothing is known of this host's."""


def aligned(
    rounds: Iterable[Mapping[int, Passage]], hosts: Mapping[int, str], first: str
) -> dict[str, Clock]:
    """The clock of each host in ``hosts`` (of workers), against that of the ``first``; each round
    has the passages of the workers that were in it."""
    bounds: dict[str, tuple[float, float]] = {}
    for passages in rounds:
        there: dict[str, list[Passage]] = {}
        for worker, passage in passages.items():
            there.setdefault(hosts.get(worker, first), []).append(passage)
        if first not in there:
            continue
        came = max(entered for entered, _ in there[first])
        over = min(done for _, done in there[first])
        for host, others in there.items():
            least = max(entered for entered, _ in others) - over
            most = min(done for _, done in others) - came
            low, high = bounds.get(host, (least, most))
            bounds[host] = max(low, least), min(high, most)
    found = {host: Clock(0.0, None) for host in {first, *hosts.values()}}
    for host, (low, high) in bounds.items():
        found[host] = Clock((low + high) / 2, abs(high - low) / 2)
    found[first] = Clock(0.0, 0.0)
    return found


def hosts_of(run: Sequence[Record]) -> dict[int, str]:
    """The host of each worker of a run, as far as it is told."""
    found: dict[int, str] = {}
    for record in run:
        names = record.get("hosts")
        workers = record.get("joined" if record["event"] == "change" else "workers")
        if record["event"] in ("start", "change") and names and workers:
            found |= {worker: str(name) for worker, name in zip(workers, names, strict=False)}
    return found
