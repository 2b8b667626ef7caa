"""One worker of a simulated job: the shipped session, and a small script that drives it."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spotmpi.errors import EXIT_REQUEUE, CheckpointError, Left, PeersLost, Stopped
from spotmpi.fabric import AddUp, Fetch, Fetched, Publish, Steps, Work
from spotmpi.fabric.sim.simulated_fabric import SimulatedFabric
from spotmpi.fabric.sim.simulation import Simulation
from spotmpi.launcher_channel import Cause, LauncherChannel, Measured, Order
from spotmpi.operators import PushSum
from spotmpi.optimizers import Momentum
from spotmpi.protocol.exact_means import numbers_of
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices
from spotmpi.settings import Settings
from spotmpi.simulation.checker import Checker, Violation
from spotmpi.simulation.launcher import Launcher
from spotmpi.simulation.means import question
from spotmpi.simulation.model import RATE, Array, cut, first_params, gradient
from spotmpi.simulation.pushes import Ring
from spotmpi.simulation.schedules import Schedule
from spotmpi.strategies import named
from spotmpi.trace.records import Trace
from spotmpi.training.fault_injection import FaultInjection
from spotmpi.training.history import History
from spotmpi.training.joining_worker import JoiningWorker, enter
from spotmpi.training.model import Model
from spotmpi.training.participant import Participant
from spotmpi.training.session import Session
from spotmpi.training.state.rate import Rate
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.worker_context import WorkerContext

BATCH = 3
STEPS = 3
"""Training steps of one pass, more or less: losses add some."""
_SEED = 7
_ALONE = 1e-9
"""MB of a bucket, by which each array has one of its own."""
_IN_PIECES = 0.7
"""Of all steps of models with several arrays: those whose gradients come in pieces."""
_FEW = 0.25
"""Of all runs with rounds of several steps: those whose script leaves its batches early."""
_EVERY = 3
"""Steps between two questions, and between two things that are done once ..."""
_EVERY_DELAYED = 7
"""... with a delay: each makes a round shorter."""


def samples(workers: int) -> int:
    """Of one pass: not quite as many as its workers are dealt in `STEPS`."""
    return BATCH * workers * STEPS - 1


def dealt(schedule: Schedule) -> tuple[int, int]:
    """The samples of one pass, and the passes. With a delay there is one long pass: the last round
    of a pass has none."""
    many, passes = samples(schedule.workers), schedule.passes
    delayed = any(named(one).delay for one in schedule.strategies)
    return (many * passes, min(1, passes)) if delayed else (many, passes)


class Book(Trace):
    """The trace of a simulated job: the checker reads along, and a file may hold it."""

    def __init__(self, checker: Checker, file: Trace) -> None:
        self._checker = checker
        self._file = file

    @property
    def active(self) -> bool:
        """Always."""
        return True

    def begin(self, *, resume: bool) -> None:
        """Simulated runs are never resumed."""
        self._file.begin(resume=resume)

    def write(self, event: str, /, **fields: Any) -> None:
        """To both."""
        self._checker.written(event, fields)
        self._file.write(event, **fields)

    def take_over(self) -> int | None:
        """Whoever leads from now on is told how far the trace is."""
        return self._checker.last_published

    def close(self) -> None:
        """All workers share it: it is not one worker's to close."""


