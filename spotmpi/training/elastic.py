"""What a `Group` and a `Trainer` have in common: a worker among others, as its script sees it."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

from spotmpi import locks, settings
from spotmpi.arrays.backend import in_host_memory
from spotmpi.errors import Left, Stopped, UsageError
from spotmpi.fabric import Fabric, Steps
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.optimizers.numbers import whole
from spotmpi.protocol import tables
from spotmpi.protocol.exact_means import like, numbers_of
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.sampler import Indices, generator
from spotmpi.settings import Settings
from spotmpi.trace.records import Trace
from spotmpi.training.busy import BusyBlock
from spotmpi.training.history import History
from spotmpi.training.joining_worker import Seat, enter
from spotmpi.training.keeping import checkpoint_folder
from spotmpi.training.rounds.once import answer_of, name_of, outcome_of
from spotmpi.training.rounds.timings import CpuTime
from spotmpi.training.script_position import TOO_LARGE
from spotmpi.training.session import Session
from spotmpi.training.training_state import TrainingState
from spotmpi.training.worker_context import WorkerContext
from spotmpi.version import version

# Whoever wants to see what a library does says so: without that nothing is printed.
logging.getLogger("spotmpi").addHandler(logging.NullHandler())

_OF_A_STEP = ("ready()", "step()")
"""Calls that may follow on `ready`."""

_REPEATS = (
    "this script was resumed at step {1}, and goes again through passes that are done: what its "
    "loop does beside {0}.batches() and {0}.once() is repeated for each of them; write it as `for "
    "number in {0}.passes(n)`, which yields only the passes that are left"
)

_BETWEEN_ABORTS = 0.5
_ABORTS_APART = 3
"""Seconds between the first workers' calls of MPI_Abort, and for how many of them."""

P = TypeVar("P")
T = TypeVar("T")
Self = TypeVar("Self", bound="Elastic[Any]")


