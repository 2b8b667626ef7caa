"""`Elastic`, the base of `Trainer` and `Group`: one worker of a job, as its script uses it."""

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
from spotmpi.rounds.once import answer_of, name_of, outcome_of
from spotmpi.settings import Settings
from spotmpi.trace.records import Trace
from spotmpi.training.busy import BusyBlock
from spotmpi.training.fault_injection import FaultInjection
from spotmpi.training.history import History
from spotmpi.training.joining_worker import enter
from spotmpi.training.keeping import checkpoint_folder
from spotmpi.training.participant import Participant
from spotmpi.training.script_position import TOO_LARGE
from spotmpi.training.steps.timings import CpuTime
from spotmpi.training.training_state import TrainingState
from spotmpi.training.worker_context import WorkerContext
from spotmpi.version import version

# A library prints nothing unless the application asks for it.
logging.getLogger("spotmpi").addHandler(logging.NullHandler())

_OF_A_STEP = ("ready()", "step()")
"""Calls that may come after `ready` in one step."""

_REPEATS = (
    "this script was resumed at step {1}, and goes again through passes that are done: what its "
    "loop does beside {0}.batches() and {0}.once() is repeated for each of them; write it as `for "
    "number in {0}.passes(n)`, which yields only the passes that are left"
)

_BETWEEN_ABORTS = 0.5
_ABORTS_APART = 3
"""Worker n waits before MPI_Abort, for n (at most the second number) times the first in seconds."""

P = TypeVar("P")
T = TypeVar("T")
Self = TypeVar("Self", bound="Elastic[Any]")


