"""Orders of the launcher to a worker, which looks for them in each round and carries them out or
tells them to all workers. Also what a sponsor tells its newcomer."""

from __future__ import annotations

from typing import Any

from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.training.briefing import Admission, Briefing
from spotmpi.training.state.training_state import BEFORE_PAGES, TrainingState
from spotmpi.training.worker_context import WorkerContext

__all__ = ["LauncherOrders"]


class LauncherOrders:
    """The orders to one worker. Local, all of it."""

    def __init__(self, context: WorkerContext, training: TrainingState[Any], me: WorkerId) -> None:
        self._context, self._training, self._me = context, training, me
        self.stop = self.leave = False
        """What this worker's control words say: all should stop, and this worker should leave."""

    def obey(self, membership: Membership, in_step: bool) -> None:
        """Carry out the present order. ``in_step``: the open round is a round of steps."""
        fabric, channel = self._context.fabric, self._context.channel
        order = channel.order_for(self._me)
        if order is None:
            return
        self.stop = order.stop
        self.leave = self.leave or order.leave
        failure = fabric.sponsor(order.newcomer or None)
        if order.newcomer:
            channel.tell_once("spawning", order.newcomer)
        if failure is not None:
            channel.tell_once("gave_up", order.newcomer, why=failure)
        if self._training.position.answers.tellable(in_step):
            fabric.brief(lambda: self.briefing(membership).encode())

    def why_to_stop(self, remain: int) -> str:
        """Return why all workers stop, if ``remain`` remain, and what is kept. For the user."""
        given = self._context.settings
        why = f"too few workers remain: {remain}, and {given.min_workers} were asked for"
        if remain >= given.min_workers:
            why = f"the {'workers were' if self.leave else 'job was'} told to stop"
        if given.checkpoint is None:
            return f"{why}; it keeps no checkpoints"
        step = self._training.progress.steps
        return f"{why}; a checkpoint of step {step} is in {given.checkpoint}"

    def briefing(self, membership: Membership, admission: Admission | None = None) -> Briefing:
        """Return what a newcomer is told now. ``admission``: it is a member of ``membership``. It
        is where the others are by then, and gets the rest of their state with its last page."""
        history, training = self._context.history, self._training
        assert history.workers is not None
        names = None if admission is None else BEFORE_PAGES
        return Briefing(
            training=history.number,
            past=history.past if admission is None else [],
            workers=history.workers,
            membership=membership,
            facts=[value for _, value in training.facts(self._context.settings)],
            rest=training.registry.snapshot(None, names),
            admission=admission,
        )
