"""Whole training scripts in the simulator: the real `Trainer`, a simulated fabric, any deaths.

Each worker's script runs in a thread of its own, but only one thread of all ever runs: a script
hands the steps that it waits for to the simulation and goes on when they are done. So a run is as
deterministic as the simulation is, and a worker can die at any of its events.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import spotmpi
from spotmpi.fabric import Steps
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice
from spotmpi.fabric.sim.simulated_fabric import SimulatedFabric
from spotmpi.fabric.sim.simulation import Simulation
from spotmpi.fabric.sim.timeline import USUAL, Delays
from spotmpi.launcher_channel import LauncherChannel, Order
from spotmpi.optimizers import Momentum, Optimizer, Schedule
from spotmpi.protocol.membership import Membership
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps
from spotmpi.settings import Settings
from spotmpi.strategies import SSGD, Strategy
from spotmpi.trace import records as trace
from spotmpi.training import elastic, process

_SETTINGS = Settings.from_environ


class Killed(BaseException):
    """Unwinds the script of a worker that died; nothing of spotmpi may notice."""


class Seat(SimulatedFabric):
    """The place of one worker's script in a simulation: a thread that stands in for a process."""

    _of_thread = threading.local()

    def __init__(self, me: int, simulation: Simulation) -> None:
        super().__init__(me, simulation)
        self.process = process.Process(self)
        self._from_script: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._to_script: queue.SimpleQueue[Any] = queue.SimpleQueue()

    @classmethod
    def mine(cls) -> Seat:
        """The seat of the calling thread, which stands in for a process."""
        return cls._of_thread.seat

    @classmethod
    def settings(cls) -> Settings:
        """The environment's, and whether the calling thread's worker comes late."""
        seat = cls.mine()
        late = seat.me not in seat.membership
        return replace(_SETTINGS(), newcomer=seat.me if late else None)

    def run(self, steps: Steps[Any]) -> Any:
        """In the script's thread: wait until the simulation has performed ``steps``."""
        self._from_script.put(("run", steps))
        reply, error = self._to_script.get()
        if error is not None:
            raise error
        return reply

    def perform_script(self, script: Callable[[], Any]) -> Steps[Any]:
        """In the simulation's thread: all that ``script`` asks for, until it returns."""
        thread = threading.Thread(target=self._execute, args=(script,), daemon=True)
        thread.start()
        over = False
        try:
            while True:
                what, value = self._from_script.get()
                if what != "run":
                    over = True
                    if what == "raised":
                        raise value
                    return value
                try:
                    reply = (yield from value), None
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - the script's to catch
                    reply = None, error
                self._to_script.put(reply)
        finally:
            if not over:
                self._to_script.put((None, Killed()))
            thread.join()

    def _execute(self, script: Callable[[], Any]) -> None:
        self._of_thread.seat = self
        try:
            self._from_script.put(("returned", script()))
        except BaseException as error:  # noqa: BLE001 - raised again in the simulation's thread
            self._from_script.put(("raised", error))


def params(worker: int) -> dict[str, np.ndarray]:
    """Two dtypes and an odd shape; only worker 0's values may count."""
    return {"w": np.full(5, worker / 4, np.float32), "b": np.array(float(worker), np.float64)}


def gradient(params: dict[str, np.ndarray], samples: np.ndarray) -> dict[str, np.ndarray]:
    """The mean gradient of least squares on made-up samples; its bits depend on all of them."""
    x = np.sin(np.arange(1, 6, dtype=np.float32) * (samples[:, None] + 1)).astype(np.float32)
    # No BLAS: it may raise floating point flags on finite numbers, and warnings are errors.
    error = (x * params["w"]).sum(1) + np.float32(params["b"]) - np.cos(samples).astype(np.float32)
    return {"w": (error[:, None] * x).mean(0), "b": np.array(error.mean(), np.float64)}


def bits(params: dict[str, np.ndarray]) -> bytes:
    """Equal if and only if every bit is."""
    return b"".join(params[key].tobytes() for key in sorted(params))


class Model(NamedTuple):
    """What is trained."""

    params: Callable[[int], Any] = params
    gradient: Callable[[Any, np.ndarray], Any] = gradient
    bits: Callable[[Any], bytes] = bits


@dataclass(frozen=True)
class Final:
    """What one script saw at its end."""

    bits: bytes
    steps: int
    gradients: Counter[int]
    """How many it computed in each step."""
    losses: tuple[float, ...]
    stopped: bool
    means: tuple[float, ...]
    began: int
    """The first step that it computed a gradient for that could count."""
    own: bytes = b""
    """Of the parameters that it trained itself; ``bits`` are those of the model of all."""


