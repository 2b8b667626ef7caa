"""Workers that come and leave while others train: who is told what, and who is tried again. Pure.

Fed by the launcher; what is to be done goes to the crew and into the orders.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from spotmpi.launch import messages
from spotmpi.launch.decoding import Message
from spotmpi.launch.head.admission_queue import Growth
from spotmpi.launch.head.job_state import JobState
from spotmpi.launch.head.worker_orders import Orders
from spotmpi.launch.limits import Limits
from spotmpi.launcher_channel import Cause, Order
from spotmpi.protocol.joining import Stage

__all__ = ["Crewed", "MembershipChanges"]

_LOG = logging.getLogger(__name__)

_TRIES = 4
"""Newcomers in a row, in one place, that did not last: each was lost before it had trained for
`_LASTING`, or hung, or another worker of its host was lost before that."""

_BEFORE_TRY = 0.5
"""Seconds until a worker that lasted is replaced; each that did not makes it twice as many."""

_LASTING = 60.0
"""Seconds of training after which a newcomer's loss does not count against its place any more."""

_TAKEN = "its host is to be taken away"
_ORPHANED = "its sponsor is gone"


class Crewed(Protocol):
    """The workers, as far as this goes; more in `job.Workers`."""

    def revoke(self, worker: int) -> None:
        """Have a worker killed, as if its host had been taken away."""

    def order(self, worker: int, order: Order) -> None:
        """Put an order where the worker finds it in its next round. May raise OSError."""

    def explain(self, worker: int, cause: Cause) -> None:
        """Have all others find why a worker is gone, or goes."""

    def recruit(self, host: str) -> int | None:
        """Start one more worker on a host, if it is there and has room; returns its id."""

    def bring(self, worker: int) -> None:
        """A newcomer's stand-in will be spawned now."""

    @property
    def mute(self) -> bool:
        """Whether mpirun does not answer, so that nobody can be brought in."""


