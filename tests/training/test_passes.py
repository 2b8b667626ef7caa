"""Loops over passes: of jobs that are resumed, of newcomers, and where workers die in them."""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import CheckpointError, OnceError, UsageError
from spotmpi.fabric.sim.faults import Kill
from spotmpi.optimizers import SGD
from spotmpi.replay import check_exactly_once
from spotmpi.strategies import SSGD
from spotmpi.training.history import History
from spotmpi.training.keeping import checkpoint_file
from spotmpi.training.process import this_process
from tests.simulated import Final, Job, Result, bits, check, gradient, params
from tests.test_member import campaign, joined

PASSES = 4


@dataclass
class Seen:
    """What the scripts of one run went through."""

    passes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By worker, those that it was to go through."""
    worked: list[str] = field(default_factory=list)
    """What was done once, in order."""
    said: list[str] = field(default_factory=list)
    """Losses, as scripts print them."""
    last: dict[int, Any] = field(default_factory=dict)
    """By worker, what it had from the last evaluation in the end."""
    behind: dict[int, Any] = field(default_factory=dict)
    """By worker, what was done once behind the loop."""


SEEN: dict[tuple[Path, bool], Seen] = defaultdict(Seen)
"""By the folder of the job, and whether it was resumed."""


@dataclass(frozen=True)
class Evaluated(Job):
    """Evaluates, prints and saves after each pass, and once more behind the last one.

    How many evaluations there were goes from one to the next, as a script's best result would.
    """

    passes: int = PASSES
    loop: Callable[[Any, int], Iterable[int]] = lambda trainer, n: trainer.passes(n)
    most: int | None = None
    """Steps after which the script leaves its loop."""

    @property
    def seen(self) -> Seen:
        """Of this run."""
        return SEEN[self.folder, "SPOTMPI_RESUME" in self.environ]

    def script(self, worker: int) -> Final:
        """An ordinary loop over passes."""
        seen = self.seen
        gradients: Counter[int] = Counter()
        losses, means, began = [], [], 0
        trainer = spotmpi.Trainer(
            params(worker),
            optimizer=self.optimizer(),
            strategy=self.strategy(),
            seed=self.seed,
            scale_lr=self.scale_lr,
        )

        def do(what: str, value: Any = None) -> Any:
            seen.worked.append(what)
            return value

        with trainer:

            def evaluate() -> Any:
                before = trainer.last_once(evaluate) or {"count": 0}
                return do(f"evaluate {number}", {"count": before["count"] + 1, "pass": number})

            def behind() -> Any:
                return do("behind", trainer.steps)

            trainer.once(lambda: do("prepare"))
            for number in self.loop(trainer, self.passes):
                seen.passes[worker].append(number)
                for batch in trainer.batches(self.samples, self.batch_size):
                    rehearsal = trainer.worker not in trainer.workers
                    gradients[trainer.steps] += not rehearsal
                    assert trainer.loss == (1.0 if trainer.steps else None)
                    trainer.step(gradient(trainer.params, batch), loss=1.0)
                    losses.append(trainer.loss)
                    began = trainer.steps if rehearsal else began
                    if self.most is not None and trainer.steps >= self.most:
                        break
                trainer.once(evaluate)
                seen.said.append(f"{trainer.loss:.4f}")
                trainer.once(partial(do, f"save {number}"))
                means.append(trainer.mean(2.0))
                if self.most is not None and trainer.steps >= self.most:
                    break
            seen.last[worker] = trainer.last_once(evaluate)
            seen.behind[worker] = trainer.once(behind)
        final = bits(trainer.params), trainer.steps, gradients, tuple(losses)
        return Final(*final, False, tuple(means), began)

    def resumed(self, **more: Any) -> Evaluated:
        """The same on two workers, from where it was kept."""
        environ = {**self.environ, "SPOTMPI_RESUME": "1"}
        return replace(self, kills=(), workers=2, environ=environ, **more)


def keeping(folder: Path, **more: Any) -> Evaluated:
    """A job with a checkpoint after every third step, so in the middle of most passes."""
    folder.mkdir(exist_ok=True)
    environ = {"SPOTMPI_CHECKPOINT": str(folder / "kept"), "SPOTMPI_CHECKPOINT_EVERY": "3"}
    given: dict[str, Any] = {"optimizer": lambda: SGD(lr=0.05), "scale_lr": "none", **more}
    return Evaluated(folder, 3, environ=environ, **given)


def dies(folder: Path, share: float, **more: Any) -> Evaluated:
    """One of which all workers die after such a share of it."""
    calm = keeping(folder / "calm", **more)
    at = int(calm.run().events * share)
    kills = [Kill(worker, at + 2 * worker) for worker in range(3)]
    job = replace(keeping(folder / "job", **more), kills=kills)
    assert not job.run().finals
    return job


def whole(result: Result) -> None:
    """Every evaluation was made, and every sample was used once, in all runs of the job."""
    job = result.job
    assert isinstance(job, Evaluated)
    check_exactly_once(result.records, job.samples, job.passes)
    assert result.finals
    for worker in result.finals:
        assert job.seen.last[worker] == {"count": job.passes, "pass": job.passes - 1}


def test_nothing_is_missing_or_twice_where_nothing_happens(tmp_path: Path) -> None:
    result = keeping(tmp_path).run()
    check(result)
    whole(result)
    seen = SEEN[tmp_path, False]
    assert seen.passes == {worker: [*range(PASSES)] for worker in range(3)}
    each = [f"{what} {number}" for number in range(PASSES) for what in ("evaluate", "save")]
    assert seen.worked == ["prepare", *each, "behind"]


def test_a_resumed_loop_goes_through_the_passes_that_are_left(tmp_path: Path) -> None:
    """Whenever all workers died: in a pass, in what is done once after it, or behind the loop."""
    firsts = set()
    calm = keeping(tmp_path / "calm")
    events = calm.run().events
    for at in range(100, events, 89):
        kills = [Kill(worker, at + 2 * worker) for worker in range(3)]
        job = replace(keeping(tmp_path / f"{at}"), kills=kills)
        if job.run().finals or not any((job.folder / "kept").glob("*.h5")):
            continue
        second = job.resumed()
        whole(second.run())
        before, after = job.seen, second.seen
        (left,) = {tuple(passes) for passes in after.passes.values()} or {()}
        assert left == tuple(range(PASSES))[PASSES - len(left) :]
        firsts.add(left[:1])
        # Of earlier passes nothing is done again; of the rest all is done.
        assert after.said == ["1.0000"] * len(left) * 2
        again = [what for what in after.worked if what in before.worked]
        assert "prepare" not in after.worked
        assert {f"evaluate {number}" for number in left[1:]} <= {*after.worked}
        assert {what.split()[-1] for what in again} <= {"behind", *map(str, left)}
        assert len(after.worked) == len({*after.worked})
    assert {(number,) for number in range(PASSES)} <= firsts, firsts


def test_a_finished_loop_has_nothing_left_and_what_was_done_behind_it_is_told(
    tmp_path: Path,
) -> None:
    job = keeping(tmp_path)
    steps = {final.steps for final in job.run().finals.values()}
    again = job.resumed()
    whole(again.run())
    assert not again.seen.passes
    assert again.seen.worked == []
    assert {*again.seen.behind.values()} == steps


def test_more_passes_go_on_and_what_stands_behind_them_is_done_anew(tmp_path: Path) -> None:
    job = keeping(tmp_path)
    first = job.run()
    more = job.resumed(passes=PASSES + 2)
    result = more.run()
    whole(result)
    assert more.seen.passes == {worker: [PASSES, PASSES + 1] for worker in range(2)}
    assert more.seen.worked[-1] == "behind"
    (steps,) = {*more.seen.behind.values()}
    assert steps == result.finals[0].steps > first.finals[0].steps


def test_a_loop_that_was_left_early_goes_on_where_it_is_to_take_longer(tmp_path: Path) -> None:
    job = keeping(tmp_path, most=6)
    assert job.run().finals[0].steps == 6
    more = job.resumed(most=11)
    result = more.run()
    assert result.finals[0].steps == 11
    assert more.seen.passes[0][0] == SEEN[tmp_path, False].passes[0][-1]
    assert more.seen.worked[-1] == "behind"


def test_an_ordinary_loop_repeats_nothing_that_was_done_once_and_says_what_it_repeats(
    tmp_path: Path,
) -> None:
    """It goes through all passes again, and is told what it was told in them."""
    job = dies(tmp_path, 0.7, loop=lambda _trainer, n: range(n))
    with pytest.warns(RuntimeWarning, match=r"`for number in trainer\.passes\(n\)`") as said:
        result = job.resumed().run()
    whole(result)
    assert len(said) == 1
    assert str(said[0].message).startswith("this script was resumed at step ")
    seen = SEEN[job.folder, True]
    assert seen.passes == {worker: [*range(PASSES)] for worker in range(2)}
    assert seen.said == ["1.0000"] * 2 * PASSES
    assert "evaluate 0" not in seen.worked
    assert "evaluate 1" not in seen.worked
    assert "evaluate 3" in seen.worked


def test_one_loop_over_batches_repeats_nothing_and_says_nothing(tmp_path: Path) -> None:
    job = Single(**vars(keeping(tmp_path)))
    job.run()
    with warnings.catch_warnings(record=True) as said:
        result = job.resumed().run()
    assert not said
    assert SEEN[tmp_path, True].worked == []
    assert result.finals[0].steps == result.finals[1].steps > 0
    job.resumed(passes=PASSES + 1).run()
    assert SEEN[tmp_path, True].worked == ["report"], "of the longer training"


class Single(Evaluated):
    """All passes in one loop over batches."""

    def script(self, worker: int) -> Final:
        """As in the README."""
        trainer = spotmpi.Trainer(params(worker), optimizer=SGD(lr=0.1), seed=self.seed)
        with trainer:
            for batch in trainer.batches(self.samples, self.batch_size, self.passes):
                trainer.step(gradient(trainer.params, batch))
            trainer.once(lambda: self.seen.worked.append("report"))
        return Final(b"", trainer.steps, Counter(), (), False, (), 0)


@pytest.mark.parametrize("ordinary", [False, True])
def test_a_checkpoint_of_an_older_version_is_resumed(tmp_path: Path, ordinary: bool) -> None:
    """It does not say what was done in passes: all of that is done again, and samples are not."""
    more: dict[str, Any] = {"loop": lambda _trainer, n: range(n)} if ordinary else {}
    job = dies(tmp_path, 0.7, **more)
    kept = job.folder / "kept"
    found = checkpoint_file.load_latest(kept, pytest.fail)
    assert {"script", "loss"} <= found.state.keys()
    state = {key: one for key, one in found.state.items() if key not in ("script", "loss", "steps")}
    for path in kept.glob("*.h5"):
        path.unlink()
    checkpoint_file.save(kept, found.step, {**state, "loss": 1.0}, found.about)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = job.resumed().run()
    check_exactly_once(result.records, job.samples, job.passes)
    assert len(said) == ordinary
    assert "evaluate 0" in SEEN[job.folder, True].worked


@pytest.mark.parametrize(
    "script",
    [
        "",
        "[]",
        "{",
        '{"loops": [[0, 1000000000000, 0, false]], "answers": [], "last": {}, "early": []}',
        '{"loops": [], "answers": [[0, null, "AAAA"]], "last": {}, "early": []}',
        '{"loops": [], "answers": [], "last": {"x": "AAAA"}, "early": []}',
        '{"loops": [], "answers": [], "last": [], "early": []}',
        '{"loops": [["x"]], "answers": [], "last": {}, "early": []}',
        '{"loops": [], "answers": [[0, null, ["x"]]], "last": {}, "early": []}',
        "[" * 100_000,
    ],
)
def test_a_checkpoint_that_says_nonsense_of_the_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path))
    with alone() as trainer:
        trainer.step(params(0))
    found = checkpoint_file.load_latest(tmp_path, pytest.fail)
    state = {**found.state, "script": script}
    checkpoint_file.save(tmp_path, found.step, state, found.about)
    monkeypatch.setenv("SPOTMPI_RESUME", "1")
    with pytest.raises(CheckpointError, match="does not say where its script stood"):
        alone().__enter__()


def is_whole(result: Result) -> None:
    """For all who live; and newcomers went through the last passes only."""
    check(result)
    job = result.job
    assert isinstance(job, Evaluated)
    for worker, final in result.finals.items():
        passes = job.seen.passes[worker]
        assert passes == sorted({*passes})
        assert passes[-1] == job.passes - 1
        assert final.began or passes == [*range(job.passes)]
        assert job.seen.last[worker] == {"count": job.passes, "pass": job.passes - 1}


def test_newcomers_begin_with_the_pass_that_the_others_are_in(tmp_path: Path) -> None:
    """In jobs that workers join, leave and die in, at any event."""
    results = campaign(Evaluated(tmp_path / "calm", 3, samples=29), runs=9, holds=is_whole)
    late = [
        SEEN[result.job.folder, False].passes[worker]
        for result in results
        for worker, final in result.finals.items()
        if final.began
    ]
    assert len(joined(results)) > 2
    assert any(passes[0] > 0 for passes in late), "all came in the first pass"
    assert any(len({*np.diff(passes)}) > 1 or passes[0] == 0 for passes in late)


def test_a_leader_dies_at_any_event_of_what_is_done_once_after_a_pass(tmp_path: Path) -> None:
    job = Evaluated(tmp_path, 3, samples=8, passes=2)
    again = 0
    for at in range(20, job.run().events, 13):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        result = replace(job, folder=folder, kills=[Kill(0, at)]).run()
        is_whole(result)
        again += any(many > 1 for many in Counter(SEEN[folder, False].worked).values())
    assert again > 3


# Alone.


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the tests themselves run under one."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)


def alone() -> Any:
    """A trainer, the first one of its process."""
    this_process().history = History()
    return spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD())


def test_two_loops_follow_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is not begun again, though it was left early, once the second one is there."""
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path))
    seen: list[Any] = []

    def script(passes: int) -> None:
        with alone() as trainer:
            for number in trainer.passes(9):
                for batch in trainer.batches(4, 2):
                    trainer.step(gradient(trainer.params, batch))
                seen.append(("first", number))
                if number == 1:
                    break
            seen.append(trainer.once(lambda: trainer.steps))
            for number in trainer.passes(passes):
                for batch in trainer.batches(6, 2):
                    trainer.step(gradient(trainer.params, batch))
                seen.append(("second", number))

    script(2)
    begins = [("first", 0), ("first", 1), 4]
    assert seen == [*begins, ("second", 0), ("second", 1)]
    seen.clear()
    monkeypatch.setenv("SPOTMPI_RESUME", "1")
    script(3)
    assert seen == [4, ("second", 2)]


