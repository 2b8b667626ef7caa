"""Strategies by name, for the command line and for traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.operators import (
    Apply,
    ElasticAverage,
    Every,
    GradientAverage,
    Narrow,
    Operator,
    Stage,
    Step,
)
from spotmpi.optimizers import SGD
from spotmpi.strategies import NAMES, SSGD, DiLoCo, LocalSGD, Strategy, named
from tests.simulated import Final, Job, params


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
    assert narrow.wire == "int8"
    assert narrow.name == "diloco:h=16,outer=0.7,momentum=0.9,narrow=int8"
    assert named("ssgd:narrow=bf16").name == "ssgd:narrow=bf16"
    assert str(named(narrow.name)) == str(narrow)
    assert narrow.every == 16
    late = named("diloco:h=16,quorum=0.75,narrow=int8")
    said = "quorum=0.75,grace=0.5,narrow=int8"
    assert late.name == f"diloco:h=16,outer=0.7,momentum=0.9,{said}"
    assert "Apply() >> Quorum(share=0.75, grace=0.5) >> Every(16, Outer" in str(late)
    assert str(narrow).startswith("Narrow('int8') >> Apply() >> Every(16, OuterUpdate(rate=0.7")


def test_a_chain_of_ones_own_has_no_name() -> None:
    assert Strategy(SSGD().chain).name is None
    assert SSGD().name == "ssgd"


class Mine(Strategy):
    """Somebody's own, with two numbers."""

    def __init__(self, h: int, pull: float = 0.5) -> None:
        super().__init__(Apply() >> Every(h, ElasticAverage(pull)))


def test_variants_of_a_class_of_ones_own_are_called_different() -> None:
    variants = [Mine(4), Mine(8), Mine(8, pull=0.25), Narrow("int8") >> Mine(8)]
    assert {one.name for one in variants} == {None}  # --strategy knows none of them
    assert len({one.called for one in variants}) == 4
    assert variants[2].called.startswith("Apply() >> Every(8, ElasticAverage(pull=0.25")


def test_who_derives_from_a_shipped_one_has_its_name_with_the_options_that_hold() -> None:
    class Slower(LocalSGD):
        """Seldom a round."""

        def __init__(self) -> None:
            super().__init__(h=32)

    assert Slower().name == "localsgd:h=32"
    assert str(named("localsgd:h=32")) == str(Slower())