class Board(LauncherChannel):
    """One worker's link to the launcher, if the job has one: nothing else joins newcomers."""

    def __init__(
        self, me: WorkerId, simulation: Simulation, checker: Checker, launcher: Launcher | None
    ) -> None:
        self._me = me
        self._simulation = simulation
        self._checker = checker
        self._launcher = launcher
        self._told: set[tuple[str, int]] = set()

    @property
    def mute(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """It holds nothing."""

    def tell(self, event: str, **fields: Any) -> None:
        """What it says arrives later, but the checker hears at once that all go on."""
        if event == "goes_on":
            self._checker.goes_on(self._me)
        if self._launcher is not None:
            self._launcher.hear(self._me, event, fields)

    def progressed(
        self,
        worker: int,
        rounds: int,
        steps: int,
        doing: int,
        loss: float | None = None,
        measured: Measured = Measured(),  # noqa: B008 - it is a tuple
    ) -> None:
        """Nobody watches."""

    def death_of(self, worker: int) -> float | None:
        """When ``worker`` died, None if it lives."""
        return self._simulation.deaths.get(worker)

    def cause_of(self, worker: int) -> Cause | None:
        """It was killed, or told to go."""
        kind = "notice" if self.death_of(worker) is None else "killed"
        return Cause(kind, "simulated")

    def confirm(self, workers: Collection[int]) -> None:
        """Nobody who lives is taken for dead."""
        first = self._simulation.membership  # a newcomer that is turned away ends by itself
        if living := [one for one in workers if one in first and self.death_of(one) is None]:
            raise Violation(f"a membership without {living}, who live, is about to be sealed")

    def order_for(self, worker: int) -> Order | None:
        """The launcher's, and the schedule's."""
        faults = self._simulation.faults
        stop, leave = faults.stopping, faults.noticed(worker)
        order = Order() if self._launcher is None else self._launcher.order_for(worker)
        return order._replace(stop=stop or order.stop, leave=leave or order.leave)


class Trainee:
    """One worker."""

    def __init__(
        self,
        me: WorkerId,
        simulation: Simulation,
        checker: Checker,
        trace: Trace,
        settings: Settings,
        schedule: Schedule,
        launcher: Launcher | None,
        version: str,
    ) -> None:
        """A newcomer is told so by its settings."""
        self.me = me
        self._simulation = simulation
        self._checker = checker
        self._samples, self._passes = dealt(schedule)
        optimizer = Momentum(lr=RATE)
        self._arrays = schedule.arrays
        strategies = list(map(named, schedule.strategies))
        self._strategies = schedule.strategies
        self._changes = [(one.after, schedule.name_of(one.strategy)) for one in schedule.changes]
        """What the script wants to change."""
        self._was_asynchronous = False
        """In the step before."""
        self._wanted = 0
        """How much of it it has asked for."""
        params = cut(first_params(me, schedule.size), self._arrays)
        fusable = any(one.fusable for one in strategies)
        model = Model(params, optimizer, bucket_mb=_ALONE, fusable=fusable)
        self._training = TrainingState(model, strategies, _SEED, Rate(optimizer), False)
        self._seed = schedule.seed
        chance = random.Random(f"{schedule.seed}/{schedule.workers}/most")
        several = any(one.every > 1 for one in strategies)
        self._most = chance.randint(2, 5) if several and chance.random() < _FEW else None
        """Steps after which the script leaves its batches, maybe in the middle of a round's."""
        self._asks = {ask.steps for ask in schedule.asks if ask.worker == me}
        self._history = History()
        self._history.enter()
        self._context = WorkerContext(
            SimulatedFabric(me, simulation),
            Board(me, simulation, checker, launcher),
            settings,
            trace,
            version,
            self._history,
            FaultInjection((), me),
            self._keep,
            wall=None,
            rest=lambda seconds: None,
        )
        self._refusals = schedule.refusals
        self._participant: Participant

    @property
    def _delays(self) -> bool:
        """True if contributions travel during steps. Then the script asks for nothing else with a
        batch in hand."""
        return self._training.sync.strategy.delay > 0

    @property
    def _asynchronous(self) -> bool:
        """True if workers do not keep step. Then the script asks for nothing else in the loop."""
        return self._training.sync.strategy.asynchronous

    def script(self) -> Steps[int]:
        """Train to the end, or as long as this worker may; the code that its process ends with."""
        checker, stopped, channel = self._checker, False, self._context.channel
        channel.tell("begin")
        if self._context.settings.newcomer is not None:
            channel.tell("waiting")
        try:
            self._participant = yield from enter(self._context, self._training)
            if isinstance(self._participant, Session):
                self._begins(self._participant)
            yield from self._train()
            yield from self._participant.finish()
        except Left:
            checker.left(self.me, self._told)
            return 0
        except Stopped:
            stopped = True
        checker.ended(self.me, self._steps, self._model, stopped)
        return EXIT_REQUEUE if stopped else 0

    def _train(self) -> Steps[None]:
        training = self._training
        yield from self._once("before the loop")
        number = training.position.open(self._samples, BATCH, self._passes, _SEED)
        training.position.enter()
        try:
            while (batch := self._participant.next_batch(number)) is not None:
                training.batch = batch
                # Of the step: another strategy may follow it.
                delays, asynchronous = self._delays, self._asynchronous
                if self._steps % _EVERY == 1 and not (delays or asynchronous):
                    yield from self._once(("in the loop", self._steps))
                self._change()
                learnt = isinstance(self._participant, JoiningWorker)
                yield from self._step(batch)
                if learnt:  # of the others' step, that is
                    delays, asynchronous = self._delays, self._asynchronous
                asynchronous = asynchronous or self._asynchronous
                every = _EVERY_DELAYED if delays else _EVERY
                if self._steps % every == 2 and delays and not asynchronous:
                    yield from self._once(("after a step", self._steps))
                if self._steps % every == 0 and not asynchronous:
                    yield from self._ask("in the loop")
                if self._most is not None and self._steps >= self._most:
                    self._checker.leaves_batches()
                    break
        finally:
            self._participant.leave_batches(number)
        yield from self._once("after the loop")
        yield from self._ask("after it")

    def _change(self) -> None:
        """Want another strategy, if it is time."""
        due = sum(after <= self._steps for after, _ in self._changes)
        if due > self._wanted:
            self._wanted = due
            _, wanted = self._changes[due - 1]
            self._training.choice.wish = self._strategies.index(wanted)
            self._checker.wants_to_follow(wanted, self._steps)

    def _step(self, batch: Indices) -> Steps[None]:
        participant, told, grads = self._participant, self._told, gradient(self._params, batch)
        if isinstance(participant, JoiningWorker):
            whole = yield from self._give(cut(grads, self._arrays))
            self._participant = taught = yield from participant.step(whole, 1.0)
            assert isinstance(taught, Session)
            self._begins(taught)
            return
        assert isinstance(participant, Session)
        if self._steps in self._asks and self._context.settings.checkpoint is not None:
            participant.ask_for_checkpoint()
            self._checker.wants(self.me, self._steps)
        asynchronous = self._asynchronous
        if asynchronous and not self._was_asynchronous:
            self._checker.paces(self.me, self._steps, self._params, self._velocity)
        self._was_asynchronous = asynchronous
        if asynchronous or self._delays:  # some take longer than others
            yield Work(lambda: None)
        if asynchronous:
            members, strategy = participant.membership.ids, self._training.sync.strategy
            self._checker.pairs.among(self.me, members, str(strategy.name))
        if participant.turns.now.weight(self.me) or not asynchronous:
            first = self._steps if participant.turns.level else participant.turns.now.first
            self._checker.gradient(self.me, first, self._steps, batch, grads, asynchronous)
        whole = yield from self._give(cut(grads, self._arrays))
        yield from self._watched(participant.step(whole, 1.0))
        if participant.turns.level or not asynchronous:
            self._checker.sponsored(self.me, self._simulation.newcomers.waiting_at(self.me))
        model = self._model if participant.turns.level else None
        known = self._steps, model, told, asynchronous
        self._checker.stepped(self.me, participant.membership, *known)

    def _watched(self, steps: Steps[Any]) -> Steps[None]:
        """The checker sees what models are shown and given, asked for and shared."""
        pairs, reply = self._checker.pairs, None
        host = self._simulation.sums.host_of(self.me)
        try:
            request = next(steps)
            while True:
                if isinstance(request, Publish):
                    self._checker.hold(pairs.shown(self.me, request.model))
                if isinstance(request, Fetch):
                    self._checker.hold(pairs.asks(self.me, request.worker, self._ring))
                if isinstance(request, AddUp):
                    self._checker.hold(pairs.adds(self.me, host, request))
                try:
                    reply = yield request
                except PeersLost as lost:
                    request = steps.throw(lost)
                    continue
                if isinstance(reply, Fetched):
                    self._checker.hold(pairs.fetched(self.me, reply))
                if isinstance(request, AddUp):
                    self._checker.hold(pairs.added(self.me, host, request, reply))
                request = steps.send(reply)
        except StopIteration:
            return

    @property
    def _ring(self) -> Ring | None:
        """In which models are given away, if they are."""
        participant, strategy = self._participant, self._training.sync.strategy
        if not any(isinstance(due.stage, PushSum) for due in strategy.before):
            return None
        assert isinstance(participant, Session)
        return Ring(self._training.progress.rounds, participant.membership.generation)

    def _give(self, grads: list[Array]) -> Steps[Any]:
        """Give some of these, or all or none, as soon as they are there; returns what the step is
        given."""
        gradient, rest = self._training.gradient, dict(enumerate(grads))
        chance = random.Random(f"{self._seed}/{self.me}/{self._steps}")
        if len(grads) > 1 and chance.random() < _IN_PIECES:
            # From the last one on, as a backward pass does, or in any order.
            order = chance.choice((sorted(rest, reverse=True), chance.sample([*rest], len(rest))))
            for number in order[: chance.randint(1, len(rest))]:
                yield from self._participant.ready(number, rest.pop(number))
                yield Work(lambda: None)
        sync = self._training.sync
        return gradient.completed(rest if gradient.pieces else grads, sync.give)

    @property
    def _params(self) -> Array:
        return np.concatenate(self._training.model.params)

    @property
    def _velocity(self) -> Array:
        """Its own."""
        flats = self._training.model.memory["velocity"]
        return np.concatenate(flats[::-1])

    @property
    def _model(self) -> Array:
        return np.concatenate(self._training.model.model)

    def _keep(
        self,
        folder: Path,
        step: int,
        state: Mapping[str, Any],
        about: Mapping[str, Any],
        finite: bool,
    ) -> Path:
        """In the place of a disk: the checker looks at it."""
        now = self._simulation.time.events
        if any(one.begin <= now < one.end for one in self._refusals):
            self._checker.refused()
            raise CheckpointError("the disk is full")
        if not finite:
            raise Violation(f"the model of step {step} counts as not finite")
        self._checker.kept(step, state, about["written_by"], about["complete"])
        return folder / str(step)

    def _begins(self, session: Session) -> None:
        self._checker.begins(self.me, session.membership, self._steps, self._model)

    def _ask(self, label: str) -> Steps[None]:
        participant, asked = self._participant, question(self.me)
        known = self._training.position.recall(list, len(numbers_of(asked)))
        if known is None and isinstance(participant, Session):
            answer = yield from participant.mean(asked)
            self._checker.mean(self.me, participant.membership, label, answer)

    def _once(self, moment: object) -> Steps[None]:
        said = self._training.position.recall(bytes)
        if said is None:
            said = yield from self._participant.once(lambda: self._checker.works(self.me, moment))
        self._checker.told(self.me, moment, said)

    @property
    def _steps(self) -> int:
        return self._training.progress.steps

    @property
    def _told(self) -> bool:
        return self._simulation.faults.noticed(self.me)