class Elastic(Generic[P]):
    """A context manager: entering starts MPI if there is one and is collective, leaving is
    collective too and ends what spotmpi protects; what stands after the block is ordinary code.
    """

    _call = "group"
    """What scripts call it in the documentation, and so in messages."""
    _use = "average"
    """What they do with a batch."""

    def __init__(self, training: TrainingState[P]) -> None:
        self._training = training
        self._seat: Seat[P] | None = None
        self._inside = False
        self._works = False
        """It runs what was given to `once`."""
        self._locks: list[locks.Lock] = []
        """On what is written, where no launcher holds them."""

    @property
    def _membership(self) -> Membership:
        if self._seat is None:
            return _ALONE
        if isinstance(self._seat, Session):
            return self._seat.driver.membership
        return self._seat.membership

    @property
    def worker(self) -> WorkerId:
        """This worker's id: given at its admission, never reused."""
        return 0 if self._seat is None else self._seat.me

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that take part now, in ring order."""
        return self._membership.ids

    @property
    def generation(self) -> int:
        """How many times the membership was proposed anew; grows with every change."""
        return self._membership.generation

    @property
    def leader(self) -> bool:
        """Whether this worker is the one that speaks for all. Local.

        Just one worker of each membership is the leader; if it is lost, another one is, and what
        only the lost one was doing is lost with it: `once` has it done again.
        """
        return self.workers[0] == self.worker

    @property
    def steps(self) -> int:
        """Steps committed; the number of the step to come.

        Between rounds of several steps it is what this worker has taken since; with `ADPSGD`, or a
        quorum, in proportion to all that it will take.
        """
        return self._training.progress.steps

    @property
    def seed(self) -> int:
        """What the order of samples and `rng` follow from."""
        return self._training.progress.seed

    @property
    def rng(self) -> Any:
        """A random generator for this worker and step: derived, so that reruns draw the same."""
        return generator(self.seed, self.worker, self.steps)

    def batches(self, n: int, batch_size: int, passes: int = 1) -> Iterator[Indices]:
        """The indices of this worker's batches: every one of ``n`` samples once in each pass.

        ``batch_size`` is per worker. Use each batch once, by a step or an average. Collective in
        effect: every worker takes as many steps, unless the strategy lets each go at its own pace
        (`ADPSGD`). At the end of a pass there may be fewer samples than workers: some then see a
        sample of another worker's, and their gradient counts for nothing.
        """
        seat, training = self._connected("batches()"), self._training
        if isinstance(seat, Session):  # from batches that were left in the middle of a round
            self._run(seat.round_off())
        number = training.position.open(n, batch_size, passes, self.seed)
        if training.position.repeats and self.leader:
            warnings.warn(_REPEATS.format(self._call, self.steps), RuntimeWarning, stacklevel=2)
        training.position.enter()
        try:
            while (batch := seat.next_batch(number)) is not None:
                training.batch = batch
                yield batch
                if training.batch is not None:
                    raise UsageError(
                        f"worker {self.worker}: the batch of step {self.steps} was not used: "
                        f"call {self._call}.{self._use}() once for each batch"
                    )
                seat = self._connected("batches()")
        finally:
            training.replica.micro_batches.clear()
            seat.leave_batches(number)

    def passes(self, n: int) -> Iterator[int]:
        """The numbers of ``n`` passes, from 0 on, but for those that are done. Local.

        Those were done before the job was resumed, or before this worker came: it begins with the
        pass that the checkpoint, or the others, are in, and that goes on where it stands. What a
        script has to know of earlier passes `last_once` tells. One loop over passes cannot stand in
        another.
        """
        self._connected("passes()")
        position = self._training.position
        position.enter_passes(whole("passes", n, 0))
        try:
            while (number := position.next_pass()) is not None:
                yield number
                self._connected("passes()")
        finally:
            position.leave_passes()

    def _take_step(self, contribution: Any, loss: float | None) -> None:
        """One step or average, with what this worker brings."""
        seat = self._connected(f"{self._use}()")
        self._check_batch(self._use)
        self._seat = self._run(seat.step(contribution, loss))

    def _take_piece(self, name: Any, grad: Any) -> None:
        """One array of what it brings to the step to come."""
        seat = self._connected("ready()")
        steps: Steps[Seat[P]] = seat.ready(name, grad)
        self._seat = self._run(steps)

    def _check_batch(self, call: str) -> None:
        training = self._training
        if training.position.inside and training.batch is None:
            raise UsageError(
                f"worker {self.worker}: {self._call}.{call}() was called again, in step "
                f"{self.steps}, for a batch that is used: call it once for each batch"
            )

    def mean(self, x: Any) -> Any:
        """The mean of ``x`` (a number or an array of one shape) over the workers. Collective.

        A float for a number, else an array of float64. Exact: rounded once, whatever the order of
        the workers, and the mean of equal numbers is that number. Costs about as much as the
        all-reduce of one step, and a second one of 576 bytes for each number. A worker lost in that
        does not count.
        """
        seat = self._connected("mean()")
        x = in_host_memory(x)
        known = self._training.position.recall(list, len(numbers_of(x)))
        if known is not None:
            return like(x, known)
        return self._run(seat.mean(x))

    def once(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` on one worker and return its value on all of them. Collective, blocking.

        On the leader; if that dies before all have the value, on the next one, from the beginning:
        what it writes must bear that. The value: numbers, strings, bytes, booleans, None, arrays,
        and lists, tuples and dicts of these; each worker gets a copy of its own. What ``work``
        raises, all raise as `OnceError`. It may take as long as it likes, and must not call what
        all workers must call. Costs about as much as the all-reduce of one step, and one of the
        size of the value.
        """
        seat, position = self._connected("once()"), self._training.position
        of = name_of(work)
        said = position.recall(bytes, of)
        if said is not None:
            return answer_of(said)
        said = self._run(seat.once(lambda: self._outcome(work), of))
        value = answer_of(said)
        position.keep_last(of, said)
        return value

    def last_once(self, work: Callable[[], Any]) -> Any:
        """What `once` returned last for this ``work``, also before the job was resumed or this
        worker came; None if it has not done it. A copy. Local.

        ``work`` is known by its name. For all works together 16 KB are kept: UsageError if there
        was no room for this one.
        """
        of = name_of(work)
        said = self._training.position.last.get(of)
        if said == TOO_LARGE:
            raise UsageError(
                f"worker {self.worker}, step {self.steps}: what {self._call}.once({of}) returned "
                "last is not kept, as there are 16 KB for all such values: return less"
            )
        return None if said is None else answer_of(said)

    def _outcome(self, work: Callable[[], Any]) -> bytes:
        self._works = True
        try:
            where = f"{self._call}.once() failed on worker {self.worker} at step {self.steps}"
            return outcome_of(work, where)
        finally:
            self._works = False

    def busy(self, what: str) -> BusyBlock:
        """``with trainer.busy("evaluating"):`` this worker is at work while the others wait. Local.

        Only where the script waits for something that is done elsewhere (another machine, a
        service): who computes, reads or writes is at work anyway. ``beat()`` of what the block is
        given says that the work goes on.
        """
        seat = self._connected("busy()", alone=True)
        return BusyBlock(seat.place.channel, self.worker, what)

    def save(self) -> None:
        """Ask for a checkpoint at the end of the step to come (or of the training). Local.

        Enough if one worker asks. It is written by whoever leads then, into ``--checkpoint DIR``.
        """
        seat = self._connected("save()", alone=True)
        if seat.place.settings.checkpoint is None:
            raise UsageError(
                f"{self._call}.save() has no place to write to: start with --checkpoint DIR "
                "(SPOTMPI_CHECKPOINT)"
            )
        if isinstance(seat, Session):
            seat.keeper.asked = True

    def __enter__(self: Self) -> Self:
        process = _this_process()
        history = process.history
        given = Settings.from_environ().of_training(history.enter())
        channel = LauncherChannel.open(given)
        channel.tell("begin", training=history.number)
        try:
            if given.newcomer is None:
                settings.check(given, given.world_size or 1)
            trace = self._prepare(given, channel)
            if process.fabric is None:
                process.fabric = _connect(given, channel)
            members = history.membership or process.fabric.membership
            if self._training.tells:
                tables.check_room(len(members))
            if given.job is None and process.fabric.me == members.ids[0]:
                self._locks = locks.hold(given.checkpoint, given.trace, script=sys.argv[0])
        except (UsageError, locks.InUse) as error:
            history.give_up()
            self._end_job(error, given)
            raise
        cpu = CpuTime() if trace.active else None
        place = WorkerContext(process.fabric, channel, given, trace, version(), history, cpu=cpu)
        try:
            self._seat = process.fabric.run(enter(place, self._training))
        except Exception as error:
            self._let_go()
            self._give_up(error, given)
            raise
        self._show()
        self._inside = True
        return self

    @staticmethod
    def _prepare(given: Settings, channel: LauncherChannel) -> Trace:
        """What is written must have a place. Raises UsageError."""
        try:
            if given.checkpoint is not None:
                checkpoint_folder.check_writable(given.checkpoint)
            return Trace(given.trace)
        except UsageError as error:
            channel.tell("unable", why=str(error))
            raise

    def _let_go(self) -> None:
        locks.release(self._locks)
        self._locks = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._seat is not None
        given = self._seat.place.settings
        try:
            self._leave(error, given)
        finally:
            self._let_go()

    def _leave(self, error: BaseException | None, given: Settings) -> None:
        assert self._seat is not None
        history = self._seat.place.history
        if isinstance(error, Stopped | Left):
            if isinstance(error, Stopped) and self.leader and given.job is None:
                print(f"spotmpi: {error}", file=sys.stderr, flush=True)  # a launcher would say it
            self._give_up(None, given)
            return
        if error is not None:
            self._give_up(error, given)
            return
        try:
            self._check_step("the end of the block")
            if self._training.replica.micro_batches:
                raise UsageError(
                    f"worker {self.worker}: the end of the block came after "
                    f"{self._call}.accumulate(), in step {self.steps}: call {self._call}.step()"
                )
            self._run(self._seat.finish("finished"))
        except Exception as failure:
            self._give_up(failure, given)
            raise
        self._inside = False
        if isinstance(self._seat, Session):
            self._training.position.end()
            told = self._training.registry.snapshot(None)
            history.over(told, self._seat.driver.membership)
        else:
            history.passed_by()

    def _give_up(self, error: BaseException | None, given: Settings) -> None:
        """This training has not come to its end. Alone, another one may begin in its place."""
        self._inside = False
        if isinstance(error, Exception) and isinstance(self._seat, Session):
            self._run(self._seat.driver.abandon())
        if given.world_size is None and given.newcomer is None:
            _this_process().history.give_up()
        if error is not None:
            self._end_job(error, given)

    def _run(self, steps: Steps[T]) -> T:
        """Perform ``steps``, in which the others take part."""
        assert self._seat is not None
        fabric, meter = self._seat.place.fabric, self._training.meter
        meter.waits(fabric.clock())
        try:
            return fabric.run(steps)
        except SystemExit:  # the others go on without this worker, or all have stopped
            self._inside = False
            raise
        finally:
            self._show()
            meter.computes(fabric.clock())

    def _show(self) -> None:
        """The script sees what has become of its parameters."""
        done = self._training.progress
        self._training.replica.show((done.steps, done.rounds))

    def _connected(self, call: str, alone: bool = False) -> Seat[P]:
        """The seat, for a call that needs all workers, or that one may make ``alone``."""
        if self._works and not alone:
            raise UsageError(
                f"{self._call}.{call} needs all workers, and what {self._call}.once() runs is run "
                f"by one of them alone: call it before or after {self._call}.once()"
            )
        if self._seat is None or not self._inside:
            name = type(self).__name__
            raise UsageError(
                f"{self._call}.{call} belongs inside `with spotmpi.{name}(...) as {self._call}`"
            )
        if not alone and call not in _OF_A_STEP:
            self._check_step(f"{self._call}.{call}")
        return self._seat

    def _check_step(self, what: str) -> None:
        if self._training.replica.pieces:
            raise UsageError(
                f"worker {self.worker}: {what} came after {self._call}.ready(), in step "
                f"{self.steps}: call {self._call}.{self._use}() first"
            )

    @staticmethod
    def _end_job(error: BaseException, given: Settings) -> None:
        """This worker's script is wrong: nobody may take its end for a revocation."""
        if given.job is not None or given.world_size is None:
            return  # the launcher hears of it and ends the job; alone there is nobody to end
        worker = given.rank
        traceback.print_exception(error)
        print(f"spotmpi: worker {worker} raised the error above; the job ends", file=sys.stderr)
        sys.stderr.flush()
        from spotmpi.fabric.mpi import abort  # whether or not this worker came to connect

        # Often all workers come here at once, and mpirun (5.0.11) at times hangs for ever when
        # several ask it to abort within a millisecond: 1 in 17 jobs of 3. So one goes first.
        time.sleep(_BETWEEN_ABORTS * min(worker or 0, _ABORTS_APART))
        abort()


