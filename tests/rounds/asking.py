"""Scripts that ask for something of all workers, in their loops and outside, while workers die,
join and leave."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import spotmpi
from spotmpi.fabric.sim.faults import Kill, LeaveNotice
from spotmpi.strategies import SSGD
from tests.simulated import Final, Job, Result, bits, gradient, params


@dataclass(frozen=True)
class Asking(Job):
    """A script with calls before a step and behind it, together with things that are done once."""

    @abstractmethod
    def ask(self, trainer: Any, size: int) -> Sequence[int]:
        """Make a call, check what comes, and return the workers that have a part in it."""

    def script(self, worker: int) -> Final:
        """What is asked outside of a loop is the same for a worker that comes later."""
        first: Sequence[int] = ()
        last: Sequence[int] = ()
        began, stopped = 0, False
        trainer = spotmpi.Trainer(
            params(worker), optimizer=self.optimizer(), strategy=SSGD(), seed=self.seed
        )

        def once(what: str) -> None:
            assert trainer.once(lambda: what) == what

        try:
            with trainer:
                first = self.ask(trainer, 3)
                for number in trainer.passes(self.passes):
                    for batch in trainer.batches(self.samples, self.batch_size):
                        rehearsal, steps = trainer.worker not in trainer.workers, trainer.steps
                        if steps % 2 == 0:
                            once("before")
                        if steps % 3 == 0:
                            assert (trainer.worker in self.ask(trainer, steps + 1)) != rehearsal
                        trainer.step(gradient(trainer.params, batch))
                        began = trainer.steps if rehearsal else began
                        if trainer.steps % 3 == 1:
                            assert trainer.worker in self.ask(trainer, 5)
                        if trainer.steps % 4 == 0:
                            once("behind")
                    last = self.ask(trainer, 1 + number)
        except spotmpi.Stopped:
            stopped = True
        final = bits(trainer.params), trainer.steps, Counter[int](), ()
        return Final(*final, stopped, tuple(map(float, [*first, -1, *last])), began)


class AskingOnly(Job):
    """A script that does nothing else; a final's means are the workers of its last call."""

    @abstractmethod
    def ask(self, trainer: Any, worker: int) -> Sequence[int]:
        """Make calls, check what comes, and return the workers that have a part in the last."""

    def script(self, worker: int) -> Final:
        """All of it."""
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            found = self.ask(trainer, worker)
        return Final(b"", 0, Counter(), (), False, tuple(map(float, found)), 0)


def parts_if_the_first_dies(job: AskingOnly, every: int) -> set[tuple[float, ...]]:
    """Return what the others saw if worker 0 of 4 dies, at each of ``every`` events: all of them
    the same."""
    seen = set()
    for at in range(0, job.run().events, every):
        folder = job.folder / f"{at}"
        folder.mkdir()
        finals = replace(job, folder=folder, kills=[Kill(0, at)]).run().finals
        assert {1, 2, 3} <= finals.keys()
        assert len({finals[worker].means for worker in (1, 2, 3)}) == 1
        seen.add(finals[1].means)
    return seen


def check_resumed(kind: type[Asking], folder: Path) -> None:
    """Outside of loops a resumed job gets what was there then, whichever workers it has now."""
    environ = {"SPOTMPI_CHECKPOINT": str(folder / "kept")}
    first = kind(folder, 3, samples=90, environ=environ)
    notices = [LeaveNotice(worker, 150) for worker in range(3)]
    stopped: Result = replace(first, notices=notices).run()
    assert all(final.stopped for final in stopped.finals.values())
    again = replace(first, workers=5, environ={**environ, "SPOTMPI_RESUME": "1"})
    again = replace(again, folder=folder / "again")
    again.folder.mkdir()
    finals = again.run().finals
    assert finals.keys() == {*range(5)}
    assert len({final.means for final in finals.values()}) == 1
    assert finals[0].means == (0, 1, 2, -1, *range(5))
