"""`spotmpi.launch.liveness`: who counts as lost, on clocks that the tests drive."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from spotmpi.launch.liveness import (
    CALM,
    EVERY,
    MEMORY,
    MOST,
    USUAL,
    WINDOW,
    Awake,
    Hearing,
    Pulse,
    Pulses,
    Silences,
    beat_every,
    bounds,
)

BEAT = EVERY
FENCE = 30.0
LEARNT = 2 * MEMORY + 1
"""Seconds after which it is known how calm a host is."""


class Head:
    """Hears hosts by a script, and looks every beat unless it is asleep."""

    def __init__(self, *hosts: str) -> None:
        self.now = 100.0
        self.hearing = Hearing(self.now, BEAT, CALM / 2, FENCE)
        self.pulses = {host: Pulse(0.0, self.now, CALM, MOST) for host in hosts}
        self.lost: dict[str, float] = {}
        """And when."""

    def live(self, seconds: float, hears: Callable[[str, float], bool]) -> None:
        """Look every beat for so long; ``hears(host, seconds in this)``."""
        begin = self.now
        while self.now < begin + seconds - 1e-9:
            self.now += BEAT
            self.look({host for host in self.pulses if hears(host, self.now - begin)})

    def look(self, heard: Iterable[str]) -> None:
        """One look."""
        there = set(heard) - self.lost.keys()
        judges = self.hearing.look(self.now, bool(there))
        for host in there:
            self.pulses[host].beat(self.hearing.time, self.now)
        for host, pulse in self.pulses.items():
            if judges and host not in self.lost and pulse.silence(self.hearing.time) > pulse.limit:
                self.lost[host] = self.now


def everybody(_host: str, _at: float) -> bool:
    return True


def test_of_hosts_that_were_calm_for_ten_seconds_one_that_falls_silent_is_soon_lost() -> None:
    head = Head("a", "b", "c")
    head.live(10, everybody)
    begin = head.now
    head.live(1, lambda host, _: host != "b")
    assert list(head.lost) == ["b"]
    assert CALM < head.lost["b"] - begin <= 0.3


@pytest.mark.parametrize("seconds", [0.05, 1.0, 4.9])
def test_in_the_beginning_a_host_may_be_silent_for_as_long_as_ever(seconds: float) -> None:
    head = Head("a", "b")
    head.live(seconds, everybody)
    head.live(MOST - BEAT, lambda host, _: host != "b")
    assert head.lost == {}
    head.live(3 * BEAT, lambda host, _: host != "b")
    assert list(head.lost) == ["b"]


def test_a_host_that_is_busy_from_its_first_second_on_is_not_lost() -> None:
    """So it was: silent for 204 to 214 ms, on cores on which four others were at work."""
    head = Head("a", "b")
    busy, until = random.Random(5), [0.0]

    def hears(host: str, at: float) -> bool:
        if host == "b" and at >= until[0] and busy.random() < 0.02:
            until[0] = at + busy.choice([0.03, 0.05, 0.09, 0.21])
        return host != "b" or at >= until[0]

    head.live(600, hears)
    assert head.lost == {}
    assert head.pulses["a"].limit == CALM


def test_how_often_a_host_beats_follows_from_how_long_it_may_be_silent() -> None:
    assert beat_every(None) == EVERY < USUAL
    assert beat_every(800) == pytest.approx(0.1)
    assert beat_every(600_000) == 1.0
    assert bounds(None) == (CALM, MOST)
    assert bounds(800) == (0.8, 0.8)


@pytest.mark.parametrize("seconds", [0.3, 3.0, 25.0])
def test_a_pause_of_the_head_loses_nobody_whoever_is_heard_first(seconds: float) -> None:
    head = Head("a", "b")
    head.live(LEARNT, everybody)
    head.now += seconds
    head.look(["a"])
    head.live(0.15, lambda host, _: host == "a")
    head.live(1, everybody)
    assert head.lost == {}


@pytest.mark.parametrize("seconds", [0.15, 0.3, 3.0, 25.0])
def test_when_all_are_silent_at_once_it_is_the_head_that_is_suspect(seconds: float) -> None:
    head = Head("a", "b", "c")
    head.live(LEARNT, everybody)
    head.live(seconds, lambda *_: False)
    head.live(1, everybody)
    assert head.lost == {}


def test_after_a_silence_of_all_each_has_as_long_again_to_be_heard() -> None:
    """TCP tries again after as long a time as it has tried in vain."""
    head = Head("a", "b")
    head.live(LEARNT, everybody)
    head.live(3, lambda *_: False)
    head.live(2.8, lambda host, _: host == "a")
    assert head.lost == {}
    head.live(2, lambda host, _: host == "a")
    assert list(head.lost) == ["b"]


def test_one_that_goes_while_the_head_sleeps_is_found_when_it_is_awake() -> None:
    head = Head("a", "b")
    head.live(LEARNT, everybody)
    head.now += 3
    head.live(3 + 1.1 * CALM + 2 * BEAT, lambda host, _: host == "a")
    assert list(head.lost) == ["b"]


def test_the_only_host_is_never_lost_by_its_silence_alone() -> None:
    head = Head("a")
    head.live(LEARNT, everybody)
    head.live(FENCE + 5, lambda *_: False)
    assert head.lost == {}


@pytest.mark.parametrize("seldom", [False, True])
def test_a_head_that_is_late_is_on_no_calm_machine_and_gives_all_longer(seldom: bool) -> None:
    """Before hosts on busy cores were silent for 180 ms, only the head had been late at times."""
    head = Head("a", "b")
    late = random.Random(7)
    for number in range(2000):
        hurried = seldom and number % 100 > 0
        head.now += BEAT + (0.0 if hurried else late.choice([0.09, 0.05, 0.18]))
        head.look(["a", "b"])
    assert head.lost == {}
    for host in "ab":
        assert head.pulses[host].limit > 1.0
        assert head.pulses[host].silence(head.hearing.time) == 0.0


def test_after_a_sleep_of_the_head_it_is_learnt_anew_who_is_calm() -> None:
    head = Head("a", "b")
    head.live(LEARNT, everybody)
    assert head.pulses["a"].limit == CALM
    head.now += 3
    head.look(["a", "b"])
    assert head.pulses["a"].limit == MOST
    head.live(LEARNT, everybody)
    assert head.pulses["a"].limit == CALM


def test_a_link_that_jitters_is_given_longer_and_its_calm_neighbour_is_not() -> None:
    head = Head("a", "b", "c")
    jitter = random.Random(3)
    silent_until = 0.0

    def hears(host: str, at: float) -> bool:
        nonlocal silent_until
        if host != "b":
            return True
        if at >= silent_until and jitter.random() < 0.05:
            silent_until = at + jitter.uniform(0.05, 0.15)
        return at >= silent_until

    head.live(60, hears)
    assert head.lost == {}
    assert 0.5 < head.pulses["b"].limit <= MOST
    assert head.pulses["a"].limit == CALM


def calm(pulse: Pulse, at: float, seconds: float) -> float:
    """Have it beat on time for so long; return when that is over."""
    for _ in range(round(seconds / BEAT)):
        at += BEAT
        pulse.beat(at, at)
    return at


def test_it_gets_faster_when_it_was_calm_for_ten_seconds_and_slower_at_once() -> None:
    pulse = Pulse(0.0, 0.0, CALM, MOST)
    at = calm(pulse, 0.0, MEMORY)
    assert pulse.limit == MOST
    at = calm(pulse, at, LEARNT - MEMORY)
    assert pulse.limit == CALM
    at += 0.06
    pulse.beat(at, at)
    late = pulse.limit
    assert CALM < late < MOST
    at += 0.12
    pulse.beat(at, at)
    assert pulse.limit == MOST
    at = calm(pulse, at, MEMORY)
    assert pulse.limit == MOST
    at = calm(pulse, at, LEARNT - MEMORY)
    assert pulse.limit == CALM


def test_beats_that_come_as_late_as_usual_say_nothing() -> None:
    pulse = Pulse(0.0, 0.0, CALM, MOST)
    at = calm(pulse, 0.0, LEARNT)
    for _ in range(100):
        at += USUAL
        pulse.beat(at, at)
    assert pulse.limit == pytest.approx(CALM)


def test_a_host_that_was_seldom_heard_is_not_judged_by_what_is_long_past() -> None:
    pulse = Pulse(0.0, 0.0, CALM, MOST)
    at = calm(pulse, 0.0, LEARNT) + 3 * LEARNT
    pulse.beat(at, at)
    assert pulse.limit == MOST  # that was a silence
    calm(pulse, at, LEARNT)
    assert pulse.limit == CALM


def test_no_link_is_ever_given_more_than_the_bound() -> None:
    pulse = Pulse(0.0, 0.0, CALM, MOST)
    pulse.beat(1.9, 1.9)
    assert pulse.limit == MOST


def test_a_limit_that_was_asked_for_is_not_learnt() -> None:
    pulse = Pulse(0.0, 0.0, 0.3, 0.3)
    assert pulse.limit == 0.3
    pulse.beat(0.29, 0.29)
    assert pulse.limit == 0.3


def test_time_awake_is_that_of_the_looks() -> None:
    awake = Awake(10.0, 0.03)
    assert awake.look(10.02) == 0
    assert awake.look(13.05) == pytest.approx(3.0)
    assert awake.time == pytest.approx(0.05)


def heard_both_ways(seconds: float) -> tuple[Pulses, float]:
    """A host that was heard by its link and by UDP for so long, and until when."""
    pulses, at = Pulses(CALM, MOST), 0.0
    while at < seconds:
        at += BEAT
        pulses.beat("link", at, at)
        pulses.beat("udp", at, at)
    return pulses, at


@pytest.mark.parametrize("way", ["link", "udp"])
def test_a_host_that_is_heard_in_one_way_is_not_lost(way: str) -> None:
    pulses, at = heard_both_ways(LEARNT)
    for _ in range(400):
        at += BEAT
        pulses.beat(way, at, at)
        assert not pulses.lost(at, 0.0)
        assert pulses.silence(at) == 0.0
    assert not pulses.lost(at + CALM - BEAT, 0.0)
    assert pulses.lost(at + CALM + BEAT, 0.0)


def test_a_way_that_breaks_down_leaves_the_other_its_own_limit() -> None:
    """A link through a busy ssh is silent for longer than its host's datagrams ever were."""
    pulses, at = heard_both_ways(LEARNT)
    for _ in range(10):
        for _ in range(16):
            at += BEAT
            pulses.beat("udp", at, at)
        pulses.beat("link", at, at)  # once in 400 ms
    for _ in range(20):  # and now no more datagrams
        assert not pulses.lost(at + 0.4, 0.0)
        at += 0.4
        pulses.beat("link", at, at)
    assert pulses.lost(at + MOST + BEAT, 0.0)