_ALONE = Membership.first(["localhost"])


@dataclass
class Process:
    """What all trainings of one process share."""

    fabric: Fabric | None = None
    """MPI can be entered only once, and is not left before the process ends."""
    history: History = field(default_factory=History)


_process = Process()


def _this_process() -> Process:
    return _process


def _connect(given: Settings, channel: LauncherChannel) -> Fabric:
    if given.newcomer is None and given.world_size is None:
        from spotmpi.fabric.solo import SoloFabric

        settings.check_alone()
        return SoloFabric()
    if given.newcomer is not None:
        if "mpi4py.MPI" in sys.modules:
            raise UsageError(
                f"worker {given.newcomer}: the script imports mpi4py.MPI, and so starts MPI, "
                "before it enters the Trainer; a worker that joins later must not: import it later"
            )
        # Whatever could be done without the others is done: now the launcher may have one of them
        # bring this worker in, and then says as which process MPI will know it.
        os.environ.update(channel.admission(given.newcomer))
    from spotmpi.fabric.planes.segments import unnamed

    with unnamed():
        from spotmpi.fabric.deaths import Deaths, Listener
        from spotmpi.fabric.mpi import MpiFabric  # this starts MPI, which `Deaths` needs

        me = given.rank if given.newcomer is None else given.newcomer
        # On one host mpirun has started all of them together, and tells them of each other.
        obituaries = channel.obituaries(me or 0) if given.stand_in else None
        deaths = Deaths.found() if obituaries is None else Deaths()
        bury = None if deaths is None else deaths.announce
        follow = None
        if obituaries is not None and bury is not None:
            follow = Listener(obituaries, bury).follow
        fabric = MpiFabric(given.stand_in, given.newcomer, follow, bury)
    if given.newcomer is not None:
        channel.tell("connected")
    return fabric