class Decay(Stage):
    """As somebody might write it."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def run(self, step: Step) -> None:
        """Nothing."""


class Silent(ElasticAverage):
    """It has one thing more than the class that it comes from."""

    def __init__(self, more: float) -> None:
        super().__init__(0.5)
        object.__setattr__(self, "more", more)


class Told(Decay):
    """It says it."""

    def __str__(self) -> str:
        return f"Told({self.amount})"


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (
            GradientAverage() >> Apply() >> Decay(0.1),
            r"^Decay\(\) has amount, which .* class Decay",
        ),
        (Apply() >> Every(2, Silent(1.0)), r"^Silent\(.*\) has more, which .* over the class Sil"),
    ],
)
def test_an_operator_that_does_not_say_what_it_has_is_refused(chain: Operator, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Strategy(chain)


def told(amount: float) -> Strategy:
    """A chain with an operator that is no dataclass, and says what it has."""
    return Strategy(GradientAverage() >> Apply() >> Told(amount))


def test_workers_whose_operators_have_different_numbers_do_not_begin(tmp_path: Path) -> None:
    class Different(Job):
        """Each with its own."""

        def script(self, worker: int) -> Final:
            with spotmpi.Trainer(params(worker), optimizer=SGD(lr=0.1), strategy=told(worker)):
                raise AssertionError("it began")

    with pytest.raises(UsageError, match="differ in the strategy or the optimizer"):
        Different(tmp_path, 2).run()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sgd", "there is no strategy 'sgd'; there are ssgd, lookahead, localsgd, sma"),
        ("", "there is no strategy ''"),
        ("ssgd:h=3", "the strategy ssgd has no option 'h'; it has narrow=bf16|fp16|int8"),
        ("localsgd:every=3", r"localsgd has no option 'every'; it has h=8, narrow="),
        ("localsgd:8", "has the option '8', expected one like h=8"),
        ("localsgd:h=8,h=9", "localsgd has the option h twice: give it once"),
        ("localsgd:h=8.5", "option h of the strategy localsgd is '8.5', expected a whole number"),
        (
            "localsgd:h=0",
            r"^--strategy localsgd:h=0: h is 0, expected a whole number of at least 1",
        ),
        ("localsgd:h=-1", "h is -1, expected a whole number of at least 1"),
        ("lookahead:every=0", "every is 0, expected a whole number of at least 1"),
        ("easgd:every=0", "every is 0, expected a whole number of at least 1"),
        ("adpsgd:control=0", "control is 0, expected a whole number of at least 1"),
        ("gossip:control=0", "control is 0, expected a whole number of at least 1"),
        ("parameterserver:control=0", "control is 0, expected a whole number of at least 1"),
        ("parameterserver:shards=0", "shards is 0, expected a whole number of at least 1"),
        ("hogwild:control=0", "control is 0, expected a whole number of at least 1"),
        ("diloco:h=0", "h is 0, expected a whole number of at least 1"),
        ("diloco:h=0,fragments=2", "h is 0, expected a whole number of at least 1"),
        ("diloco:delay=-1", "delay is -1, expected a whole number of at least 0"),
        (
            "diloco:outer=nan",
            "^--strategy diloco:outer=nan: outer is nan, expected a finite number",
        ),
        ("diloco:outer=0", "outer is 0.0, expected more than 0 and at most 10"),
        ("sma:pull=much", "option pull of the strategy sma is 'much', expected a number such as"),
        ("sma:pull=nan", "pull is nan, expected a finite number"),
        ("easgd:pull=2", "pull is 2.0, expected more than 0 and at most 1"),
        ("diloco:momentum=1", "momentum is 1.0, expected at least 0 and less than 1"),
        ("diloco:narrow=int4", r"Narrow\('int4'\) is no format"),
        ("diloco:quorum=2", "quorum is 2.0, expected more than 0 and at most 1"),
        ("diloco:quorum=-1", "quorum is -1.0, expected more than 0"),
        ("diloco:quorum=0.5,grace=-1", "grace is -1.0, expected 0 or more seconds"),
        ("diloco:quorum=0.5,delay=2", "leave out quorum, or fragments and delay"),
        ("diloco:quorum=0.5,fragments=2", "a round with a quorum carries all of the model"),
    ],
)
def test_what_is_none_is_refused_and_what_there_is_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        named(text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LocalSGD(h=0), "^h is 0, expected a whole number of at least 1"),
        (lambda: LocalSGD(h=1.5), "^h is 1.5, expected a whole number of at least 1"),  # type: ignore[arg-type]
        (lambda: LocalSGD(h="8"), "^h is '8', expected a whole number of at least 1"),  # type: ignore[arg-type]
        (lambda: LocalSGD(h=True), "^h is True, expected a whole number of at least 1"),
        (lambda: DiLoCo(outer=float("nan")), "^outer is nan, expected a finite number"),
        (lambda: Every(1.5, ElasticAverage()), "^Every: count is 1.5, expected a whole number of"),  # type: ignore[arg-type]
    ],
)
def test_a_script_is_answered_in_its_own_words(make: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


def test_a_whole_number_of_numpy_is_one() -> None:
    assert LocalSGD(h=np.int64(4)).name == "localsgd:h=4"  # type: ignore[arg-type]


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


def test_what_a_worker_keeps_of_its_own_is_in_the_name() -> None:
    assert DiLoCo(mix=0.5).called != DiLoCo().called
    waits = DiLoCo(quorum=0.75, mix=0.5)
    assert waits.called != DiLoCo(quorum=0.75).called
    assert str(named(waits.called)) == str(waits)
