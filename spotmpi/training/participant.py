"""What a worker is in a training, as its script sees it: one protocol for all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

from spotmpi.errors import Left
from spotmpi.fabric import Message
from spotmpi.fabric import Steps as Asks
from spotmpi.launcher_channel import IN_SCRIPT, LauncherChannel
from spotmpi.protocol.exact_means import like, numbers_of
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.sampler import Indices
from spotmpi.rounds.early_sum import EarlySum
from spotmpi.rounds.round import Summed
from spotmpi.rounds.subset_calls import Combine, Parts
from spotmpi.rounds.summand import GrowingSummand, Summand, Words
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.worker_context import WorkerContext

__all__ = ["Mail", "Outsider", "Participant", "turned_away"]

_LOG = logging.getLogger(__name__)

P = TypeVar("P")


class Mail(Protocol):
    """What goes from worker to worker, beside rounds."""

    def post(self, to: WorkerId, key: bytes, content: Any) -> Asks[None]:
        """Send bytes to another worker; ``key``: says what for. Local, and does not wait."""

    def receive(
        self, senders: Collection[WorkerId], key: bytes, waits: bool
    ) -> Asks[Message | None]:
        """Return the next message of this key from one of these workers; None on a newcomer, or if
        none has come and this call does not wait. Raises PeersLost if one of them is lost. Local,
        but for recoveries meanwhile."""

    def ask_some(
        self, key: bytes, workers: Sequence[WorkerId], mine: Parts, combine: Combine
    ) -> Asks[Parts]:
        """Return what ``combine`` makes of what these workers bring; ``mine``: this one's.
        Collective among them: each call of this ``key`` is, in the same order."""


class NoMail:
    """The mail of a newcomer: nothing goes anywhere."""

    def post(self, to: WorkerId, key: bytes, content: Any) -> Asks[None]:
        """Do nothing: the others do not wait for it."""
        yield from ()

    def receive(
        self, senders: Collection[WorkerId], key: bytes, waits: bool
    ) -> Asks[Message | None]:
        """Return None: nobody posts to a newcomer."""
        yield from ()
        return None

    def ask_some(
        self, key: bytes, workers: Sequence[WorkerId], mine: Parts, combine: Combine
    ) -> Asks[Parts]:
        """Return what comes of this worker's own part: it counts for nothing."""
        yield from ()
        return combine({})


class Participant(Protocol):
    """A worker in a training. What returns `Asks` is collective, for workers that take part in
    rounds. For all others it is local, but for `step`, by which a newcomer joins."""

    @property
    def context(self) -> WorkerContext:
        """What connects the worker with its job."""

    @property
    def me(self) -> WorkerId:
        """This worker."""

    @property
    def mail(self) -> Mail:
        """What goes from worker to worker."""

    @property
    def membership(self) -> Membership:
        """The workers that take part now, as far as it is known here."""

    @property
    def taught(self) -> bool:
        """True if a newcomer learnt with the last round, or was to learn. Alike on all that take
        part."""

    @property
    def stopping(self) -> bool:
        """True if all are to stop at the next boundary where they can. Alike on all that take
        part."""

    def next_batch(self, number: int) -> Indices | None:
        """Return the next batch of the script's batches of this number; None: used up. Local."""

    def leave_batches(self, number: int) -> None:
        """The script leaves its batches of this number. Local."""

    def round_off(self) -> Asks[None]:
        """Do a round for the steps that were taken since the last one, if there are any."""

    def ready(self, key: Any, array: Any) -> Asks[Participant]:
        """Take one array of the gradient for the next step. Return who takes part from now on."""

    def step(self, grads: Any, loss: float | None) -> Asks[Participant]:
        """Do one step. Return who takes part from now on. Raises Left if nobody does."""

    def mean(self, x: Any) -> Asks[Any]:
        """Return the mean of ``x`` over all workers."""

    def once(self, work: Callable[[], bytes], of: str | None = None) -> Asks[bytes]:
        """Return the value of ``work``, which one worker does for all; ``of``: the work's name."""

    def gather(self, mine: bytes, about: str = "") -> Asks[bytes]:
        """Return a packed dict of all workers' packed values, by worker. ``mine``: this one's.
        ``about``: says what they are, alike on all."""

    def sum(self, mine: Summand | Words, step: bool = False) -> Asks[Summed]:
        """Return the sum of what all workers bring, flat, in memory that the next round may use.
        ``mine``: what this one brings. ``step``: the sum stands for a step, which the script takes
        by itself."""

    def begin_sum(self, mine: GrowingSummand, step: bool = False) -> Asks[EarlySum | None]:
        """Begin the sum of arrays that come one by one; None on a newcomer. Nothing else may be
        asked for until it is ended. ``step``: as `sum` has it."""

    def ask_for_checkpoint(self) -> None:
        """Have a checkpoint written at the end of the next step. Local."""

    def finish(self) -> Asks[None]:
        """Leave: the script is at its end. Raises Left if the script must not go on."""

    def abandon(self) -> Asks[None]:
        """Give up what is under way: the script has failed. Local."""


class Outsider(Generic[P]):
    """A newcomer that takes no part in rounds. All that is here is local."""

    def __init__(self, context: WorkerContext, training: TrainingState[P]) -> None:
        self.context = context
        self.training = training
        briefing = context.history.briefing
        assert briefing is not None
        self.membership = briefing.membership
        """The others' membership, as far as it is known."""
        self.mail = NoMail()
        self.tell_progress(IN_SCRIPT)

    def tell_progress(self, doing: int) -> None:
        """Tell the launcher what this worker is ``doing`` from now on."""
        self.context.channel.progressed(self.me, 0, self.training.progress.steps, doing)

    @property
    def me(self) -> WorkerId:
        """This worker."""
        return self.context.fabric.me

    @property
    def taught(self) -> bool:
        """False: it takes no part in rounds."""
        return False

    @property
    def stopping(self) -> bool:
        """False: it takes no part in rounds."""
        return False

    def leave_batches(self, number: int) -> None:
        """The script leaves its batches of this number."""
        self.training.position.leave(number)

    def round_off(self) -> Asks[None]:
        """Do nothing: the others do their rounds without this worker."""
        yield from ()

    def ready(self, key: Any, array: Any) -> Asks[Participant]:
        """Check one array of the gradient, and keep it for the step."""
        self.training.gradient.pieces.check(key, array)
        self.training.sync.give(key, array)
        yield from ()
        return self  # type: ignore[return-value]  # what is derived from it has all

    def mean(self, x: Any) -> Asks[Any]:
        """Return the script's own value: it counts for nothing."""
        yield from ()
        return like(x, numbers_of(x))

    def begin_sum(self, mine: GrowingSummand, step: bool = False) -> Asks[EarlySum | None]:
        """Return None: a newcomer brings nothing to a sum."""
        yield from ()
        return None

    def ask_for_checkpoint(self) -> None:
        """Do nothing: nothing here is worth keeping."""

    def abandon(self) -> Asks[None]:
        """Do nothing: nothing is under way."""
        yield from ()


def turned_away(channel: LauncherChannel, me: WorkerId, what: str) -> Left:
    """Return an exception for a newcomer that cannot take part, and tell the launcher."""
    why = f"worker {me} was not admitted: {what}"
    channel.tell("withdrawn", why=why)
    _LOG.info("%s", why)
    return Left(why)
