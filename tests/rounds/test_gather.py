"""What each worker has, for all: alone, and in simulated jobs in which workers die, join and leave
over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.fabric.sim.faults import Arrival
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD
from tests.rounds.asking import Asking, AskingOnly, check_resumed, parts_if_the_first_dies
from tests.simulated import Final, bits, gradient, params
from tests.test_member import agree, campaign, joined


def test_alone_it_returns_a_copy_of_the_own_value(trainer: Any) -> None:
    value = {"of": (1, None, "x"), "table": np.arange(6.0).reshape(2, 3), 3: []}
    found = trainer.gather(value)
    assert [*found] == [0]
    assert found[0]["of"] == (1, None, "x")
    assert found[0][3] == []
    found[0]["table"] += 1
    assert value["table"][0, 0] == 0.0


def test_what_has_no_bytes_is_refused_before_anything_is_sent(trainer: Any) -> None:
    with pytest.raises(UsageError, match=r"worker 0: trainer.gather\(\): values of <class 'set'>"):
        trainer.gather({1, 2})
    assert trainer.gather(0) == {0: 0}


def test_it_belongs_inside_the_block() -> None:
    one = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD())
    with pytest.raises(
        UsageError, match=r"trainer.gather\(\) belongs inside `with spotmpi.Trainer"
    ):
        one.gather(1)


class Gathers(Asking):
    """Values of another size from each worker, and of one size."""

    def ask(self, trainer: Any, size: int) -> Sequence[int]:
        """Gather them with something that is equal on all."""
        me = trainer.worker
        found = trainer.gather({"what": size, "size": np.arange(me), "all": bytes(me)})
        for one, value in found.items():
            assert value["what"] == size
            assert value["all"] == bytes(one)
            assert value["size"].tolist() == [*range(one)]
        alike = trainer.gather([size, me])
        assert alike == {one: [size, one] for one in alike}
        return [*alike]


def test_newcomers_are_told_what_the_others_were(tmp_path: Path) -> None:
    results = campaign(Gathers(tmp_path / "calm", 3), runs=6, holds=agree)
    assert len(joined(results)) > 1


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(20_000, 22_000, 400))
def test_a_long_campaign(tmp_path: Path, first: int) -> None:
    results = campaign(Gathers(tmp_path / "calm", 4), runs=400, first=first, holds=agree)
    assert len(joined(results)) > 100


@dataclass(frozen=True)
class Only(AskingOnly):
    """Values of other lengths, or of one."""

    alike: bool = False

    def ask(self, trainer: Any, worker: int) -> Sequence[int]:
        """Of another number in each call."""
        for length in (3, 5):
            found = trainer.gather(self.value(worker, length))
            assert found == {one: self.value(one, length) for one in found}
        return [*found]

    def value(self, worker: int, length: int) -> bytes:
        """Return what a worker has."""
        return bytes([worker]) * (length if self.alike else length + worker)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("seed", [2, 5])
@pytest.mark.first("5-False", "5-True")
def test_the_first_worker_dies_at_any_event_of_it(tmp_path: Path, seed: int, alike: bool) -> None:
    """Then all others have other places among the values, or in the table of lengths, also in one
    that is tried again, be it in place or not."""
    seen = parts_if_the_first_dies(Only(tmp_path, workers=4, seed=seed, alike=alike), 3)
    assert seen == {(0, 1, 2, 3), (1, 2, 3)}


class Alone(Gathers):
    """A script in which newcomers do something once where all others gather."""

    def script(self, worker: int) -> Final:
        """The usual one but for that."""
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            for batch in trainer.batches(self.samples, self.batch_size):
                if trainer.worker not in trainer.workers:
                    trainer.once(int)
                    raise AssertionError("it was not turned away")
                trainer.gather(worker)
                trainer.step(gradient(trainer.params, batch))
        return Final(bits(trainer.params), trainer.steps, Counter(), (), False, (), 0)


def test_a_newcomer_gets_no_value_that_belongs_to_another_call(tmp_path: Path) -> None:
    result = Alone(tmp_path, 2, samples=200, arrivals=[Arrival(2, 60)]).run()
    assert result.finals.keys() == {0, 1}


def test_a_resumed_job_gets_the_values_of_then(tmp_path: Path) -> None:
    check_resumed(Gathers, tmp_path)