class Elastic(Generic[P]):
    """One worker of a job. A context manager: spotmpi protects the code inside the block.

    Entering the block starts MPI, unless the script runs alone, and is collective. Leaving the
    block is collective too, and ends the protection. The code after the block is ordinary code.
    """

    _call = "group"
    """Name of the object in the documentation, used in messages."""
    _use = "average"
    """Name of the method that uses a batch."""

    def __init__(self, training: TrainingState[P]) -> None:
        self._training = training
        self._participant: Participant | None = None
        self._inside = False
        self._works = False
        """True while this worker runs the function given to `once`."""
        self._locks: list[locks.Lock] = []
        """Locks on the checkpoint folder and the trace, if no launcher holds them."""

    @property
    def _membership(self) -> Membership:
        return _ALONE if self._participant is None else self._participant.membership

    @property
    def worker(self) -> WorkerId:
        """Id of this worker. It is given at the worker's admission and never reused."""
        return 0 if self._participant is None else self._participant.me

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Ids of the workers that take part now, in ring order."""
        return self._membership.ids

    @property
    def generation(self) -> int:
        """Number of the present membership. It grows with every change, by one or more."""
        return self._membership.generation

    @property
    def leader(self) -> bool:
        """True on exactly one worker of each membership. Local.

        If the leader is lost, another worker becomes the leader. Work that only the lost leader did
        is lost with it; `once` runs such work again.
        """
        return self.workers[0] == self.worker

    @property
    def steps(self) -> int:
        """Number of steps committed, which is also the number of the next step.

        Between rounds of several steps, the steps that this worker has taken since the last round
        count too: in proportion to all that it is to take, if workers take different numbers of
        steps (as with `ADPSGD` or a quorum).
        """
        return self._training.progress.steps

    @property
    def seed(self) -> int:
        """Seed of the order of samples and of `rng`."""
        return self._training.progress.seed

    @property
    def rng(self) -> Any:
        """Random generator for this worker and this step. A rerun draws the same numbers."""
        return generator(self.seed, self.worker, self.steps)

    def batches(self, n: int, batch_size: int, passes: int = 1) -> Iterator[Indices]:
        """Yield the indices of this worker's batches. Each pass uses each of ``n`` samples once.

        ``batch_size`` is the number of samples per worker. Use each batch once, by a step or an
        average. Collective in effect: all workers take the same number of steps, unless the
        strategy lets each go at its own pace (such as `ADPSGD`). At the end of a pass there may be
        fewer samples than workers. Some workers then get a sample that belongs to another worker,
        and their gradient does not count.
        """
        participant, training = self._connected("batches()"), self._training
        if self.worker in self.workers:  # an outsider's rehearsal counts as no step
            self._run(participant.round_off())  # the last loop may have been left within a round
        number = training.position.open(n, batch_size, passes, self.seed)
        if training.position.repeats and self.leader:
            warnings.warn(_REPEATS.format(self._call, self.steps), RuntimeWarning, stacklevel=2)
        training.position.enter()
        try:
            while (batch := participant.next_batch(number)) is not None:
                training.batch = batch
                yield batch
                if training.batch is not None:
                    raise UsageError(
                        f"worker {self.worker}: the batch of step {self.steps} was not used: "
                        f"call {self._call}.{self._use}() once for each batch"
                    )
                participant = self._connected("batches()")
        finally:
            training.gradient.micro_batches.clear()
            participant.leave_batches(number)

    def passes(self, n: int) -> Iterator[int]:
        """Yield the numbers of those of ``n`` passes that are left, counted from 0. Local.

        It leaves out the passes that were done before the job was resumed, or before this worker
        joined. It begins with the pass that the checkpoint, or the other workers, are in, and this
        pass goes on where it stands. `last_once` tells a script what it must know of earlier
        passes. A loop over passes cannot be inside another one.
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
        """Take one step, or one average, with this worker's contribution."""
        participant = self._connected(f"{self._use}()")
        self._check_batch(self._use)
        self._participant = self._run(participant.step(contribution, loss))

    def _take_piece(self, name: Any, grad: Any) -> None:
        """Give one array of this worker's contribution to the next step."""
        participant = self._connected("ready()")
        self._participant = self._run(participant.ready(name, grad))

    def _check_batch(self, call: str) -> None:
        training = self._training
        if training.position.inside and training.batch is None:
            raise UsageError(
                f"worker {self.worker}: {self._call}.{call}() was called again, in step "
                f"{self.steps}, for a batch that is used: call it once for each batch"
            )

    def mean(self, x: Any) -> Any:
        """Return the mean of ``x`` over all workers. Collective.

        ``x`` is a number (returns a float) or an array of the same shape on all workers (returns an
        array of float64). The mean is exact and rounded once. It does not depend on the order of
        the workers, and the mean of equal numbers is that number. The cost is about the all-reduce
        of one step, and a second one of 576 bytes for each number. A worker lost during the call
        does not count.
        """
        participant = self._connected("mean()")
        x = in_host_memory(x)
        known = self._training.position.recall(list, len(numbers_of(x)))
        if known is not None:
            return like(x, known)
        return self._run(participant.mean(x))

    def once(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` on one worker and return its value on all workers. Collective, blocking.

        The leader runs it. If the leader dies before all workers have the value, the next leader
        runs it again from the beginning. Files that ``work`` writes must allow this. The value may
        be made of numbers, strings, bytes, booleans, None, arrays, and lists, tuples and dicts of
        these. Each worker gets its own copy. If ``work`` raises an exception, all workers raise
        `OnceError`. ``work`` may take any time. It must not make a call that needs all workers. The
        cost is about the all-reduce of one step, and one of the size of the value.
        """
        participant, position = self._connected("once()"), self._training.position
        of = name_of(work)
        said = position.recall(bytes, of)
        if said is not None:
            return answer_of(said)
        said = self._run(participant.once(lambda: self._outcome(work), of))
        value = answer_of(said)
        position.keep_last(of, said)
        return value

    def last_once(self, work: Callable[[], Any]) -> Any:
        """Return the last value of `once` for this ``work``, or None if there is none. Local.

        The value may be from before the job was resumed, or from before this worker joined. It is a
        copy. ``work`` is known by its name. At most 16 KB of values are kept, for all works
        together. Raises UsageError if there was no room for this one.
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
        """Return a block in which this worker counts as at work while the others wait. Local.

        Write ``with trainer.busy("evaluating"):``, and only where the script waits for something
        that is done elsewhere (another machine, a service). A worker that computes, reads or writes
        counts as at work anyway. ``beat()`` of the block's object says that the work goes on.
        """
        participant = self._connected("busy()", alone=True)
        return BusyBlock(participant.context.channel, self.worker, what)

    def save(self) -> None:
        """Ask for a checkpoint at the end of the next step, or of the training. Local.

        It is enough if one worker asks. The leader at that time writes it, into ``--checkpoint
        DIR``. Raises UsageError if the job has no such folder.
        """
        participant = self._connected("save()", alone=True)
        if participant.context.settings.checkpoint is None:
            raise UsageError(
                f"{self._call}.save() has no place to write to: start with --checkpoint DIR "
                "(SPOTMPI_CHECKPOINT)"
            )
        participant.ask_for_checkpoint()

    def __enter__(self: Self) -> Self:
        process = _this_process()
        history = process.history
        given = Settings.from_environ()
        history.enter()
        try:
            given = given.of_training(history.number)
            channel = LauncherChannel.open(given)
            channel.tell("begin", training=history.number)
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
        except BaseException as error:
            history.give_up()
            if isinstance(error, (UsageError, locks.InUse)):
                self._end_job(error, given)
            raise
        cpu = CpuTime() if trace.active else None
        faults = FaultInjection(given.revoke, process.fabric.me)
        known = channel, given, trace, version(), history, faults
        context = WorkerContext(process.fabric, *known, cpu=cpu)
        try:
            self._participant = process.fabric.run(enter(context, self._training))
        except Exception as error:
            self._let_go()
            self._give_up(error, given)
            raise
        except KeyboardInterrupt:
            self._let_go()
            history.give_up()
            raise
        self._show()
        self._inside = True
        return self

    @staticmethod
    def _prepare(given: Settings, channel: LauncherChannel) -> Trace:
        """Check the checkpoint folder and open the trace. Raises UsageError."""
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
        assert self._participant is not None
        given = self._participant.context.settings
        try:
            self._leave(error, given)
        finally:
            self._let_go()

    def _leave(self, error: BaseException | None, given: Settings) -> None:
        assert self._participant is not None
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
            if self._training.gradient.micro_batches:
                raise UsageError(
                    f"worker {self.worker}: the end of the block came after "
                    f"{self._call}.accumulate(), in step {self.steps}: call {self._call}.step()"
                )
            self._run(self._participant.finish())
        except Exception as failure:
            self._give_up(failure, given)
            raise
        self._inside = False

    def _give_up(self, error: BaseException | None, given: Settings) -> None:
        """End an unfinished training. A script that runs alone may begin another one."""
        self._inside = False
        if isinstance(error, Exception) and self._participant is not None:
            self._run(self._participant.abandon())
        if given.world_size is None and given.newcomer is None:
            _this_process().history.give_up()
        if error is not None:
            self._end_job(error, given)

    def _run(self, steps: Steps[T]) -> T:
        """Perform ``steps``, in which the other workers take part."""
        assert self._participant is not None
        fabric, meter = self._participant.context.fabric, self._training.meter
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
        """Show the script its parameters as they are now."""
        done = self._training.progress
        self._training.model.show((done.steps, done.rounds))

    def _connected(self, call: str, alone: bool = False) -> Participant:
        """Return the participant or raise UsageError. ``alone``: the call needs no other
        worker."""
        if self._works and not alone:
            raise UsageError(
                f"{self._call}.{call} needs all workers, and what {self._call}.once() runs is run "
                f"by one of them alone: call it before or after {self._call}.once()"
            )
        if self._participant is None or not self._inside:
            name = type(self).__name__
            raise UsageError(
                f"{self._call}.{call} belongs inside `with spotmpi.{name}(...) as {self._call}`"
            )
        if not alone and call not in _OF_A_STEP:
            self._check_step(f"{self._call}.{call}")
        return self._participant

    def _check_step(self, what: str) -> None:
        if self._training.gradient.pieces:
            raise UsageError(
                f"worker {self.worker}: {what} came after {self._call}.ready(), in step "
                f"{self.steps}: call {self._call}.{self._use}() first"
            )

    @staticmethod
    def _end_job(error: BaseException, given: Settings) -> None:
        """End the job for an error of this script. No worker may take it for a revocation."""
        if given.job is not None or given.world_size is None:
            return  # a launcher ends the job itself; a worker alone has no job to end
        worker = given.rank
        traceback.print_exception(error)
        print(f"spotmpi: worker {worker} raised the error above; the job ends", file=sys.stderr)
        sys.stderr.flush()
        from spotmpi.fabric.mpi import abort  # this worker may not have connected yet

        # Often all workers come here at once. mpirun (5.0.11) hung forever in 1 of 17 jobs of 3
        # workers, when several asked it to abort within a millisecond. So one goes first.
        time.sleep(_BETWEEN_ABORTS * min(worker or 0, _ABORTS_APART))
        abort()


_ALONE = Membership.first(["localhost"])


@dataclass
class Process:
    """State that all trainings of one process share."""

    fabric: Fabric | None = None
    """The fabric, once connected. MPI starts only once, and lasts until the process ends."""
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
        # All that needs no other worker is done. Now the launcher may have a sponsor connect this
        # worker to MPI. It then says as which process MPI will know the worker.
        os.environ.update(channel.admission(given.newcomer))
    from spotmpi.fabric.segments import unnamed

    with unnamed():
        from spotmpi.fabric.deaths import Deaths, Listener
        from spotmpi.fabric.mpi import MpiFabric  # this starts MPI, which `Deaths` needs

        me = given.rank if given.newcomer is None else given.newcomer
        # On one host mpirun has started all workers together, and tells them of deaths.
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
