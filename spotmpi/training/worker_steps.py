"""Steps on the way to a round: which of them a worker has taken, with which samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.operators import StepPosition
from spotmpi.protocol.drawn_ring import before
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.paces import Pace, paces
from spotmpi.protocol.sampler import Indices, Lease, generator
from spotmpi.strategies import Strategy
from spotmpi.training.training_state import TrainingState

__all__ = ["RoundSteps", "WorkerSteps"]

_LATELY = 1.0
"""Seconds of its steps by which a worker's pace is seen."""


class RoundSteps:
    """The steps of the round to come, as far as this worker has taken them."""

    def __init__(
        self,
        steps: int,
        ahead: int,
        began: float,
        lease: Lease | None = None,
        sampler: int | None = None,
        me: WorkerId = 0,
    ) -> None:
        """``ahead``: what the round is brought is made so many steps before it ends."""
        self.whole = self._planned = steps if lease is None else lease.steps
        """Steps of the training that these are, ..."""
        self.steps = self.planned = steps if lease is None else lease.steps_for(me)
        """... and those that this worker takes, and was to take."""
        self.first = 0
        """Steps of the training before the first of them."""
        self.began = began
        """When this worker could begin with them; the fabric's clock."""
        self.pace: Pace | None = None
        """How it took them, ..."""
        self.place = 0
        """... and where that is told; once its round is due, and if workers are paced."""
        self.lease = lease
        self.dealt = lease
        """The lease as it was before some of its steps were left out."""
        self.sampler = sampler
        self._ahead = ahead
        self.sent: int | None = None
        """Steps that were taken when it was made."""
        self._sends_last = False
        """It is made when the round is all that is left."""
        self.taken = 0
        self.brought = 0
        """Those with a gradient that counts ..."""
        self.samples = 0
        """... and for how many samples they do."""
        self.loss = self.loss_weight = 0.0
        self.rates: list[float] = []
        """That the script wanted in each of them."""
        self.closes = False
        """The round comes after the last step that is taken, and not with it."""
        self.left = False
        """The script has left the batches that the lease is of."""

    @property
    def last(self) -> bool:
        """Whether the next step is the last one of the round."""
        return self.taken + 1 == self.steps

    @property
    def under_way(self) -> bool:
        """Whether some steps are taken, and not all."""
        return 0 < self.taken < self.steps

    def weight(self, me: WorkerId) -> int:
        """Samples that this worker's gradient stands for in the next step."""
        return 1 if self.lease is None else len(self.lease.batch(me, self.taken))

    @property
    def reached(self) -> int:
        """Steps of the training that are taken with those that this worker has taken, if it takes
        all of them."""
        return self.first + self.taken * self.whole // self.steps

    @cached_property
    def crew(self) -> list[WorkerId]:
        """Who was dealt samples for these steps."""
        lease = self.dealt
        return [] if lease is None else [one for one in lease.slots if len(lease.of(one))]

    def end(self, lease: Lease | None, paced: bool) -> None:
        """The steps that are taken are all that there will be. ``lease``: that for these.
        ``paced``: what that is to the training, follows from what others have taken."""
        self.steps, self.lease, self.closes = self.taken, lease, True
        if not paced:
            self.whole = self.taken
        self._sends_last = self._ahead > 0 and self.sent is None
        if self._sends_last:
            self.sent = self.taken

    def share(self, worker: WorkerId) -> int:
        """Samples that the contribution of this worker stands for. What is under way before the
        last step stands for all that was dealt, whatever is left out of it then."""
        if self.pace is not None and worker == self.pace.worker:
            return self.pace.samples
        lease = self.dealt if self._ahead else self.lease
        if lease is None:
            return self._planned if self._ahead else self.steps
        return len(lease.of(worker))

    def weigh(self, workers: Sequence[WorkerId]) -> tuple[int, int]:
        """The same of all these, and how many of their contributions stand for any."""
        lease = self.dealt if self._ahead else self.lease
        if lease is None:
            return len(workers) * self.share(workers[0]), len(workers)
        return lease.weigh(workers)

    def first_dealt(self, workers: Sequence[WorkerId]) -> WorkerId | None:
        """The first of these that was dealt samples, if one was: all workers find the same."""
        lease = self.lease
        return next((one for one in workers if lease is None or len(lease.of(one))), None)

    @property
    def sends(self) -> bool:
        """What is made ahead is made with the next step, or with the round."""
        if self.closes:
            return self._sends_last
        return self._ahead > 0 and self.sent is None and self.steps - self.taken <= self._ahead + 1

    def take(self, weight: int, loss: float | None, rate: float) -> None:
        """One step more, with the learning rate that the script wants."""
        if self.sends:
            self.sent = self.taken + 1
        self.taken += 1
        self.rates.append(rate)
        self.brought += weight > 0
        self.samples += weight
        if loss is not None:
            self.loss += float(loss) * weight
            self.loss_weight += weight


