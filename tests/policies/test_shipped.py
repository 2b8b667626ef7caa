from __future__ import annotations

from dataclasses import replace

import pytest

from spotmpi.errors import UsageError
from spotmpi.operators import Narrow
from spotmpi.policies import (
    Best,
    Fixed,
    Metrics,
    Schedule,
    StragglerAware,
    ThroughputBelow,
    Tried,
)
from spotmpi.strategies import ADPSGD, SSGD, DiLoCo, LocalSGD, Strategy

SLOW, FAST = SSGD(), ADPSGD(control=8)


def measured(strategy: Strategy, share: float = 1.0, **more: object) -> Metrics:
    """With ten samples a second of four workers alone, as they were for ten seconds."""
    known = Metrics(strategy, 100, 50, 10.0, 4, 2, 10.0 * share, share, 1.0)
    found = replace(known, **more)  # type: ignore[arg-type]
    now = Tried(found.progress, found.workers)
    return replace(found, tried={**found.tried, strategy.called: now})


def test_fixed_stays_with_one() -> None:
    assert Fixed(FAST).decide(measured(SLOW)) is FAST
    assert Fixed(FAST).strategies == [FAST]


def test_a_throughput_below_a_share_changes_it_and_only_then() -> None:
    policy = ThroughputBelow(0.4, then=FAST)
    assert policy.strategies[1] is FAST
    assert policy.decide(measured(SLOW, 0.41)) is None
    assert policy.decide(measured(SLOW, 0.39)) is FAST
    assert policy.decide(measured(SLOW, 0.39, seconds=1.9)) is None


def test_it_goes_back_with_fewer_workers_or_to_look_again() -> None:
    policy = ThroughputBelow(0.4, then=FAST)
    left = {"ssgd": Tried(15.0, 4, 60.0)}
    assert policy.decide(measured(FAST, 0.9, tried=left)) is None
    back = policy.decide(measured(FAST, 0.9, tried=left, workers=3))
    assert str(back) == str(SLOW)
    assert policy.decide(measured(FAST, 0.9, tried=left, workers=5)) is None
    long_ago = {"ssgd": Tried(15.0, 4, 601.0)}
    assert str(policy.decide(measured(FAST, 0.9, tried=long_ago))) == str(SLOW)
    assert str(policy.decide(measured(FAST))) == str(SLOW)  # who never followed it looks at it
    assert policy.decide(measured(FAST, seconds=1.0)) is None


def test_it_does_not_flap_while_nothing_changes() -> None:
    policy, strategy, changes = ThroughputBelow(0.4, then=FAST), policy_first(), 0
    tried: dict[str, Tried] = {}
    for _ in range(100):
        tried = {name: replace(one, ago=one.ago + 3.0) for name, one in tried.items()}
        share = 0.39 if str(strategy) == str(SLOW) else 0.95
        now = measured(strategy, share, seconds=3.0, tried=tried)
        tried = dict(now.tried)
        if (wanted := policy.decide(now)) is not None and str(wanted) != str(strategy):
            strategy, changes = wanted, changes + 1
    assert changes == 1


def policy_first() -> Strategy:
    return ThroughputBelow().strategies[0]


def test_a_straggler_changes_it_until_there_is_none() -> None:
    policy = StragglerAware(1.5, then=FAST)
    assert policy.decide(measured(SLOW, slowest=1.4)) is None
    assert policy.decide(measured(SLOW, slowest=1.6)) is FAST
    assert policy.decide(measured(FAST, slowest=1.3)) is None
    assert str(policy.decide(measured(FAST, slowest=1.1))) == str(SLOW)


def test_a_schedule_goes_by_steps() -> None:
    policy = Schedule({1000: FAST, 0: SLOW})
    assert policy.strategies == [SLOW, FAST]
    assert policy.decide(measured(SLOW, steps=999)) is SLOW
    assert policy.decide(measured(SLOW, steps=1000)) is FAST


def test_best_tries_others_and_keeps_the_fastest() -> None:
    middle = LocalSGD(h=4)
    policy = Best([SLOW, middle, FAST])
    now = measured(SLOW, 0.3)
    assert policy.decide(now) is middle
    now = measured(middle, 0.7, tried=now.tried)
    assert policy.decide(now) is FAST
    now = measured(FAST, 0.6, tried=now.tried)
    assert policy.decide(now) is middle
    now = measured(middle, 0.7, tried=now.tried)
    assert policy.decide(now) is None
    assert policy.decide(replace(now, seconds=1.0, workers=9)) is None  # it has just come


def test_best_begins_with_the_fewest_rounds_and_tries_asynchronous_ones_last() -> None:
    policy = Best([SLOW, FAST, LocalSGD(h=4), LocalSGD(h=8)])
    now = measured(SLOW, 0.3)
    assert str(policy.decide(now)) == str(LocalSGD(h=8))
    now = measured(LocalSGD(h=8), 0.5, tried=now.tried)
    assert policy.decide(now) is FAST


def test_best_tries_nothing_where_nobody_waits() -> None:
    """Nothing can do more than let all compute all the time."""
    policy = Best([SLOW, LocalSGD(h=8), FAST], better=0.05)
    assert policy.decide(measured(SLOW, 0.96, seconds=1000.0)) is None
    assert policy.decide(measured(SLOW, 0.94, seconds=1000.0)) is not None
    assert policy.decide(measured(SLOW, 0.0)) is not None


