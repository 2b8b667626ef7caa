"""What the launcher orders of a worker: looked up in each round, and done there or said to all. And
what a newcomer is told that the worker brings in."""

from __future__ import annotations

import json
from typing import Any

from spotmpi.protocol.ledger import Ledger
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.state_pages import pack
from spotmpi.training.training_state import TrainingState
from spotmpi.training.worker_context import WorkerContext

__all__ = ["LauncherOrders"]


class LauncherOrders:
    """One worker's. Local, all of it."""

    def __init__(self, place: WorkerContext, training: TrainingState[Any], me: WorkerId) -> None:
        self._place, self._training, self._me = place, training, me
        self.stop = self.leave = False
        """What this worker says in its control words: all should stop, it is to leave."""

    def obey(self, membership: Membership, in_step: bool) -> None:
        """Do what is ordered now. ``in_step``: the open round is one of steps."""
        fabric, channel = self._place.fabric, self._place.channel
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
        # In no other round: an answer that its script needs may be to come.
        if in_step and self._training.position.tellable:
            fabric.brief(lambda: self._prospectus(membership))

    def why_to_stop(self, remain: int) -> str:
        """For its user: why all stop, if so many workers remain, and what is kept."""
        given = self._place.settings
        why = f"too few workers remain: {remain}, and {given.min_workers} were asked for"
        if remain >= given.min_workers:
            why = f"the {'workers were' if self.leave else 'job was'} told to stop"
        if given.checkpoint is None:
            return f"{why}; it keeps no checkpoints"
        step = self._training.progress.steps
        return f"{why}; a checkpoint of step {step} is in {given.checkpoint}"

    def _prospectus(self, membership: Membership) -> bytes:
        """What a newcomer's script needs to get to where the others are."""
        fields = {
            **self._place.history.told(),
            "membership": pack(membership),
            "facts": [value for _, value in self._training.facts(self._place.settings)],
            "rest": self._training.registry.snapshot(None),
        }
        return json.dumps(fields).encode()

    def charter(self, membership: Membership, ledger: Ledger, lessons: Any, numbers: int) -> bytes:
        """What a newcomer must know to take part in the next round."""
        fields = {
            "membership": pack(membership),
            "before": pack(ledger.last),
            "committed": ledger.committed,
            "lessons": lessons,
            "numbers": numbers,
            "rounds": self._training.progress.rounds,
            "strategy": self._training.strategy,
        }
        return json.dumps(fields).encode()
