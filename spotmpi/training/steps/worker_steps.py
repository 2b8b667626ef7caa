"""Steps on the way to a round: which of them a worker has taken, and with which samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.operators import StepPosition
from spotmpi.protocol.dealer import evenly
from spotmpi.protocol.drawn_ring import before
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.paces import Pace, paces
from spotmpi.protocol.sampler import Indices, Lease, generator
from spotmpi.strategies import Strategy
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps.so_far import SoFar

__all__ = ["RoundSteps", "WorkerSteps"]

_LATELY = 1.0
"""Seconds of recent steps that a worker's pace is measured over."""


class RoundSteps:
    """A *turn*: the steps on the way to the next round, as far as this worker has taken them."""

    def __init__(
        self,
        strategy: Strategy,
        began: float,
        lease: Lease | None = None,
        sampler: int | None = None,
        me: WorkerId = 0,
    ) -> None:
        self.strategy = strategy
        self.whole = strategy.every if lease is None else lease.steps
        """Steps of the training that this round makes."""
        self.steps = self.planned = strategy.every if lease is None else lease.steps_for(me)
        """Steps that this worker takes (`steps`) and was to take (`planned`)."""
        self.first = 0
        """Steps of the training before the first of them."""
        self.taken = 0
        self.so_far = SoFar(began)
        self.pace: Pace | None = None
        """How this worker took its steps; known once the round is due, if the strategy is
        asynchronous."""
        self.place = 0
        """This worker's place in the table that tells the pace."""
        self.lease = lease
        self.dealt = lease
        """The lease before some of its steps were left out."""
        self.sampler = sampler
        self._sent: int | None = None
        """Steps that were taken when the contribution was made ahead, with the last of them."""
        self.closes = False
        """True if the round comes after the last step that is taken, and not with it."""
        self.left = False
        """True if the script has left the batches that the lease is of."""

    def weight(self, me: WorkerId) -> int:
        """Return the samples that this worker's gradient stands for in the next step."""
        return 1 if self.lease is None else len(self.lease.batch(me, self.taken))

    @cached_property
    def crew(self) -> list[WorkerId]:
        """Workers that were dealt samples for these steps."""
        lease = self.dealt
        return [] if lease is None else [one for one in lease.slots if len(lease.of(one))]

    def end(self, lease: Lease | None) -> None:
        """End the steps with those that are taken. ``lease``: the lease for these."""
        self.steps, self.lease, self.closes = self.taken, lease, True
        if not self.strategy.asynchronous:  # else the steps of all workers decide that
            self.whole = self.taken

    def share(self, worker: WorkerId) -> int:
        """Return the samples that this worker's contribution stands for. A contribution that is
        made ahead stands for all samples that were dealt, even if some are left out later."""
        if self.pace is not None and worker == self.pace.worker:
            return self.pace.samples
        lease = self.dealt if self.strategy.delay else self.lease
        if lease is None:
            return self.planned if self.strategy.delay else self.steps
        return len(lease.of(worker))

    def weigh(self, workers: Sequence[WorkerId]) -> tuple[int, int]:
        """Return the samples of all these contributions, and how many of these stand for any."""
        lease = self.dealt if self.strategy.delay else self.lease
        if lease is None:
            return len(workers) * self.share(workers[0]), len(workers)
        return lease.weigh(workers)

    def first_dealt(self, workers: Sequence[WorkerId]) -> WorkerId | None:
        """Return the first of these that was dealt samples, or None: the same on all workers."""
        lease = self.lease
        return next((one for one in workers if lease is None or len(lease.of(one))), None)

    @property
    def sends(self) -> bool:
        """True if a contribution is made ahead with the next step, or with the round."""
        delay = self.strategy.delay if self.dealt is None else self.dealt.delay
        due = self._sent is None and self.steps - self.taken <= delay + 1
        return due and self.strategy.delay > 0

    @property
    def sent(self) -> int | None:
        """Steps that were taken when the contribution was made ahead; None: it was not."""
        return self.taken if self.closes and self.sends else self._sent

    def take(self, weight: int, loss: float | None, rate: float) -> None:
        """Count one more step, with the learning rate that the script wants."""
        if self.strategy.delay and self.sends:
            self._sent = self.taken + 1
        self.taken += 1
        self.so_far.add(weight, loss, rate)