@dataclass(frozen=True)
class Job:
    """A training job; everything about a run of it follows from these."""

    folder: Path
    workers: int = 4
    seed: int = 0
    kills: Sequence[Kill] = ()
    arrivals: Sequence[Arrival] = ()
    notices: Sequence[LeaveNotice] = ()
    samples: int = 37
    batch_size: int = 2
    passes: int = 2
    optimizer: Callable[[], Optimizer] = lambda: Momentum(lr=0.05)
    strategy: Callable[[], Strategy] = SSGD
    environ: dict[str, str] = field(default_factory=dict)
    scale_lr: str = "linear"
    lr_warmup: int = 0
    model: Model = field(default_factory=Model)
    delays: Delays = USUAL
    born_in_place: bool = False
    """Gradients are computed into `trainer.gradients`, and a mean is asked for before the step."""
    in_pieces: bool = False
    """Gradients are given one by one, some or all of them, each from a bucket of its own."""

    @property
    def trace(self) -> Path:
        """The file that all runs of this job in this folder share."""
        return self.folder / "trace.jsonl"

    def script(self, worker: int) -> Final:
        """What a user would write; one pass a loop, with a mean after each."""
        gradients: Counter[int] = Counter()
        losses, means, stopped, began = [], [], False, 0
        trainer = spotmpi.Trainer(
            self.model.params(worker),
            optimizer=self.optimizer(),
            strategy=self.strategy(),
            seed=self.seed,
            scale_lr=self.scale_lr,
            lr_warmup=self.lr_warmup,
            bucket_mb=1e-9 if self.in_pieces else 25.0,
        )
        try:
            with trainer:
                for _ in trainer.passes(self.passes):
                    for batch in trainer.batches(self.samples, self.batch_size):
                        rehearsal = trainer.worker not in trainer.workers
                        gradients[trainer.steps] += not rehearsal
                        grads = self.model.gradient(trainer.params, batch)
                        if self.in_pieces:
                            grads = self._give(trainer, grads, (trainer.steps + worker) % 4)
                        elif self.born_in_place:
                            for key, array in trainer.gradients.items():
                                array[...] = grads[key]
                            grads = trainer.gradients
                            assert trainer.mean(1.0) == 1.0
                        trainer.step(grads, loss=1.0)
                        losses.append(trainer.loss)
                        began = trainer.steps if rehearsal else began
                    means.append(trainer.mean(2.0))
        except spotmpi.Stopped:
            stopped = True
        final = self.model.bits(trainer.model), trainer.steps, gradients, tuple(losses)
        own = self.model.bits(trainer.params)
        return Final(*final, stopped, tuple(means), began, own)

    def _give(self, trainer: Any, grads: Any, how: int) -> Any:
        """Give one of them, all in one order or the other, or none; returns what is left."""
        if self.born_in_place:
            for key, array in trainer.gradients.items():
                array[...] = grads[key]
            grads = trainer.gradients
        order = list(grads)[:: -1 if how == 1 else 1][: [0, 2, 2, 1][how]]
        for key in order:
            trainer.ready(key, grads[key])
        left = {key: array for key, array in grads.items() if key not in order}
        return left or None

    def run(self) -> Result:
        """Run it to its end in a simulation of its own."""
        membership = Membership.first(["sim"] * self.workers)
        simulation = Simulation(
            membership,
            self.seed,
            self.kills,
            self.delays,
            arrivals=self.arrivals,
            notices=self.notices,
            in_place=self.seed % 2 == 0,
            weighs=self.seed % 4 == 1,
        )

        def steps(worker: int) -> Steps[Any]:
            return Seat(worker, simulation).perform_script(self._script_of(worker))

        simulation.newcomer = steps
        for worker in membership.ids:
            simulation.start(worker, steps(worker))
        with self._surroundings(simulation):
            try:
                simulation.run()
            finally:
                simulation.close()
        returned = simulation.workers.returned
        ended = {w: final for w, final in returned.items() if final is not None}
        return Result(self, ended, simulation.time.events, list(trace.read(self.trace)))

    def _script_of(self, worker: int) -> Callable[[], Final | None]:
        def script() -> Final | None:
            try:
                return self.script(worker)
            except spotmpi.errors.Left:
                return None

        return script

    @contextlib.contextmanager
    def _surroundings(self, simulation: Simulation) -> Iterator[None]:
        environ = {
            "SPOTMPI_JOB": "simulated",
            "OMPI_COMM_WORLD_SIZE": str(self.workers),
            "SPOTMPI_TRACE": str(self.trace),
            **self.environ,
        }
        traces: list[trace.Trace] = []
        channels: list[LauncherChannel] = []
        of_settings = LauncherChannel.open

        def opened(path: Path | None) -> trace.Trace:
            traces.append(trace.Trace(path))
            return traces[-1]

        def channel(given: Settings) -> LauncherChannel:
            channels.append(of_settings(given))
            return channels[-1]

        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as files:
            # A worker that is killed closes nothing: its process would.
            files.callback(lambda: [one.close() for one in (*traces, *channels)])
            patch.setattr(process, "Trace", opened)
            patch.setattr(LauncherChannel, "open", channel)
            for name, value in environ.items():
                patch.setenv(name, value)
            patch.setattr(elastic, "this_process", lambda: Seat.mine().process)
            patch.setattr(Settings, "from_environ", Seat.settings)

            def order(_channel: LauncherChannel, worker: int) -> Order:
                return Order(leave=simulation.faults.noticed(worker))

            def confirm(_channel: LauncherChannel, workers: Sequence[int]) -> None:
                first = simulation.membership  # a newcomer that is turned away ends by itself
                assert all(one in simulation.deaths for one in workers if one in first)

            patch.setattr(LauncherChannel, "confirm", confirm)
            if self.notices or self.arrivals:
                patch.setattr(LauncherChannel, "order_for", order)
            yield


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    job: Job
    finals: dict[int, Final]
    """Of the workers that reached the end of their script."""
    events: int
    records: list[trace.Record]

    def of(self, event: str) -> list[trace.Record]:
        """The trace's records of one kind."""
        return [record for record in self.records if record["event"] == event]


