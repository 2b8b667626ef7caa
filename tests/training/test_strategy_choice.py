"""`spotmpi.training.state.strategy_choice`: what one worker wants of the strategies."""

from __future__ import annotations

from spotmpi.strategies import ADPSGD, SSGD, LocalSGD
from spotmpi.training.state.strategy_choice import StrategyChoice


def test_a_wish_lasts_until_workers_follow_it() -> None:
    choice = StrategyChoice([SSGD(), LocalSGD(h=2)], None)
    assert choice.wanted(0) is None
    choice.wish, choice.why = choice.number_of(LocalSGD(h=2)), {"why": "to send less"}
    assert choice.wanted(0) == 1
    assert choice.wanted(1) is None, "workers follow it already"
    assert choice.come_to(0) == {}, "others wished that"
    assert choice.come_to(1) == {"why": "to send less"}
    assert choice.wanted(0) is None


def test_rounds_carry_tables_if_any_strategy_is_asynchronous() -> None:
    assert not StrategyChoice([SSGD(), LocalSGD(h=2)], None).tells
    assert StrategyChoice([SSGD(), ADPSGD()], None).tells
