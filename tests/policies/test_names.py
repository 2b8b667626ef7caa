"""Policies by name: what ``--policy`` takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.optimizers import SGD
from spotmpi.policies import (
    NAMES,
    Best,
    Fixed,
    Policy,
    Schedule,
    StragglerAware,
    ThroughputBelow,
    named,
)
from spotmpi.strategies import ADPSGD, SSGD, DiLoCo, LocalSGD


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("best", Best([SSGD(), LocalSGD(), DiLoCo()])),
        ("best:again=60/ssgd/diloco:h=16", Best([SSGD(), DiLoCo(h=16)], again=60.0)),
        ("fixed", Fixed()),
        ("fixed/localsgd:h=4", Fixed(LocalSGD(h=4))),
        ("throughputbelow", ThroughputBelow()),
        ("throughputbelow:least=0.5/diloco:h=8", ThroughputBelow(0.5, then=DiLoCo(h=8))),
        ("straggleraware:ratio=2/adpsgd/localsgd", StragglerAware(2.0, LocalSGD(), ADPSGD())),
        ("schedule/0=ssgd/1000=localsgd:h=8", Schedule({0: SSGD(), 1000: LocalSGD(h=8)})),
    ],
)
def test_a_name_stands_for_a_policy(text: str, meant: Policy) -> None:
    found = named(text)
    assert str(found) == str(meant)
    assert [*map(str, found.strategies)] == [*map(str, meant.strategies)]
    assert type(found) is NAMES[text.partition("/")[0].partition(":")[0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "fastest",
            "there is no policy 'fastest'; there are best, fixed, schedule, straggler",
        ),
        ("best:worst=1", "the policy best has no option 'worst'; it has settle=2.0, again=120.0"),
        ("best:again", "the policy best has the option 'again', expected one like settle=2.0"),
        ("best:again=1,again=2", "the policy best has the option again twice"),
        ("best:again=soon", "the option again of the policy best is 'soon', expected a number"),
        ("best:cost=2", "--policy best:cost=2: Best: cost is 2.0, expected a share"),
        ("best/fastest", "--policy best/fastest: there is no strategy 'fastest'"),
        ("best/", "--policy best/: there is no strategy ''"),
        ("fixed/ssgd/ssgd", "--policy fixed/ssgd/ssgd: it takes one strategy at most, not 2"),
        ("straggleraware/ssgd/ssgd/ssgd", "it takes 2 strategies at most, not 3"),
        ("schedule", "--policy schedule: Schedule begins at the steps [], expected 0"),
        ("schedule/ssgd", "'ssgd' has no first step and strategy, expected one like 1000=ssgd"),
        ("schedule/-1=ssgd", "'-1=ssgd' has no first step"),
        ("schedule/0=ssgd/0=localsgd", "it names a step twice"),
        ("schedule:settle=1/0=ssgd", "the policy schedule has no option 'settle'; it has none"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        named(text)
    assert said in str(refused.value)


def trainer(**known: object) -> spotmpi.Trainer[list[object]]:
    make: Callable[..., spotmpi.Trainer[list[object]]] = spotmpi.Trainer
    return make([np.zeros(3)], optimizer=SGD(lr=0.1), **known)


def test_the_environment_chooses_in_the_place_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPOTMPI_POLICY", "throughputbelow:least=0.5/localsgd:h=4")
    for known in ({}, {"policy": Fixed(DiLoCo())}, {"strategy": DiLoCo()}):
        choice = trainer(**known)._training.choice
        assert str(choice.policy) == str(ThroughputBelow(0.5, then=LocalSGD(h=4)))
        assert [*map(str, choice.strategies)] == [str(SSGD()), str(LocalSGD(h=4))]
    # A script that changes by itself may go on with all that it has named.
    mine = trainer(strategy=DiLoCo(), strategies=[LocalSGD(h=9)])._training.choice
    assert {str(DiLoCo()), str(LocalSGD(h=9))} < {*map(str, mine.strategies)}
    monkeypatch.setenv("SPOTMPI_STRATEGY", "ssgd")
    with pytest.raises(UsageError, match="SPOTMPI_POLICY and SPOTMPI_STRATEGY are both set"):
        trainer()
