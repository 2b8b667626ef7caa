"""What each worker has, for all: alone, and in simulated jobs in which workers die, join and leave
over it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD
from tests.simulated import Final, Job, Result, bits, gradient, params
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


@dataclass(frozen=True)
class Gathers(Job):
    """A script that gathers values of another size from each worker, in its loops and outside.

    Some calls stand before a step and some behind it, together with things that are done once.
    """

    def script(self, worker: int) -> Final:
        """What is gathered outside of a loop is the same for a worker that comes later."""
        first, last = [], []
        began, stopped = 0, False
        trainer = spotmpi.Trainer(
            params(worker), optimizer=self.optimizer(), strategy=SSGD(), seed=self.seed
        )

        def gather(what: str) -> list[int]:
            found = trainer.gather({"what": what, "size": np.arange(worker), "all": bytes(worker)})
            for one, value in found.items():
                assert value["what"] == what
                assert value["all"] == bytes(one)
                assert value["size"].tolist() == [*range(one)]
            return [*found]

        def once(what: str) -> None:
            assert trainer.once(lambda: what) == what

        try:
            with trainer:
                first = gather("first")
                for number in trainer.passes(self.passes):
                    for batch in trainer.batches(self.samples, self.batch_size):
                        rehearsal, steps = trainer.worker not in trainer.workers, trainer.steps
                        if steps % 2 == 0:
                            once("before")
                        if steps % 3 == 0:
                            assert (trainer.worker in gather("before")) != rehearsal
                        trainer.step(gradient(trainer.params, batch))
                        began = trainer.steps if rehearsal else began
                        if trainer.steps % 3 == 1:
                            assert trainer.worker in gather("behind")
                        if trainer.steps % 4 == 0:
                            once("behind")
                    last = gather(f"after {number}")
        except spotmpi.Stopped:
            stopped = True
        final = bits(trainer.params), trainer.steps, Counter[int](), ()
        return Final(*final, stopped, tuple(map(float, [*first, -1, *last])), began)


def test_newcomers_are_told_what_the_others_were(tmp_path: Path) -> None:
    results = campaign(Gathers(tmp_path / "calm", 3), runs=12, holds=agree)
    assert len(joined(results)) > 4


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(20_000, 22_000, 400))
def test_a_long_campaign(tmp_path: Path, first: int) -> None:
    results = campaign(Gathers(tmp_path / "calm", 4), runs=400, first=first, holds=agree)
    assert len(joined(results)) > 100


class Only(Job):
    """A script that does nothing else."""

    def script(self, worker: int) -> Final:
        """Values of other lengths."""
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            for length in (3, 5):
                found = trainer.gather(bytes([worker]) * (length + worker))
                assert found == {one: bytes([one]) * (length + one) for one in found}
        return Final(b"", 0, Counter(), (), False, tuple(map(float, found)), 0)


@pytest.mark.parametrize("seed", [2, 5])
def test_the_first_worker_dies_at_any_event_of_it(tmp_path: Path, seed: int) -> None:
    """Then all others have other places in the table, also in one that is tried again, be it in
    place or not."""
    job = Only(tmp_path, workers=4, seed=seed)
    seen = set()
    for at in range(0, job.run().events, 3):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        finals = replace(job, folder=folder, kills=[Kill(0, at)]).run().finals
        assert {1, 2, 3} <= finals.keys()
        assert len({finals[worker].means for worker in (1, 2, 3)}) == 1
        seen.add(finals[1].means)
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
    """Outside of loops, whichever workers it has now."""
    environ = {"SPOTMPI_CHECKPOINT": str(tmp_path / "kept")}
    first = Gathers(tmp_path, 3, samples=90, environ=environ)
    notices = [LeaveNotice(worker, 150) for worker in range(3)]
    stopped: Result = replace(first, notices=notices).run()
    assert all(final.stopped for final in stopped.finals.values())
    again = replace(first, workers=5, environ={**environ, "SPOTMPI_RESUME": "1"})
    again = replace(again, folder=tmp_path / "again")
    again.folder.mkdir()
    finals = again.run().finals
    assert finals.keys() == {*range(5)}
    assert len({final.means for final in finals.values()}) == 1
    assert finals[0].means == (0, 1, 2, -1, *range(5))