class _Recent:
    """The time of a step in one worker's recent turns. A turn is often too short for its time alone
    to tell much."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque()
        """For each turn the time when it was over, and the seconds of one step of it."""

    def seconds(self, taken: int, seconds: float, now: float) -> float:
        """Return the seconds for ``taken`` steps, after a turn in which they took ``seconds``. It
        uses the median of the turns that were over in the last second, including this one.

        The second is one of the clock, not of the worker's own steps: a worker that was slow is
        dealt little, and would count as slow for long. The median is better than a mean: one long
        turn would outweigh all others.
        """
        if not taken:
            return seconds
        self._steps.append((now, seconds / taken))
        while self._steps[0][0] < now - _LATELY:
            self._steps.popleft()
        return taken * median(one for _, one in self._steps)


class WorkerSteps:
    """One worker's turns (`RoundSteps`), one after the other. All of it is local."""

    def __init__(
        self,
        training: TrainingState[Any],
        me: WorkerId,
        membership: Callable[[], Membership],
        clock: Callable[[], float],
    ) -> None:
        """``membership`` returns the present one. ``clock`` is the fabric's."""
        self._training = training
        self._me = me
        self._membership = membership
        self._clock = clock
        self.now = self._begun()
        self._gradients = 0
        """Gradients that this worker was given for steps."""
        self._contributed = 0
        """Gradients of this worker in committed rounds."""
        self._steps_taken = 0
        """Steps that this worker has taken."""
        self._recent = _Recent()
        self._loop = -1
        """Number of the batches that it drew from last."""

    def _begun(self) -> RoundSteps:
        begun = RoundSteps(self._training.sync.strategy, self._clock())
        begun.first = self._training.progress.steps
        return begun

    @property
    def _asynchronous(self) -> bool:
        """True if workers may take different numbers of steps in a turn."""
        return self.now.strategy.asynchronous

    @property
    def level(self) -> bool:
        """True outside of a round's steps, before the first of them and after the last: replicas
        are equal; workers may join, leave or stop."""
        turn = self.now
        return not 0 < turn.taken < turn.steps

    @property
    def whole(self) -> bool:
        """True if all that the script trains with is as a step has left it, on all workers: it may
        be kept, and all may stop."""
        return self.level and self.at_rest

    @property
    def at_rest(self) -> bool:
        """True if what the script alone knows of is as a step has left it."""
        own = self._training.model.own
        return own is None or own.at_rest

    @property
    def wasted(self) -> int:
        """Gradients that were computed and did not count."""
        return self._gradients - self._contributed

    def next_batch(self, number: int) -> Indices | None:
        """Draw this worker's next batch from the script's batches of this number."""
        turn = self.now
        if turn.lease is None or turn.sampler != number:
            strategy = turn.strategy
            paces = self._paces if strategy.asynchronous else evenly
            how = self._membership(), strategy.every, paces, strategy.delay
            lease = self._training.position.draw(number, *how)
            if lease is None:
                return None
            # The time between a script's steps is part of its pace; the time between loops is not.
            began = turn.so_far.began if number == self._loop else self._clock()
            self._loop = number
            turn = RoundSteps(strategy, began, lease, number, self._me)
            turn.so_far.take_over(self.now.so_far)
            self.now = turn
        assert turn.lease is not None
        mine = turn.lease.batch(self._me, turn.taken)
        # Without samples of its own it borrows one, and its gradient does not count. So the script
        # does the same on all workers, also in its other calls in the loop.
        return (mine if len(mine) else turn.lease.samples[:1]).copy()

    def leave_batches(self, number: int) -> None:
        """The script leaves its batches of this number. If it is in the middle of a round's steps,
        the steps that were taken are still to have their round."""
        mine = self.now.sampler == number
        self._training.position.leave(number, used=mine and not self.level)
        if mine and self.level:
            self.renew()
        elif mine:
            self.now.left = True

    def _paces(self, workers: Sequence[WorkerId]) -> Sequence[int]:
        return paces(workers, self._training.sync.paces, self.now.strategy.every)

    def position(self) -> StepPosition:
        """Return the position of the next step, or of the round if no step is left."""
        training, turn, me = self._training, self.now, self._me
        done = training.progress
        share, rate, steps = turn.share(me), training.rate.asked, done.steps
        if not turn.taken:
            turn.first = steps
        if turn.closes:
            return StepPosition(0.0, share, True, steps, rate, done.rounds, turn.sends)
        known = turn.weight(me), share, turn.taken + 1 == turn.steps
        if not turn.strategy.asynchronous:
            return StepPosition(*known, steps + 1, rate, done.rounds, turn.sends)
        members = self._membership()
        after = turn.first + (turn.taken + 1) * turn.whole // turn.steps
        return StepPosition(
            *known,
            after,
            rate,
            done.rounds,
            turn.sends,
            after - steps,
            me,
            [worker for worker in members.ids if worker != me],
            generator(done.seed, me, self._steps_taken).random(),
            before(me, members, done.seed, done.rounds),
            members.generation,
            members.ids if turn.lease is None else turn.crew,
        )

    @property
    def comes_together(self) -> bool:
        """True if a round must come first, as the script asks for something that all must ask for
        between the same steps. Raises UsageError if workers take different numbers of steps
        here."""
        training = self._training
        if self._asynchronous and (training.position.inside or not (self.level or self.now.left)):
            raise UsageError(
                f"worker {self._me}, step {training.progress.steps}: workers take different "
                f"numbers of steps on the way to a round of {training.sync.strategy}: call mean(), "
                "once(), gather() and sum() after the loop over batches, and not in it"
            )
        return self._asynchronous and self.now.left

    def check_free(self) -> None:
        """Check that no batch is left in the script's hands, as it asks for something while a round
        is under way. Raises UsageError if one is, on all workers alike."""
        training = self._training
        if training.batch is not None:
            raise UsageError(
                f"worker {self._me}, step {training.progress.steps}: a round of "
                f"{training.sync.strategy} is under way: call mean(), once(), gather() and sum() "
                "after the step with a batch, and not before it"
            )

    def take(self, now: StepPosition, loss: float | None) -> None:
        """Take one more step, which stands at ``now``."""
        training, turn = self._training, self.now
        done, weight = training.progress, int(now.samples)
        turn.take(weight, loss, now.rate)
        self._gradients += weight > 0
        training.meter.took(weight)
        self._steps_taken += 1
        if turn.taken == turn.steps:
            self._tell()
        # So all steps of the round count once this worker has taken its last one.
        done.adds = turn.first + turn.taken * turn.whole // turn.steps - done.steps

    def advance(self) -> None:
        """Count the last step on this worker alone: it has no round."""
        done = self._training.progress
        done.steps += done.adds
        done.adds = 1

    def end(self) -> None:
        """End the turn with the steps that are taken."""
        turn, dealer = self.now, self._training.position.dealer
        lease = turn.lease
        if lease is not None and not self._asynchronous:  # else the round tells how many all took
            lease = dealer.end([turn.taken] * len(lease.slots))
        turn.end(lease)
        self._tell()
        done = self._training.progress
        done.adds = turn.first + turn.whole - done.steps

    def _tell(self) -> None:
        """Note how the steps went, and this worker's place in the table: their round is due."""
        turn, me = self.now, self._me
        if not turn.strategy.asynchronous:
            return
        slots = self._membership().ids if turn.lease is None else turn.lease.slots
        turn.place = slots.index(me) if me in slots else -1
        now = self._clock()
        seconds = self._recent.seconds(turn.taken, now - turn.so_far.began, now)
        turn.pace = Pace(me, turn.planned, turn.taken, turn.so_far.samples, seconds)

    def described(self, workers: Sequence[WorkerId]) -> dict[str, Any]:
        """Return what the trace says of the finished round: its batches; its part of the model; the
        steps of each of these workers, if the strategy is asynchronous; and if contributions were
        made ahead, when, and the samples that they stand for."""
        turn, sync = self.now, self._training.sync
        known: dict[str, Any] = {}
        if turn.lease is not None:
            known |= {"loop": turn.sampler, "pass": turn.lease.pass_number}
        if sync.strategy.fragments > 1:
            known["buckets"] = [*sync.memory.buckets_of(self._training.progress.rounds - 1)]
        if self._asynchronous:
            taken = {one.worker: one.taken for one in self._training.sync.paces}
            known["taken"] = [taken.get(worker, 0) for worker in workers]
        if turn.sent is None:
            return known
        return {**known, "sent": turn.sent, "shares": [turn.share(one) for one in workers]}

    @property
    def planned(self) -> dict[str, int]:
        """What the script has asked for with the batches that it goes through."""
        number = self.now.sampler
        return {} if number is None else self._training.position.planned(number)

    def counted(self, samples: int) -> None:
        """Count a committed round of these steps, with this many ``samples`` of all workers."""
        self._contributed += self.now.so_far.brought
        if self.now.lease is not None:
            self._training.meter.used(samples)

    def renew(self) -> None:
        """Begin the next turn, with the strategy that is followed now."""
        self._training.progress.adds = 1
        before, self.now = self.now, self._begun()
        self.now.so_far.take_over(before.so_far)
