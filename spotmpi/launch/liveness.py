"""Whether a host still lives, judged by its beats. Pure: whoever hears and judges says when.

How long a host may be silent depends on how regular its beats were in the last seconds: `Pulse`.
It is long at first, and short only where beats have come on time. What is a silence is not a matter
of the clock alone: whoever listens may be asleep or cut off itself, and then knows nothing about
anybody: `Hearing`. A host that is heard in several ways is silent when it is so in all of them:
`Pulses`. How near a host came to counting as lost is kept: `Silences`.
"""

from __future__ import annotations

__all__ = [
    "BEATS",
    "CALM",
    "EVERY",
    "MEMORY",
    "MOST",
    "STEEP",
    "USUAL",
    "WINDOW",
    "Awake",
    "Hearing",
    "Pulse",
    "Pulses",
    "Silences",
    "beat_every",
    "bounds",
]

CALM, MOST = 0.25, 2.0
"""Seconds that a host may be silent: where it is calm; and where it is not, or nobody knows yet."""

EVERY = 0.025
"""Seconds between two beats of a host, where nobody has said how long it may be silent."""

BEATS = 8
"""Beats in the time for which a host may be silent, where somebody has said it."""

USUAL = 0.045
"""Seconds between two beats, as the head comes to know of them, that are nothing to notice."""

STEEP = 25.0
"""Seconds that a host may be silent for longer, for each second beyond `USUAL` that it was."""

MEMORY = 4.9
"""Seconds for which a silence is remembered at least; and twice that, not quite ten, at most."""

WINDOW = 5
"""Seconds of one window; they begin at the multiples of this on ``time.monotonic()``'s clock."""

_BACKOFF = 0.2
"""Seconds after which TCP begins to wait longer and longer before it sends again."""


def bounds(detect_ms: int | None) -> tuple[float, float]:
    """Seconds that a host may be silent where it is calm, and at most; None: nobody has said."""
    return (CALM, MOST) if detect_ms is None else (detect_ms / 1e3, detect_ms / 1e3)


def beat_every(detect_ms: int | None) -> float:
    """Seconds between two beats of a host, and between two looks of the head, at most."""
    return EVERY if detect_ms is None else min(detect_ms / 1e3 / BEATS, 1.0)


class Awake:
    """Time, in seconds, that passes only while this process runs. ``most`` between two looks."""

    def __init__(self, now: float, most: float) -> None:
        self._most = most
        self._last = now
        self.time = 0.0

    def look(self, now: float) -> float:
        """Return for how long the process was away since the last look, beyond ``most``."""
        passed, self._last = now - self._last, now
        counts = min(passed, self._most)
        self.time += counts
        return passed - counts


class Hearing:
    """The time in which silences are measured: it stands still while nothing can be heard.

    So while the head sleeps (it was stopped, its machine was moved), and while all hosts at once
    are silent: then it is the head that is cut off. After as long a time again everybody has had
    a chance to be heard: connections that got no answer for a second may wait for another one.

    The head looks once each ``beat`` seconds at least. With nothing heard from anybody for ``deaf``
    seconds it may be deaf. It waits for ``fence`` seconds more at most.
    """

    def __init__(self, now: float, beat: float, deaf: float, fence: float) -> None:
        self._awake = Awake(now, 1.25 * beat)
        self._deaf, self._fence = deaf, fence
        self._unheard = 0.0
        self._away = 0.0
        self._trusts_from = now
        self.time = 0.0
        self.clock = now
        """When the last look was, with all in which nothing could be heard."""

    @property
    def awake(self) -> float:
        """Seconds for which the head was awake."""
        return self._awake.time

    def look(self, now: float, anybody: bool) -> bool:
        """Take ``now``, and whether anybody was heard since the last look.

        Returns whether silences may be judged now.
        """
        self.clock = now
        before = self._awake.time
        away = self._awake.look(now)
        passed = self._awake.time - before
        if away > _BACKOFF:
            self._trust_later(now, away)
        self._unheard = 0.0 if anybody else self._unheard + passed
        if self._unheard <= self._deaf:
            if self._away > _BACKOFF:
                self._trust_later(now, self._away)
            self._away = 0.0
            self.time += passed
        else:
            self._away += passed
        return now >= self._trusts_from and not self._away

    def _trust_later(self, now: float, seconds: float) -> None:
        self._trusts_from = max(self._trusts_from, now + min(seconds, self._fence))


