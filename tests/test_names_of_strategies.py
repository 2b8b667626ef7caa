"""Strategies by name, for the command line and for traces."""

from __future__ import annotations

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.optimizers import SGD
from spotmpi.strategies import NAMES, SSGD, DiLoCo, Strategy, named


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_is_what_its_name_says_also_with_all_options(name: str) -> None:
    plain, options = named(name), named(str(NAMES[name]().name))
    assert str(plain) == str(options) == str(NAMES[name]())
    assert plain.name == options.name == NAMES[name]().name


def test_options_replace_what_is_usual() -> None:
    found = named("diloco:h=16,outer=0.5")
    assert found.name == "diloco:h=16,outer=0.5,momentum=0.9"
    assert str(found) == str(DiLoCo(h=16, outer=0.5))
    narrow = named("diloco:narrow=int8,h=16")
    assert narrow.narrow == "int8"
    assert narrow.name == "diloco:h=16,outer=0.7,momentum=0.9,narrow=int8"
    assert named("ssgd:narrow=bf16").name == "ssgd:narrow=bf16"
    assert str(named(narrow.name)) == str(narrow)
    assert narrow.steps == 16
    assert str(narrow).startswith("Narrow('int8') >> Apply() >> Every(16, OuterUpdate(rate=0.7")


def test_a_chain_of_ones_own_has_no_name() -> None:
    assert Strategy(SSGD().chain).name is None
    assert SSGD().name == "ssgd"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sgd", "there is no strategy 'sgd'; there are ssgd, lookahead, localsgd, sma"),
        ("", "there is no strategy ''"),
        ("ssgd:h=3", "the strategy ssgd has no option 'h'; it has narrow=bf16|fp16|int8"),
        ("localsgd:every=3", r"localsgd has no option 'every'; it has h=8, narrow="),
        ("localsgd:8", "has the option '8', expected one like h=8"),
        ("localsgd:h=8.5", "option h of the strategy localsgd is '8.5', expected a whole number"),
        ("localsgd:h=0", r"Every\(0, ModelAverage\(\)\) counts steps, expected at least 1"),
        ("sma:pull=much", "option pull of the strategy sma is 'much', expected a number such as"),
        ("sma:pull=nan", "pull is nan, expected a finite number"),
        ("easgd:pull=2", "pull is 2.0, expected more than 0 and at most 1"),
        ("diloco:momentum=1", "momentum is 1.0, expected at least 0 and less than 1"),
        ("diloco:narrow=int4", r"Narrow\('int4'\) is no format"),
    ],
)
def test_what_is_none_is_refused_and_what_there_is_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        named(text)


def test_the_environment_chooses_in_the_place_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = [np.zeros(3)]
    assert str(spotmpi.Trainer(params, optimizer=SGD(lr=1.0)).strategy) == str(SSGD())
    monkeypatch.setenv("SPOTMPI_STRATEGY", "localsgd:h=4")
    trainer = spotmpi.Trainer(params, optimizer=SGD(lr=1.0), strategy=SSGD())
    assert trainer.strategy.name == "localsgd:h=4"
    monkeypatch.setenv("SPOTMPI_STRATEGY", "fastest")
    with pytest.raises(UsageError, match="there is no strategy 'fastest'"):
        spotmpi.Trainer(params, optimizer=SGD(lr=1.0))