class _Recent:
    """What a step of one worker's last turns took. Many turns are too short for their time alone to
    tell much."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque()
        """When each turn was over, and the seconds of a step of it."""

    def seconds(self, taken: int, seconds: float, now: float) -> float:
        """What so many steps take, now that they took ``seconds``: by the median of the turns that
        were over in the last second, this one among them.

        The clock's second, and not one of the worker's own steps: whoever was slow is dealt little,
        and would be taken for slow for long. And no mean: one long turn would outweigh all others.
        """
        if not taken:
            return seconds
        self._steps.append((now, seconds / taken))
        while self._steps[0][0] < now - _LATELY:
            self._steps.popleft()
        return taken * median(one for _, one in self._steps)


class WorkerSteps:
    """One worker's turns, one after the other. Local, all of it."""

    def __init__(
        self,
        training: TrainingState[Any],
        me: WorkerId,
        membership: Callable[[], Membership],
        clock: Callable[[], float],
    ) -> None:
        """``membership``: of now. ``clock``: the fabric's."""
        self._training = training
        self._me = me
        self._membership = membership
        self._clock = clock
        self.follow(training.replica.strategy)
        self._gradients = 0
        """Gradients that this worker was given for steps ..."""
        self._contributed = 0
        """... and those in committed rounds."""
        self._steps_taken = 0
        """By this worker."""
        self._recent = _Recent()
        self._loop = -1
        """Batches that it drew from last."""

    def follow(self, strategy: Strategy) -> None:
        """The next turn begins, with this strategy."""
        self._steps, self._ahead = strategy.steps, strategy.ahead
        self.paced = strategy.paced
        """Workers may take different numbers of steps in a turn."""
        self.now = RoundSteps(self._steps, self._ahead, self._clock())

    @property
    def level(self) -> bool:
        """Not in the middle of a round's steps: all hold the same, and may come, go or stop."""
        return not self.now.under_way

    @property
    def vain(self) -> int:
        """Gradients that were computed and did not count."""
        return self._gradients - self._contributed

    def next_batch(self, number: int) -> Indices | None:
        """Draw this worker's next batch from the script's batches of this number."""
        turn = self.now
        if turn.lease is None or turn.sampler != number:
            how = [self._paces] if self.paced else []
            lease = self._training.position.draw(number, self._membership(), self._steps, *how)
            if lease is None:
                return None
            # What a script does between its steps is of its pace, between its loops it is not.
            began = turn.began if number == self._loop else self._clock()
            self._loop = number
            turn = self.now = RoundSteps(self._steps, self._ahead, began, lease, number, self._me)
        assert turn.lease is not None
        mine = turn.lease.batch(self._me, turn.taken)
        # With nothing of its own it borrows a sample and counts for nothing: the script stays
        # the same on all workers, whatever else it calls in the loop.
        return (mine if len(mine) else turn.lease.samples[:1]).copy()

    def leave_batches(self, number: int) -> None:
        """The script leaves its batches of this number; if that is in the middle of a round's
        steps, those that were taken are to have their round yet."""
        mine = self.now.sampler == number
        self._training.position.leave(number, used=mine and not self.level)
        if mine and self.level:
            self.renew()
        elif mine:
            self.now.left = True

    def _paces(self, workers: Sequence[WorkerId]) -> Sequence[int]:
        return paces(workers, self._training.paces, self._steps)

    def moment(self) -> StepPosition:
        """Of the next step, or of the round that is left to come."""
        training, turn, me = self._training, self.now, self._me
        done = training.progress
        share, rate, steps = turn.share(me), training.rate.asked, done.steps
        if not turn.taken:
            turn.first = steps
        if turn.closes:
            return StepPosition(0.0, share, True, steps, rate, done.rounds, turn.sends)
        known = turn.weight(me), share, turn.last
        if not self.paced:
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
        """The script asks for something that all must ask for between the same steps: whether a
        round must come first. Raises UsageError where workers take different numbers of them."""
        training = self._training
        if self.paced and (training.position.inside or not (self.level or self.now.left)):
            raise UsageError(
                f"worker {self._me}, step {training.progress.steps}: workers take different "
                f"numbers of steps on the way to a round of {training.replica.strategy}: ask for a "
                "mean, or for what is done once, after the loop over batches, and not in it"
            )
        return self.paced and self.now.left

    def check_free(self) -> None:
        """The script asks for something else while a round is under way: then no batch may be left
        in its hands. Raises UsageError, on all workers alike."""
        training = self._training
        if training.batch is not None:
            raise UsageError(
                f"worker {self._me}, step {training.progress.steps}: a round of "
                f"{training.replica.strategy} is under way: ask for a mean, or for what is done "
                "once, after the step with a batch, and not before it"
            )

    def take(self, loss: float | None) -> None:
        """One step more."""
        turn, done = self.now, self._training.progress
        weight = turn.weight(self._me)
        turn.take(weight, loss, self._training.rate.asked)
        self._gradients += weight > 0
        self._training.meter.took(weight)
        self._steps_taken += 1
        if turn.taken == turn.steps:
            self._tell()
        done.adds = turn.reached - done.steps

    def advance(self) -> None:
        """The step that was taken last has no round: it counts on this worker."""
        done = self._training.progress
        done.steps += done.adds
        done.adds = 1

    def end(self) -> None:
        """The steps that are taken are all that there will be in this turn."""
        turn, dealer = self.now, self._training.position.dealer
        lease = turn.lease
        if lease is not None and not self.paced:  # else the round tells what all have taken
            lease = dealer.end([turn.taken] * len(lease.slots))
        turn.end(lease, self.paced)
        self._tell()
        done = self._training.progress
        done.adds = turn.first + turn.whole - done.steps

    def _tell(self) -> None:
        """The round of these steps is due: how they went is told with it, in the place of this
        worker."""
        turn, me = self.now, self._me
        if not self.paced:
            return
        slots = self._membership().ids if turn.lease is None else turn.lease.slots
        turn.place = slots.index(me) if me in slots else -1
        now = self._clock()
        seconds = self._recent.seconds(turn.taken, now - turn.began, now)
        turn.pace = Pace(me, turn.planned, turn.taken, turn.samples, seconds)

    def described(self, workers: Sequence[WorkerId]) -> dict[str, Any]:
        """For the trace, of the round that is done: which batches it was of, and which part of the
        model; how many steps each of these workers took, if not all took as many; and if its
        contributions were made ahead, when, and what they stand for."""
        turn, replica = self.now, self._training.replica
        known: dict[str, Any] = {}
        if turn.lease is not None:
            known |= {"loop": turn.sampler, "pass": turn.lease.pass_number}
        if replica.strategy.fragments > 1:
            known["buckets"] = [*replica.buckets_of(self._training.progress.rounds - 1)]
        if self.paced:
            taken = {one.worker: one.taken for one in self._training.paces}
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
        """Their round is committed, with gradients of all workers of so many samples."""
        self._contributed += self.now.brought
        if self.now.lease is not None:
            self._training.meter.used(samples)

    def renew(self) -> None:
        """The next turn begins."""
        self._training.progress.adds = 1
        self.now = RoundSteps(self._steps, self._ahead, self._clock())