def check(result: Result) -> None:
    """All that a job promises, whoever died and whenever; by its trace and by its survivors."""
    job, finals, done = result.job, result.finals, steps(result.records)
    if not finals:
        return
    # Nothing is lost, nothing is used twice, and the replicas are what the trace says, to the bit.
    check_exactly_once(result.records, job.samples, job.passes)
    check_replicas(result.records)
    # Worker 0's parameters count, or the next one's if it died before it gave them to anybody.
    given = range(done[0]["workers"][0] + 1)
    truths = [bits(replay(done, params(first), gradient, job.optimizer())) for first in given]
    assert len({final.bits for final in finals.values()}) == 1
    assert next(iter(finals.values())).bits in truths
    assert {final.steps for final in finals.values()} == {len(done)}
    # Each step is in the trace once, and no survivor computed a gradient twice or in vain.
    assert Counter(record["step"] for record in result.of("step")) == dict.fromkeys(
        range(len(done)), 1
    )
    check_gradients(result)
    for final in finals.values():
        assert set(final.losses) <= {1.0}
        assert set(final.means) == {2.0}
        whole = not (final.began or "SPOTMPI_RESUME" in job.environ)
        assert len(final.means) == job.passes or not whole, "only they miss passes"
    assert [record["rate"] for record in done] == pytest.approx(list(rates(job, done)), abs=1e-15)
    for record in done:
        assert [part["worker"] for part in record["contributions"]] == record["workers"]
    for record in result.of("recovery") + result.of("recovered"):
        assert record["lost_steps"] == record["recomputed_gradients"] == 0
    for record in result.of("recovered"):
        assert record["settlement"] in ("retried", "received", "gave")
    assert len(result.of("end")) <= 1


def rates(job: Job, done: Sequence[trace.Record]) -> Iterator[float]:
    """The learning rate of each step, as the trace must have it."""
    lr: Any = job.optimizer().lr
    changes: list[tuple[float, float]] = []
    """For each step that moved anything: the factor that it used, and the one to come to."""
    for record in done:
        active = sum(part["weight"] > 0 for part in record["contributions"])
        share = active / job.workers
        aim = {"linear": share, "sqrt": share**0.5, "none": 1.0}[job.scale_lr]
        since = next((n for n, one in enumerate(changes[::-1]) if one[1] != aim), len(changes))
        factor = aim
        if changes and since < min(len(changes), job.lr_warmup):
            start = changes[-1 - since][0]
            factor = start + (aim - start) * (since + 1) / job.lr_warmup
        if active:
            changes.append((factor, aim))
        yield factor * (lr.rate(record["step"]) if isinstance(lr, Schedule) else lr)


def check_gradients(result: Result) -> None:
    """Survivors computed a gradient for each step that they contributed to, and no other."""
    for worker, final in result.finals.items():
        contributed = [
            record["step"]
            for record in steps(result.records)
            for part in record["contributions"]
            if part["worker"] == worker
        ]
        assert final.gradients == Counter(contributed)


def campaign(
    calm: Job,
    seeds: range,
    changes: Callable[[int, int], Mapping[str, Any]],
    holds: Callable[[Result], None] = check,
) -> list[Result]:
    """Seeded runs of one kind of job; each is checked.

    ``changes(events, seed)``: what happens in it, as fields of `Job`. ``calm``, in which nothing
    does, tells how many events there are.
    """
    calm.folder.mkdir(parents=True)
    events = calm.run().events
    results = []
    for seed in seeds:
        drawn = changes(events, seed)
        job = replace(calm, folder=calm.folder / f"{seed}", seed=seed, **drawn)
        job.folder.mkdir()
        try:
            result = job.run()
            holds(result)
        except Exception as error:
            raise AssertionError(f"{calm.workers} workers, seed {seed}, {drawn}") from error
        results.append(result)
    return results


def deaths(workers: int, events: int, seed: int, at_most: int | None = None) -> tuple[Kill, ...]:
    """A seeded schedule for a run of so many ``events``: one death or more, mostly near others."""
    chance = random.Random(seed)
    losses = min(1 + int(chance.expovariate(0.5)), at_most or workers)
    moment, kills = chance.randrange(events), []
    for victim in chance.sample(range(workers), losses):
        kills.append(Kill(victim, moment))
        near = chance.random() < 0.8
        moment = moment + chance.randrange(8 * workers) if near else chance.randrange(events)
    return tuple(kills)