def test_a_way_that_is_given_up_counts_no_more() -> None:
    pulses, at = heard_both_ways(LEARNT)
    pulses.beat("udp", at + 1.0, at + 1.0)
    assert not pulses.lost(at + 1.5, 0.0)
    pulses.forget("udp")
    assert pulses.lost(at + 1.5, 0.0)


def test_in_the_beginning_each_way_is_given_at_least_so_long() -> None:
    pulses, at = heard_both_ways(LEARNT)
    assert pulses.limit(5.0) == 5.0
    assert not pulses.lost(at + 4.9, 5.0)
    assert pulses.lost(at + 5.1, 5.0)
    pulses.restart(at + 5.1, at + 5.1)
    assert pulses.limit(0.0) == MOST, "so long a silence is forgotten"
    assert not pulses.lost(at + 5.1 + MOST - BEAT, 0.0)
    assert pulses.lost(at + 5.1 + MOST + BEAT, 0.0)


def judge(silences: Silences, *seen: tuple[float, float]) -> None:
    """Look at each (moment, in windows; silence, in seconds) as the head does."""
    for moment, silence in seen:
        if silences.news(silence, moment * WINDOW):
            silences.saw(silence)


def test_the_longest_silence_stays_and_that_of_the_last_window_passes() -> None:
    silences = Silences()
    judge(silences, (7.0, 0.025), (7.5, 0.120), (7.9, 0.030))
    assert (silences.longest, silences.recent) == (0.120, None)
    judge(silences, (8.0, 0.010), (8.9, 0.040))
    assert (silences.longest, silences.recent) == (0.120, 0.120)
    judge(silences, (9.0, 0.001))
    assert (silences.longest, silences.recent) == (0.120, 0.040)


def test_only_the_longest_of_its_window_is_news() -> None:
    silences = Silences()
    assert silences.news(0.02, 7 * WINDOW)
    silences.saw(0.02)
    assert not silences.news(0.02, 7.5 * WINDOW)
    assert silences.news(0.03, 7.5 * WINDOW)
    assert silences.news(0.01, 8 * WINDOW)


def test_what_was_news_and_no_silence_leaves_no_trace() -> None:
    silences = Silences()
    judge(silences, (7.0, 0.02))
    assert silences.news(0.5, 7.5 * WINDOW)
    judge(silences, (8.0, 0.01))
    assert (silences.longest, silences.recent) == (0.02, 0.02)


def test_of_a_window_in_which_the_head_slept_nothing_is_known() -> None:
    silences = Silences()
    judge(silences, (7.0, 0.02), (8.0, 0.02), (10.0, 0.03))
    assert silences.recent is None
