"""How a worker comes among the others: with all of them at the start, or alone and later.

Whoever comes later is a visitor first. It runs its script to where the others' are, rehearses a
batch, and with its first step is let in and taught; a `Session` takes its place then.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from spotmpi.errors import CheckpointError, Left, PeersLost, UsageError
from spotmpi.fabric import Knock, Meet
from spotmpi.fabric import Steps as Asks
from spotmpi.protocol.exact_means import like, numbers_of
from spotmpi.protocol.ledger import Ledger
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.sampler import FIRST_SAMPLE, Indices
from spotmpi.protocol.state_pages import unpack
from spotmpi.settings import Settings
from spotmpi.training import checkpoint_folder
from spotmpi.training.handshake import check_facts, shake_hands
from spotmpi.training.registered import Training
from spotmpi.training.session import Place, Session

if TYPE_CHECKING:
    from spotmpi.training.checkpoint_file import Checkpoint

_LOG = logging.getLogger(__name__)

P = TypeVar("P")


def enter(place: Place, training: Training[P]) -> Asks[Session[P] | Visitor[P]]:
    """Connect; collective, but for a newcomer."""
    training.replica.furnish(place.fabric.arena)
    if place.settings.newcomer is None:
        return (yield from _begin(place, training))
    visitor = Visitor(place, training)
    yield from visitor.look_around()
    return visitor


def _begin(place: Place, training: Training[P]) -> Asks[Session[P]]:
    fabric, given, channel = place.fabric, place.settings, place.channel
    try:
        found = _resume(given, training)
    except (CheckpointError, UsageError) as error:
        channel.tell("unable", why=str(error))
        raise
    if given.checkpoint is not None:
        from spotmpi.training import checkpoint_file  # HDF5: only for those who need it

        checkpoint_file.check_arrays(training.registry.described())
    saw = ("the checkpoint that they see", f"step {found.step}" if found else "none")
    facts = [*training.facts(given), saw]
    yield from shake_hands(fabric.me, fabric.membership, facts, fabric.arena)
    channel.tell("ready")  # from here on a loss is recovered from
    if training.rate.reference is None:
        training.rate.reference = len(fabric.membership)
    if fabric.membership.ids[0] == fabric.me:
        place.trace.begin(resume=found is not None)
        place.trace.write("start", **_start_record(place, training))
        if found is not None:
            place.trace.write("resume", step=found.step, path=str(found.path))
    session = Session(place, training, fabric.membership)
    yield from session.begin()
    channel.tell("underway")
    _LOG.info(
        "generation 0, step %d: %d workers begin", training.progress.steps, len(fabric.membership)
    )
    return session


def _resume(given: Settings, training: Training[Any]) -> Checkpoint | None:
    if given.checkpoint is None:
        return None
    # A launcher has looked before, and says so only if there is something.
    begins = given.job is None and not checkpoint_folder.some(given.checkpoint)
    if begins or not given.resume:
        checkpoint_folder.check_unused(given.checkpoint)
        return None
    from spotmpi.training import checkpoint_file  # HDF5: only for those who need it

    warn = partial(warnings.warn, category=RuntimeWarning, stacklevel=5)
    found = checkpoint_file.load_latest(given.checkpoint, warn)
    training.registry.resume({**found.state, "steps": found.step}, str(found.path))
    return found


def _start_record(place: Place, training: Training[Any]) -> dict[str, Any]:
    fabric, given, replica = place.fabric, place.settings, training.replica
    optimizer = replica.optimizer
    return {
        "workers": fabric.membership.ids,
        "hosts": [worker.host for worker in fabric.membership],
        "params": replica.size,
        "seed": training.progress.seed,
        "strategy": str(replica.strategy),
        "optimizer": None if optimizer is None else type(optimizer).__name__,
        "lr": None if optimizer is None else optimizer.lr,
        "version": place.version,
        "detect_ms": None if given.job is None else given.detect_ms or "auto",
    }


class Visitor(Generic[P]):
    """A newcomer that is connected to its sponsor, and takes no part in rounds yet."""

    def __init__(self, place: Place, training: Training[P]) -> None:
        self.place = place
        self.training = training
        self.me = place.fabric.me
        self.membership = Membership.first(["localhost"])
        """Of the others, as far as it is known."""

    def look_around(self) -> Asks[None]:
        """Hear from one of the others how far its script has come. Raises Left if it is gone."""
        try:
            prospectus = json.loads((yield Meet()))
        except PeersLost:
            raise self._turned_away() from None
        self.membership = unpack(prospectus["membership"])
        facts = self.training.facts(self.place.settings)
        check_facts(self.me, self.membership.ids[0], facts, prospectus["facts"])
        self.training.registry.take(prospectus["rest"])
        self._check_followed()
        self.place.channel.tell("ready")
        found, steps = self.membership.generation, self.training.progress.steps
        _LOG.info("generation %d, step %d: found by newcomer %d", found, steps, self.me)

    def next_batch(self, number: int) -> Indices | None:
        """One to rehearse with: the others' steps do not wait for it."""
        return None if self.training.position.used_up(number) else FIRST_SAMPLE.copy()

    def leave_batches(self, number: int) -> None:
        """The script leaves its batches of this number."""
        self.training.position.leave(number)

    def step(self, grads: P, loss: float | None) -> Asks[Session[P]]:
        """Be admitted, and taught; returns where all are after a step. Raises Left if it cannot."""
        self.training.replica.rehearse(grads)
        self.place.channel.tell("knocks")
        try:
            charter = json.loads((yield Knock()))
        except PeersLost:
            raise self._turned_away() from None
        membership = unpack(charter["membership"])
        ledger = Ledger(membership, charter["committed"], unpack(charter["before"]))
        session = Session(self.place, self.training, membership, ledger)
        self.place.channel.tell("admitted", generation=membership.generation)
        _LOG.info("generation %d: newcomer %d is admitted", membership.generation, self.me)
        yield from session.learn(charter)
        self._check_followed()
        return (yield from session.graduate())

    def mean(self, x: Any) -> Asks[Any]:
        """A rehearsal: what comes of it counts for nothing."""
        yield from ()
        return like(x, numbers_of(x))

    def once(self, work: Callable[[], bytes]) -> Asks[bytes]:
        """What the others were told since their last step. Raises Left if it cannot know that."""
        said = self.training.position.recall_of_turn()
        if said is None:
            raise self._turned_away(
                f"its script calls once() at step {self.training.progress.steps}, and the others' "
                "did not; call it on what is equal on all workers, such as trainer.steps"
            )
        yield from ()
        return said

    def finish(self, outcome: str) -> Asks[None]:
        """What stands after the block must not see a model that knows nothing. Raises Left."""
        why = f"worker {self.me} came after the last step"
        self.place.channel.tell("withdrawn", why=why)
        yield from ()
        raise Left(why)

    def _turned_away(self, what: str = "its sponsor is gone, or others were lost") -> Left:
        why = f"worker {self.me} was not admitted: {what}"
        self.place.channel.tell("withdrawn", why=why)
        _LOG.info("%s", why)
        return Left(why)

    def _check_followed(self) -> None:
        if self.training.position.lost:
            raise self._turned_away(
                "its script has asked for more, by mean() and once() outside of batches(), than "
                "is kept for newcomers; ask for less, or inside of batches()"
            )