class Pulse:
    """One host's beats. It is judged in the time of a `Hearing`, ``now``, and learnt by the
    ``clock``: what the head itself was late is no silence, but nothing is calm there.

    ``calm`` and ``most`` bound what it may be silent; equal, they say it. It begins as if it had
    just been silent for ``most``: whether it is calm is learnt, and not supposed.
    """

    def __init__(self, now: float, clock: float, calm: float, most: float) -> None:
        self._calm, self._most = calm, most
        self._older, self._newer = 0.0, most
        self._since = self._last = clock
        self.heard = now

    def beat(self, now: float, clock: float) -> None:
        """It was heard, or counts as heard; how long it was not is remembered in any case."""
        self.heard = now
        gap, self._last = clock - self._last, clock
        if clock - self._since > MEMORY:
            long_ago = clock - self._since > 2 * MEMORY
            self._older, self._newer = 0.0 if long_ago else self._newer, 0.0
            self._since = clock
        self._newer = max(self._newer, gap)

    def silence(self, now: float) -> float:
        """Seconds since it was heard."""
        return now - self.heard

    @property
    def limit(self) -> float:
        """Seconds of silence after which it counts as lost."""
        late = max(0.0, max(self._older, self._newer) - USUAL)
        return min(self._most, self._calm + STEEP * late)


class Pulses:
    """One host's, of each way by which it is heard; ``now`` and ``clock`` as `Pulse` has them.

    What is silent in one way may only be cut off there: each way has its own limit, and the host is
    lost when all are over theirs. So a way that breaks down for good, though it was the most
    regular, costs nothing.
    """

    def __init__(self, calm: float, most: float) -> None:
        self._bounds = calm, most
        self._ways: dict[str, Pulse] = {}

    def beat(self, way: str, now: float, clock: float) -> None:
        """It was heard."""
        if way not in self._ways:
            self._ways[way] = Pulse(now, clock, *self._bounds)
        self._ways[way].beat(now, clock)

    def forget(self, way: str) -> None:
        """It will not be heard in this way any more."""
        self._ways.pop(way, None)

    def restart(self, now: float, clock: float) -> None:
        """It is not to be lost by what it was silent until now."""
        for pulse in self._ways.values():
            pulse.beat(now, clock)

    def silence(self, now: float) -> float:
        """Seconds since it was heard in any way."""
        return min(pulse.silence(now) for pulse in self._ways.values())

    def limit(self, least: float) -> float:
        """Seconds of silence after which it counts as lost for sure; each way has ``least``."""
        return max(max(pulse.limit, least) for pulse in self._ways.values())

    def lost(self, now: float, least: float) -> bool:
        """Whether it has been silent in each way for longer than that allows."""
        return all(p.silence(now) > max(p.limit, least) for p in self._ways.values())


class Silences:
    """One host's, in seconds. Pure: whoever judges says when it does.

    Only what comes to be known by being the longest so far is looked at closely, so a host that
    answers in time costs no more than a comparison.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        """Of all."""
        self.recent: float | None = None
        """The longest in the last whole window; None before there was one."""
        self.allowed = 0.0
        """After which it would count as lost, now."""
        self._window = -2  # not the one before any
        self._so_far = 0.0

    def news(self, silence: float, now: float) -> bool:
        """Whether nothing as long was seen in this window: if it is a silence, `saw` is next."""
        window = int(now // WINDOW)
        if window != self._window:
            # A head that slept over a whole window has seen nothing in it.
            self.recent = self._so_far if window == self._window + 1 else None
            self._window, self._so_far = window, 0.0
        return silence > self._so_far

    def saw(self, silence: float) -> None:
        """Nothing was heard of the host for so long."""
        self._so_far = silence
        self.longest = max(self.longest, silence)
