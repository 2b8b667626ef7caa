"""Which hosts do not reach each other, from what their agents say; and which of them must go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from spotmpi.launch.tcp_connections import TcpConnection

__all__ = ["Partitions"]

_CERTAIN = 1.0
"""Seconds for which two hosts do not reach each other before one must go. What takes shorter heals
by itself; and others say meanwhile whom they do not reach."""

_FRESH = 2.5
"""Seconds for which a word counts: agents repeat it every second."""

_OUTAGE = 1.0
"""Seconds of a host's silence after which its links may get no answer for a while."""

_LONGEST = 120.0
"""Seconds for which TCP waits at most before it sends again."""


class Partitions:
    """Pairs of hosts whose workers wait for each other in vain. Pure; times are in seconds.

    A host claims that a link of its workers gets no answer; whoever has the other end of it
    confirms that.
    """

    def __init__(self) -> None:
        self._claims: dict[TcpConnection, tuple[str, float]] = {}
        self._pairs: dict[frozenset[str], tuple[float, float]] = {}
        """When each was seen first and last."""
        self._excused: dict[str, float] = {}
        """Hosts that were silent, and until when rifts of theirs do not count."""

    def __bool__(self) -> bool:
        """Whether somebody may have to go."""
        return bool(self._pairs)

    def excuse(self, host: str, silence: float, now: float) -> bool:
        """A host is heard again after this ``silence``, in seconds. True if it was an outage.

        After one its links are well again, too, and may still get no answer for as long as that:
        TCP waits twice as long each time before it sends again.
        """
        if silence <= _OUTAGE:
            return False
        until = now + min(silence, _LONGEST) + _FRESH
        self._excused[host] = max(until, self._excused.get(host, until))
        return True

    def claim(self, host: str, links: Collection[TcpConnection], now: float) -> None:
        """These links of a host's workers get no answer."""
        self._claims = {
            link: (who, at) for link, (who, at) in self._claims.items() if now - at < _FRESH
        }
        self._claims.update((link, (host, now)) for link in links)

    def confirm(self, host: str, links: Collection[TcpConnection], now: float) -> None:
        """A host has the other ends of these links, which somebody has claimed."""
        for link in links:
            claimer, at = self._claims.get(link, (host, now))
            if claimer != host and now - at < _FRESH:
                pair = frozenset((claimer, host))
                first, last = self._pairs.get(pair, (now, now))
                self._pairs[pair] = (first if now - last < _FRESH else now, now)

    def outcast(self, workers: Mapping[str, int], now: float) -> tuple[str, list[str]] | None:
        """The host that must go for the others to go on, and whom it does not reach.

        ``workers``: how many each host of the job has, in the order of the hosts. Whoever misses
        most goes; of equals the one with fewer workers, and then the later one.
        """
        self._pairs = {
            pair: (first, last)
            for pair, (first, last) in self._pairs.items()
            if now - last < _FRESH and pair <= workers.keys()
        }
        # However often a host falls silent, it is not excused for ever.
        pairs = {
            pair: first
            for pair, (first, _) in self._pairs.items()
            if now - first >= _LONGEST or all(now >= self._excused.get(one, now) for one in pair)
        }
        if not any(now - first >= _CERTAIN for first in pairs.values()):
            return None
        misses = Counter(host for pair in pairs for host in pair)
        order = list(workers)
        worst = max(misses, key=lambda host: (misses[host], -workers[host], order.index(host)))
        missed = {host for pair in pairs if worst in pair for host in pair - {worst}}
        return worst, sorted(missed, key=order.index)