def test_best_does_not_try_what_has_rounds_as_often() -> None:
    often, seldom = LocalSGD(h=4), LocalSGD(h=8)
    known = measured(seldom, 0.5)
    assert Best([seldom, SLOW, often]).decide(known) is None
    assert Best([often, SLOW, seldom]).decide(measured(often, 0.5)) is seldom
    for other in (
        DiLoCo(h=8, delay=2),  # goes on while a round is under way
        Narrow("int8") >> often,  # sends less
        DiLoCo(h=16, fragments=2),  # sends each half half as often
        FAST,
    ):
        assert Best([seldom, other]).decide(known) is other
    assert Best([FAST, often]).decide(measured(FAST, 0.5)) is often


def test_best_waits_until_a_trial_takes_less_than_it_could_have_saved() -> None:
    """Trials take 2 s, and 6 s more as surveys are 3 s apart. At 0.8 a quarter could be saved, and
    the share ``better`` of that is no reason to change."""
    policy = Best([SLOW, FAST], settle=2.0, better=0.05)
    for seconds, wanted in (42.0, None), (43.0, FAST):
        now = measured(SLOW, 0.8, seconds=seconds)
        tried = {SLOW.called: replace(now.tried[SLOW.called], period=3.0)}
        assert policy.decide(replace(now, tried=tried)) is wanted


def test_best_tries_again_when_the_workers_change_and_after_a_while() -> None:
    policy = Best([SLOW, FAST], again=60.0, cost=0.02, settle=2.0)
    tried = {"ssgd": Tried(12.0, 4, 59.0)}
    assert policy.decide(measured(FAST, 0.4, tried=tried)) is None
    old = {"ssgd": Tried(12.0, 4, 61.0)}
    assert policy.decide(measured(FAST, 0.4, tried=old)) is SLOW
    assert policy.decide(measured(FAST, 0.4, tried=tried, workers=5)) is SLOW
    # One that is ten times slower costs 1.8 s each time: at most 2 % of the time go there.
    far = {"ssgd": Tried(4.0, 4, 85.0, behind=0.9)}
    assert policy.decide(measured(FAST, 0.7, tried=far)) is None
    later = {"ssgd": Tried(4.0, 4, 91.0, behind=0.9)}
    assert policy.decide(measured(FAST, 0.7, tried=later)) is SLOW


def test_best_does_not_pay_more_where_workers_come_and_go() -> None:
    """The same for one that was far behind with another number of them."""
    policy = Best([SLOW, FAST], cost=0.02, settle=2.0)
    for workers in (3, 5):
        for ago, wanted in (85.0, None), (91.0, SLOW):
            tried = {"ssgd": Tried(4.0, 4, ago, behind=0.9)}
            assert policy.decide(measured(FAST, 0.7, tried=tried, workers=workers)) is wanted


def test_best_counts_that_a_trial_ends_with_a_survey() -> None:
    """With its own numbers: 14 s, of which nine tenths are lost, are 2 % of 630."""
    policy = Best([SLOW, FAST])
    for ago, wanted in (625.0, None), (635.0, SLOW):
        tried = {"ssgd": Tried(4.0, 4, ago, period=12.0, behind=0.9)}
        assert policy.decide(measured(FAST, 0.7, tried=tried)) is wanted


def test_best_does_not_change_for_little() -> None:
    policy = Best([SLOW, FAST], better=0.05)
    tried = {FAST.called: Tried(41.0, 4, 5.0)}
    assert policy.decide(measured(SLOW, 1.0, tried=tried)) is None
    tried = {FAST.called: Tried(43.0, 4, 5.0)}
    assert policy.decide(measured(SLOW, 1.0, tried=tried)) is FAST


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ThroughputBelow(1.0), "least is 1.0, expected a share"),
        (lambda: ThroughputBelow(settle=-1), "settle is -1, expected a number of seconds"),
        (lambda: StragglerAware(1.0), "ratio is 1.0, expected more than 1"),
        (lambda: Schedule({5: SLOW}), "begins at the steps [5], expected 0"),
        (lambda: Schedule({0: SLOW, 1.5: FAST}), "Schedule: step is 1.5, expected a whole number"),  # type: ignore[dict-item]
        (lambda: ThroughputBelow("0.4"), "least is '0.4', expected a finite number"),
        (lambda: ThroughputBelow(again=float("nan")), "again is nan, expected a finite number"),
        (lambda: StragglerAware(None), "ratio is None, expected a finite number"),
        (lambda: Best([]), "Best has no candidates"),
        (lambda: Best(SLOW), "Best has no candidates: give it a list, as Best([SSGD()])"),
        (lambda: Best([SLOW], cost=2), "Best: cost is 2, expected a share"),
    ],
)
def test_what_cannot_be_is_refused(make, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError) as raised:
        make()
    assert said in str(raised.value)


def test_a_policy_says_what_it_is() -> None:
    said = "ThroughputBelow(least=0.3, settle=2.0, again=600.0: ssgd or adpsgd:control=64)"
    assert str(ThroughputBelow(0.3)) == said
    figures = measured(SLOW, 0.25).figures()
    assert figures["share"] == 0.25
    assert figures["communication"] == 0.75
    assert figures["tried"]["ssgd"] == {
        "progress": 10.0,
        "workers": 4,
        "ago": 0.0,
        "period": 0.0,
        "behind": 0.0,
    }


def test_schedules_that_differ_have_different_texts() -> None:
    one, other = Schedule({0: SLOW, 5: FAST, 9: SLOW}), Schedule({0: SLOW, 5: FAST, 9: FAST})
    assert str(one) != str(other)
