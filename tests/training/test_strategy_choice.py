"""`spotmpi.training.state.strategy_choice`: what one worker wants of the strategies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotmpi.policies import Metrics, Schedule, ThroughputBelow
from spotmpi.strategies import ADPSGD, SSGD, LocalSGD
from spotmpi.training.state.strategy_choice import StrategyChoice


def test_a_wish_lasts_until_workers_follow_it() -> None:
    choice = StrategyChoice([SSGD(), LocalSGD(h=2)], None)
    assert choice.wanted(0) is None
    choice.wish = choice.number_of(LocalSGD(h=2))
    assert choice.wanted(0) == 1
    assert choice.wanted(1) is None, "workers follow it already"
    assert choice.come_to(1) == {}, "no policy has decided it"
    assert choice.wanted(0) is None


def measured(share: float) -> Metrics:
    known = {"steps": 100, "since": 50, "workers": 4, "hosts": 2}
    return Metrics(SSGD(), seconds=5.0, throughput=9.0, slowest=1.0, share=share, **known)


@pytest.mark.parametrize("leads", [True, False])
def test_every_worker_knows_why_and_only_the_leader_wishes(leads: bool) -> None:
    """The leader may be lost before it can tell."""
    policy = ThroughputBelow(0.4, then=LocalSGD(h=2))
    choice = StrategyChoice(policy.strategies, policy)
    assert choice.decide(policy, measured(0.5), leads) is None
    assert choice.decide(policy, measured(0.3), leads) is policy.then
    assert choice.wanted(0) == (1 if leads else None)
    why = choice.come_to(1)
    assert "each worker does 0.30 of what it would do alone" in why["why"]
    assert why["figures"]["share"] == 0.3
    assert choice.come_to(1) == {}, "it is told once"


def test_a_script_s_own_wish_has_no_reason_of_the_policy() -> None:
    policy = ThroughputBelow(0.4, then=LocalSGD(h=2))
    choice = StrategyChoice([*policy.strategies, ADPSGD()], policy)
    choice.decide(policy, measured(0.3), leads=True)
    choice.ask(ADPSGD())
    assert choice.wanted(0) == 2
    assert choice.come_to(1) == {}, "the script has changed its mind since"
    assert choice.come_to(2) == {}


def test_a_policy_is_not_asked_while_a_wish_waits() -> None:
    policy = ThroughputBelow(0.4, then=LocalSGD(h=2))
    choice = StrategyChoice([*policy.strategies, ADPSGD()], policy)
    choice.ask(ADPSGD())
    assert choice.decide(policy, measured(0.3), leads=True) is None
    assert choice.wanted(0) == 2


def test_a_decision_holds_until_the_policy_stays() -> None:
    """A leader that is lost may have told of a decision which it has taken back since."""
    policy = ThroughputBelow(0.4, then=LocalSGD(h=2))
    choice = StrategyChoice(policy.strategies, policy)
    choice.decide(policy, measured(0.3), leads=False)
    choice.decide(policy, measured(0.5), leads=False)
    assert choice.come_to(1) == {}


def test_each_strategy_decided_for_keeps_its_own_reason() -> None:
    """The one that a lost leader decided for may be carried out after another decision."""
    policy = Schedule({0: SSGD(), 90: LocalSGD(h=2), 110: LocalSGD(h=4)})
    choice = StrategyChoice(policy.strategies, policy)
    choice.decide(policy, measured(0.9), leads=False)
    choice.decide(policy, replace(measured(0.8), steps=120), leads=False)
    assert choice.come_to(1)["figures"]["share"] == 0.9


def test_what_may_not_be_followed_is_not_asked_for() -> None:
    choice = StrategyChoice([SSGD()], None)
    with pytest.raises(ValueError, match="ModelAverage"):
        choice.ask(LocalSGD())
    assert choice.wanted(0) is None


def test_rounds_carry_tables_if_any_strategy_is_asynchronous() -> None:
    assert not StrategyChoice([SSGD(), LocalSGD(h=2)], None).tells
    assert StrategyChoice([SSGD(), ADPSGD()], None).tells