def test_a_loop_that_was_left_early_is_over_when_steps_were_taken_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path))
    seen: list[int] = []
    for passes in (1, 2):
        with alone() as trainer:
            for number in trainer.passes(9):
                seen.append(number)
                for batch in trainer.batches(4, 2):
                    trainer.step(gradient(trainer.params, batch))
                break
            for batch in trainer.batches(4, 2, passes):
                trainer.step(gradient(trainer.params, batch))
            assert trainer.steps == 2 + 2 * passes
        monkeypatch.setenv("SPOTMPI_RESUME", "1")
    assert seen == [0]


def test_another_script_is_told_nothing_of_what_it_did_not_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path))

    def evaluate() -> str:
        return "evaluated"

    def report() -> str:
        return "reported"

    for work, size in ((evaluate, 3), (evaluate, 3), (report, 2)):
        with alone() as trainer:
            for batch in trainer.batches(4, 2):
                trainer.step(gradient(trainer.params, batch))
            assert trainer.once(work) == work()
            assert trainer.mean(np.ones(size)).shape == (size,)
        monkeypatch.setenv("SPOTMPI_RESUME", "1")


def test_what_was_returned_last_is_known_for_each_work_and_is_a_copy() -> None:
    size, fails = 2, False

    def table() -> Any:
        return {"table": np.zeros(size), "fine": 1 // (not fails)}

    def number(of: int = 3) -> int:
        return of

    with alone() as trainer:
        assert trainer.last_once(table) is None
        found = trainer.once(table)
        found["table"] += 1
        trainer.once(partial(number, 4))
        assert trainer.last_once(number) == 4
        fails = True
        with pytest.raises(OnceError):
            trainer.once(table)
        assert trainer.last_once(table)["table"].tolist() == [0.0, 0.0]
        size, fails = 1 << 14, False
        trainer.once(table)
        with pytest.raises(
            UsageError, match=r"table\) returned last is not kept, as there are 16 KB"
        ):
            trainer.last_once(table)
        assert trainer.once(number) == trainer.last_once(number) == 3


def test_wrong_calls_are_refused() -> None:
    one = alone()
    with pytest.raises(UsageError, match=r"trainer\.passes\(\) belongs inside `with"):
        next(one.passes(2))
    with one as trainer:
        for wrong in (-1, 1.5, True, "2"):
            with pytest.raises(UsageError, match=r"passes is .*, expected a whole number"):
                next(trainer.passes(wrong))
        assert [*trainer.passes(np.int64(2))] == [0, 1]
        assert [*trainer.passes(0)] == []
        for _ in trainer.passes(1):
            with pytest.raises(UsageError, match=r"inside a loop over passes\(\)"):
                next(trainer.passes(1))
        with pytest.raises(OnceError, match=re.escape("trainer.passes() needs all workers")):
            trainer.once(lambda: next(trainer.passes(1)))
