"""Runs rounds, from the first one to the end: what a session does around each of them.

All of it is a generator of requests (`spotmpi.fabric`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from spotmpi.errors import CheckpointError, Left, PeersLost, Stopped, Strayed
from spotmpi.fabric import Message, Post, Receive
from spotmpi.fabric import Steps as Asks
from spotmpi.launcher_channel import AT_MESSAGES, IN_ROUND, IN_SCRIPT
from spotmpi.protocol import control_word
from spotmpi.protocol.ending import EndEvent, EndState
from spotmpi.protocol.membership import WorkerId
from spotmpi.rounds.round import EndRound, Round
from spotmpi.rounds.subset_calls import Combine, Parts
from spotmpi.training.exchange import TrainingExchange

__all__ = ["RoundRunner"]

_LOG = logging.getLogger(__name__)


class RoundRunner:
    """Runs one worker's rounds, and its messages beside them (`Mail`). If all are to stop it stops,
    with a checkpoint. At the end it leaves together with all others."""

    def __init__(self, exchange: TrainingExchange) -> None:
        self._exchange = exchange
        self._driver = exchange.driver
        self._context, self._training = exchange.context, exchange.training

    def perform(self, what: Round) -> Asks[None]:
        """Do this round, which may be open already. If all are to stop, and can, they stop before
        it or after it. Raises Left or Stopped if this worker's part ends with it."""
        assert not self._driver.ledger.open or what is self._exchange.round
        while True:
            if not self._driver.ledger.open:
                yield from self._enter(what)
            self.needs_others()
            try:
                yield from self._driver.round()
            except Left:
                self._part()
                raise
            theirs = self._exchange.boundary.astray
            if theirs is None:
                break
            assert what.kind is not None
            mine, position = control_word.code_of(what.kind, what.call), self._training.position
            if position.recent and mine != theirs:
                raise self._strayed(what, control_word.KINDS[what.kind])
            position.strays += 1
        yield from self.after_round()

    def _strayed(self, what: Round, called: str) -> Strayed:
        """Return what is raised if this worker joined lately, and its script has come to another
        call than the others'. ``called``: the kind of the round."""
        why = f"its script asks for {what.about or called}, and the others' for something else"
        self._context.channel.tell("withdrawn", why=why)
        return Strayed(f"worker {self._exchange.me} leaves: {why}")

    def open_early(self, what: Round) -> Asks[None]:
        """Open this round before all contributions to it are there."""
        yield from self._enter(what)
        yield from self._meanwhile(self._driver.open())

    def begin(self, what: Round, parts: int | None = None) -> Asks[None]:
        """Open this round, bring what is there, and start its first ``parts`` parts, or all that
        may start now. Does not wait for others, but for a change of the membership."""
        yield from self.open_early(what)
        what.bring()
        may_start = self._exchange.bring_ahead()
        yield from self.start(may_start if parts is None else parts)

    def start(self, parts: int | None) -> Asks[None]:
        """Start the first ``parts`` parts of the open round: they are there. None: start all that
        the round is made of."""
        started = self._driver.started
        if parts is not None and parts <= started:
            return
        self.needs_others()
        self._exchange.round.check(started, parts)
        yield from self._driver.start(parts)
        self._goes_on()

    def post(self, to: WorkerId, key: bytes, content: Any) -> Asks[None]:
        """Send bytes to another worker; ``key``: says what for. Local, and does not wait."""
        yield Post(to, key, content)

    def ask_some(
        self, key: bytes, workers: Sequence[WorkerId], mine: Parts, combine: Combine
    ) -> Asks[Parts]:
        """Return what one of these workers makes of what all of them bring (`SubsetCalls.call`)."""
        return self._driver.subset_calls.call(key, workers, mine, combine, self.receive)

    def receive(
        self, senders: Collection[WorkerId], key: bytes, waits: bool
    ) -> Asks[Message | None]:
        """Return the next message of this key from one of these workers; None if none has come and
        this call does not wait. Takes part in recoveries meanwhile. Raises PeersLost if a sender is
        lost, and Left if this worker's part ends with a recovery."""
        while True:
            lost = {*senders}.difference(self._driver.membership.ids)
            try:
                if waits and not lost:
                    self._tell(AT_MESSAGES)
                    message: Message | None = yield Receive([*senders], key)
                    self._goes_on()
                else:
                    message = yield Receive([*senders], key, waits=False)
            except PeersLost:
                yield from self._meanwhile(self._driver.recover())
                continue
            if message is None and lost:
                raise PeersLost(f"workers {sorted(lost)} were to send something, and are lost")
            return message

    def change(self) -> Asks[None]:
        """Have workers leave or join now, if that is due before the next round. It opens no round:
        if somebody dies meanwhile, some workers find the change done and do not call this."""
        yield from self._meanwhile(self._driver.change())

    def _meanwhile(self, steps: Asks[None]) -> Asks[None]:
        """Do this with the others while the script has more to do before its next round."""
        self.needs_others()
        try:
            yield from steps
        except Left:
            self._part()
            raise
        self._goes_on()

    def _enter(self, what: Round) -> Asks[None]:
        """Make this the next round. If all are to stop, and can, they stop before it."""
        if self._may_stop and self._exchange.unapplied and what.kind != control_word.END:
            yield from self._stop()
        self._exchange.round = what

    def _part(self) -> None:
        """Write what is left: this worker has left the others."""
        self._exchange.records.close()
        self._exchange.keeper.wait()
        self._context.channel.tell("parted")
        self._context.channel.close()

    def needs_others(self) -> None:
        """Report that this worker waits for others, also for a change of the membership."""
        self._tell(IN_ROUND)

    def _goes_on(self) -> None:
        """Report that the script computes what the rest of the round is made of."""
        self._tell(IN_SCRIPT)

    def _tell(self, doing: int) -> None:
        self._exchange.tell_progress(self._driver.ledger.committed, doing)

    def after_round(self) -> Asks[None]:
        """Do what comes right after a round. If all are to stop, and can, they stop here."""
        self._exchange.compare.make()
        # It stops a round later if scripts have yet to get a value of `once`, or to apply a result
        # that must be in the checkpoint.
        if self._may_stop and not (self._exchange.boundary.owed or self._exchange.unapplied):
            yield from self._stop()

    @property
    def _may_stop(self) -> bool:
        """True if all are to stop, and can. Within a mean or a round's steps they cannot: they may
        have to go on from there. At the end they need not."""
        exchange, ending = self._exchange, self._exchange.ending
        wanted = ending.state is EndState.STOPPING and not ending.finishes
        return wanted and not exchange.memory.numbers and exchange.turns.whole

    def _stop(self) -> Asks[None]:
        """Stop with all others, with a checkpoint. Raises Stopped; returns if none can be written:
        then all go on."""
        why = self._exchange.orders.why_to_stop(len(self._driver.membership.ids))
        yield from self._close()
        if not self._exchange.ending.over:
            return
        if self._exchange.ending.finished:  # this worker came late, and did not know
            yield from self.leave_with_all("the others have finished")
        yield from self.finish()
        raise Stopped(why)

    def _close(self) -> Asks[None]:
        """Do the last rounds. After the first of them nothing can be taken back. If there is a
        place for the last state, the leader writes it in a further round. If all were to stop and
        it cannot, these are not the last rounds."""
        self._exchange.ending.handle(EndEvent.CLOSE)
        while self._exchange.ending.state in (EndState.CLOSING, EndState.KEEPING):
            exchange = self._exchange
            yield from self.perform(EndRound(exchange.memory, exchange.reached, exchange.ending))

    def leave_with_all(self, why: str) -> Asks[None]:
        """Leave, as the training is over, wherever this worker's script is. Raises Left."""
        while not self._exchange.ending.over:
            yield from self._close()
        try:
            yield from self._driver.finish(leaves=True)
        except Left:
            self._context.channel.tell("parted")
            self._context.channel.close()
            raise Left(f"worker {self._exchange.me}: {why}") from None

    def finish(self) -> Asks[None]:
        """Leave together with all others. Returns when nobody waits for this worker. Before that
        the leader waits for causes of losses, for a second at most. Raises CheckpointError if the
        end could not be kept, and there is no launcher to say so."""
        exchange, channel = self._exchange, self._context.channel
        ending, keeper = exchange.ending, exchange.keeper
        while not ending.over:
            yield from self._close()
        if exchange.leads:
            exchange.records.journal.await_causes(self._context.rest)
        yield from self._driver.finish()
        # Nobody waits for this worker any more. If the leader is lost, the next one does what it
        # left undone.
        steps, members = self._training.progress.steps, self._driver.membership.ids
        outcome = "finished" if ending.finishes else "stopped"
        _LOG.info("step %d: training has %s", steps, outcome)
        exchange.records.journal.stable(self._driver.ledger.committed + 1, members[0])
        if exchange.leads:
            exchange.records.journal.end(
                steps, members, outcome, self._training.position.left_early
            )
        exchange.records.close()
        if ending.finishes:
            self._training.finite.tell_end(channel, exchange.leads, self._training.model.own)
        unkept, mute = keeper.given_up, channel.mute
        if unkept:
            channel.tell("unkept")
        channel.tell("done")
        channel.close()
        if unkept and mute:
            raise CheckpointError(
                "the training is over, but its end could not be kept in "
                f"{self._context.settings.checkpoint}: see the warnings above"
            )