class MembershipChanges:
    """Of one job. ``after(seconds, name, action)`` has something done later, unless the job ends.

    ``spares`` of all workers that are asked for wait until others are lost. ``replace``: another
    worker is started in the place of one that is revoked on a host that stays. ``keeps``: the job
    has a folder for checkpoints. All stop when fewer than ``least`` train.
    """

    def __init__(
        self,
        crew: Crewed,
        verdict: JobState,
        after: Callable[[float, str, Callable[[], None]], None],
        spares: int,
        replace: bool,
        keeps: bool,
        least: int,
        limits: Limits,
    ) -> None:
        self.orders = Orders(crew.order)
        self._crew = crew
        self._verdict = verdict
        self._after = after
        self._spares = spares
        self._replace = replace
        self._keeps = keeps
        self._least = least
        self._patience = limits.spawn
        self._mute = False
        self._growth = Growth()
        self._paired: tuple[int, int] | None = None
        self._stays: dict[str, int] = {}
        """Which stay of a host its last newcomer belongs to."""
        self._taken: set[str | None] = set()
        """Hosts that are to be taken away; None is the launcher's own."""
        self.must_stop = False
        """All workers are to stop, and cannot stay if that is put off."""
        self._unwanted: set[int] = set()
        """Workers that were told to go, and are neither replaced nor tried again."""
        self._before: dict[int, int] = {}
        """Of each newcomer: how many before it did not last, in its place."""
        self._lasted: set[int] = set()
        """Newcomers that did."""
        self._due: dict[int, int] = {}
        """Workers to be replaced as soon as somebody can join, and how many tries were made."""

    def asked(self, workers: int) -> None:
        """So many workers are asked for in all, whether they are there or not, spares included."""
        if self._spares:
            self._growth.most = workers - self._spares

    def newcomer(self, host: str, stay: int) -> int:
        """One more worker will be started on a host, which has come for the ``stay``-th time.

        It may join. Returns its id.
        """
        if stay != self._stays.setdefault(host, 1):
            # Nothing that was true of it holds any more, above all that it is to be taken away.
            self._stays[host] = stay
            self._taken.discard(host)
        worker = self._verdict.newcomer(host)
        self._before[worker] = 0
        return worker

    def noticed(self, host: str | None) -> None:
        """A host is to be taken away; None is the launcher's own.

        Its workers leave before their next step; without the launcher, nobody can go on.
        """
        self._taken.add(host)
        self._heed()

    def began(self) -> None:
        """All workers that the job began with are ready."""
        for worker in self._verdict.training:
            self._growth.trains(worker)
        self._heed()

    def told(self, worker: int, said: Message) -> None:
        """Take what a worker said, as far as it is about coming and leaving."""
        if isinstance(said, messages.Begin):
            self._heed()  # a notice may have come between two trainings
        elif isinstance(said, messages.Parted):
            self._dismiss(self._growth.leaves(worker), _ORPHANED)
        elif self._verdict.is_newcomer(worker) and self._growth.heard(worker, said.event):
            stage = self._growth.stage(worker)
            _LOG.info("newcomer %d, %s: %s", worker, stage.name.lower(), stage.value)
            self._watch_over(worker)
            if isinstance(said, messages.Trains):
                self._after(_LASTING, f"lasts {worker}", partial(self._lasts, worker))

    def spawning(self, newcomer: int) -> None:
        """Its sponsor has asked MPI for a newcomer."""
        if self._growth.heard(newcomer, "spawning"):
            self._watch_over(newcomer)

    def gave_up(self, newcomer: int, why: str) -> None:
        """The sponsor of a newcomer could not bring it in."""
        self._dismiss(self._growth.failed(newcomer), why)

    def hangs(self, worker: int) -> None:
        """It is going to be killed as it does nothing: however long it was there, others waited."""
        self._lasted.discard(worker)

    def gone(self, worker: int, with_host: bool = False) -> None:
        """A worker has come to its end, which the verdict knows; perhaps with its whole host."""
        self._dismiss(self._growth.gone(worker), _ORPHANED)
        # One that lasted is the first of a row of its own ...
        before = -1 if worker in self._lasted else self._before.get(worker, -1)
        host = self._verdict.host_of(worker)
        revoked = self._verdict.revoked(worker)
        if revoked:  # ... unless one that has just come is what it died of: both need memory
            before = max(before, *self._young(host), -1)
            self._crew.explain(worker, self._verdict.cause_of(worker))
        replaced = self._replace and revoked
        if with_host or not (replaced or self._verdict.turned_away(worker)):
            return
        if self._verdict.ending is not None or worker in self._unwanted or self._is_taken(host):
            return
        tries = before + 1
        if tries < _TRIES:
            again = partial(self._try_again, worker, tries)
            self._after(_BEFORE_TRY * 2**tries, f"recruit {worker}", again)
        else:
            self._verdict.not_replaced(worker, tries, _LASTING)

    def part(self, worker: int, why: str) -> None:
        """Have a worker leave before its next step; one that does not train yet is killed."""
        self._dismiss(self._growth.leaves(worker), _ORPHANED)
        self._unwanted.add(worker)
        self._crew.explain(worker, Cause("notice" if why is _TAKEN else "asked", why))
        if self._verdict.learning(worker) or not self.orders.give(worker, leave=True):
            self._dismiss((worker,), why)

    def tend(self) -> None:
        """See to it that the next newcomer is brought in, if anybody can be."""
        if self._crew.mute is not self._mute:
            self._mute = not self._mute
            self._verdict.mute(self._mute)
        self._recruit()
        pair = self._growth.pair if self._mute else self._growth.next()
        if self._mute and self._keeps and (pair is not None or self._growth.waits):
            self._stop()
        if pair == self._paired:
            return
        if self._paired is not None:
            self.orders.give(self._paired[0], newcomer=0)
        if pair is not None:
            _LOG.info("worker %d is to bring in newcomer %d", *pair)
            self._crew.bring(pair[1])
            self.orders.give(pair[0], newcomer=pair[1])
        self._paired = pair

    def _heed(self) -> None:
        """Workers whose host is to be taken away leave, once they train; newcomers go at once."""
        noticed = {
            worker for worker, fate in enumerate(self._verdict.fates) if self._is_taken(fate.host)
        }
        learning = [worker for worker in noticed if self._verdict.learning(worker)]
        self._dismiss(learning, _TAKEN)
        if any(fate.state == "trained" for fate in self._verdict.fates):
            return  # they leave a training that all are in
        training = set(self._verdict.training) if self._verdict.started else set()
        if noticed >= training:  # nobody would be left
            self.must_stop = bool(training)
            for worker in training:
                self.orders.give(worker, stop=True)
        else:
            for worker in noticed & training:
                self.part(worker, _TAKEN)

    def _watch_over(self, newcomer: int) -> None:
        """What only MPI has to do for it must not take for ever."""
        if self._growth.stage(newcomer) is not Stage.SPAWNED:
            return

        def look() -> None:
            if self._growth.stage(newcomer) is Stage.SPAWNED:
                why = f"MPI did not bring it in within {self._patience:.0f} s"
                self._dismiss(self._growth.failed(newcomer), why)

        self._after(self._patience, f"spawned {newcomer}", look)

    def _stop(self) -> None:
        """All stop together, with a checkpoint."""
        self.must_stop = True
        self._verdict.asked_to_stop()
        for worker in self._verdict.training:
            self.orders.give(worker, stop=True)

    def _lasts(self, worker: int) -> None:
        self._lasted.add(worker)

    def _young(self, host: str) -> list[int]:
        """Of each newcomer there that starts, joins or has not lasted yet: how many before it did
        not. A spare that waits has had what it needs for as long as it waits."""
        fates = self._verdict.fates
        return [
            tries
            for worker, tries in self._before.items()
            if fates[worker].host == host
            and fates[worker].lives
            and worker not in self._lasted
            and self._growth.stage(worker) is not Stage.READY
        ]

    def _is_taken(self, host: str) -> bool:
        return None in self._taken or host in self._taken

    def _try_again(self, lost: int, tries: int) -> None:
        """Start one more worker in the place of one that was lost, the last of so many that did
        not last; as soon as it could join, and not if all are about to stop."""
        self._due[lost] = tries
        self._recruit()

    def _recruit(self) -> None:
        if not self._due or self._crew.mute or not self._verdict.goes_on:
            return
        if len(self._verdict.training) < self._least:
            return
        due, self._due = self._due, {}
        for lost, tries in due.items():
            host = self._verdict.host_of(lost)
            worker = None if self._is_taken(host) else self._crew.recruit(host)
            if worker is not None:
                self._before[worker] = tries
                self._verdict.replaces(worker, lost)

    def _dismiss(self, workers: Collection[int], why: str) -> None:
        for worker in workers:
            _LOG.info("newcomer %d is given up: %s", worker, why)
            self._verdict.blame(worker, why)
            self._crew.revoke(worker)
