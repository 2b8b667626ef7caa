"""`Elastic`, the base of `Trainer` and `Group`: one worker of a job, as its script uses it."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from spotmpi.arrays.backend import in_host_memory
from spotmpi.errors import Left, Stopped, UsageError
from spotmpi.fabric import Steps
from spotmpi.optimizers.numbers import whole
from spotmpi.protocol.exact_means import like, numbers_of
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.plain_values import pack, unpack
from spotmpi.protocol.sampler import Indices, generator
from spotmpi.rounds.once import answer_of, name_of, outcome_of
from spotmpi.rounds.round import Summed
from spotmpi.rounds.summand import Summand
from spotmpi.training.busy import BusyBlock
from spotmpi.training.participant import Participant
from spotmpi.training.process import this_process
from spotmpi.training.script.answers import GATHERED, TOO_LARGE
from spotmpi.training.state.training_state import TrainingState

# A library prints nothing unless the application asks for it.
logging.getLogger("spotmpi").addHandler(logging.NullHandler())

_OF_A_STEP = ("ready()", "step()")
"""Calls that may come after `ready` in one step."""

_REPEATS = (
    "this script was resumed at step {1}, and goes again through passes that are done: what its "
    "loop does beside {0}.batches() and {0}.once() is repeated for each of them; write it as `for "
    "number in {0}.passes(n)`, which yields only the passes that are left"
)

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
            training.batch = None  # the script may have left with one in its hands
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
        of one step, and a second one of 576 bytes for each number, unless the script has made the
        same calls before. A worker lost during the call does not count.
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

        def outcome() -> bytes:
            self._works = True
            try:
                where = f"{self._call}.once() failed on worker {self.worker} at step {self.steps}"
                return outcome_of(work, where)
            finally:
                self._works = False

        said = self._run(participant.once(outcome, of))
        value = answer_of(said)
        position.answers.keep_last(of, said)
        return value

    def gather(self, value: Any) -> dict[WorkerId, Any]:
        """Return each worker's ``value``, by worker, in ring order. Collective, blocking.

        The values may be of any size, and are made of what `once` takes. Each worker gets its own
        copy. A worker lost during the call is not there. Between loops a resumed job and a newcomer
        get the values of then, and in its rehearsal a newcomer gets those of the others: so this
        worker need not be among them. The cost is about the all-reduce of one step, a small one,
        and one of the size of all values together.
        """
        participant, position = self._connected("gather()"), self._training.position
        try:
            mine = pack(in_host_memory(value))
        except UsageError as error:
            raise UsageError(f"worker {self.worker}: {self._call}.gather(): {error}") from None
        said = position.recall(bytes, GATHERED)
        if said is None:
            said = self._run(participant.gather(mine))
        return {worker: unpack(one) for worker, one in unpack(said).items()}

    def sum(self, x: Any) -> Summed:
        """Return the sum of ``x`` over all workers, and the workers that it is of, as a pair.
        Collective, blocking.

        ``x`` is an array of float32 or float64, or a structure of arrays of one of these types, of
        the same shapes on all workers. The sum is new arrays of the same library in the same form,
        with the same bits on all workers. A worker lost during the call is not in it: divide by
        ``len(workers)`` for a mean. Between loops a resumed job and a newcomer get the sum of then.
        The cost is about the all-reduce of one step, and one of the size of ``x``; of up to 64 KB
        it is one, if the script has made the same calls before.
        """
        participant, position = self._connected("sum()"), self._training.position
        try:
            mine = Summand.of(x)
        except UsageError as error:
            raise UsageError(f"worker {self.worker}: {self._call}.sum(): {error}") from None
        said = position.recall(bytes, mine.known_by)
        if said is None:
            parts, workers = self._run(participant.sum(mine))
        else:
            told, workers = unpack(said)
            parts = [told]
        return Summed(mine.result(parts), tuple(workers))

    def last_once(self, work: Callable[[], Any]) -> Any:
        """Return the last value of `once` for this ``work``, or None if there is none. Local.

        The value may be from before the job was resumed, or from before this worker joined. It is a
        copy. ``work`` is known by its name. At most 16 KB of values are kept, for all works
        together. Raises UsageError if there was no room for this one.
        """
        of = name_of(work)
        said = self._training.position.answers.last.get(of)
        if said == TOO_LARGE:
            raise UsageError(
                f"worker {self.worker}, step {self.steps}: what {self._call}.once({of}) returned "
                "last is not kept, as there are 16 KB for all such values: return less"
            )
        return None if said is None else answer_of(said)

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
        self._participant = this_process().enter(self._training)
        self._training.show()
        self._inside = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        participant = self._participant
        assert participant is not None
        try:
            if error is None:
                self._check_step("the end of the block")
                if self._training.gradient.micro_batches:
                    raise UsageError(
                        f"worker {self.worker}: the end of the block came after "
                        f"{self._call}.accumulate(), in step {self.steps}: call {self._call}.step()"
                    )
                self._run(participant.finish())
                self._inside = False
        except Exception as failure:
            error = failure
            raise
        finally:
            try:
                if error is not None:
                    self._give_up(participant, error)
            finally:
                this_process().let_go()

    def _give_up(self, participant: Participant, error: BaseException) -> None:
        """End an unfinished training."""
        leaves = isinstance(error, Stopped | Left)
        launched = participant.context.settings.job is not None
        if isinstance(error, Stopped) and self.leader and not launched:
            print(f"spotmpi: {error}", file=sys.stderr, flush=True)  # a launcher would say it
        self._inside = False
        if isinstance(error, Exception):
            self._run(participant.abandon())
        this_process().give_up(None if leaves else error)

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
            self._training.show()
            meter.computes(fabric.clock())

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


_ALONE = Membership.first(["localhost"])
