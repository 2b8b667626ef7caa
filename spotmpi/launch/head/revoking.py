"""Workers that the launcher revokes by itself: they hang, or others do not reach them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from spotmpi.launch.head.job_state import JobState
from spotmpi.launch.head.membership_changes import MembershipChanges
from spotmpi.launch.head.stalls import Stalls, Standing
from spotmpi.launch.showing.figures import Figures
from spotmpi.launcher_channel import AT_MESSAGES

__all__ = ["Crewed", "Revoking"]

_LOG = logging.getLogger(__name__)

_FOR_CLEARING = 6.0
"""Seconds for a killed worker to be gone."""


class Crewed(Protocol):
    """The workers, as far as this goes; more in `job.Workers`."""

    def revoke(self, worker: int) -> None:
        """Have a worker killed, as if its host had been taken away."""

    def kill(self, worker: int) -> None:
        """Have MPI take a worker for dead, though it could not be killed."""

    def progress(self) -> dict[int, Standing]:
        """How far those have come that live, as far as that is known."""


class Revoking:
    """Of one job. ``stall_timeout``: seconds for which a worker may do nothing."""

    def __init__(
        self,
        crew: Crewed,
        verdict: JobState,
        turnover: MembershipChanges,
        figures: Figures,
        say: Callable[[str], None],
        stall_timeout: float,
    ) -> None:
        self._crew = crew
        self._verdict = verdict
        self._turnover = turnover
        self._figures = figures
        self._say = say
        self._limit = stall_timeout
        self._stalls = Stalls(stall_timeout)
        self._condemned: dict[int, float] = {}
        """Workers that are being killed, and since when."""

    def look(self) -> None:
        """Look for workers that hang: say so, and revoke them after the limit."""
        now, said = time.monotonic(), self._crew.progress()
        joint, apart = (_of(said, some) for some in (self._verdict.joint, self._verdict.apart))
        for one in self._stalls.slow(joint, apart, now):
            self._say(one.sentence(self._limit))
        for one in self._stalls.look(joint, apart, now):
            self._hangs(one.worker, one.why)
        if len(joint) == len(self._verdict.joint) and self._stalls.stuck(joint, now):
            self._nobody_goes_on(joint)

    def _nobody_goes_on(self, joint: Mapping[int, Standing]) -> None:
        """All wait: revoke the newcomer that came last, or end the job."""
        newest = max(joint)  # its script may have gone astray: it waits, or others for it
        at_messages = [one for one, it in joint.items() if it.doing == AT_MESSAGES]
        if not self._verdict.is_newcomer(newest):
            self._verdict.stuck(self._stalls.sentence(at_messages), by_script=bool(at_messages))
        elif at_messages:
            self._hangs(newest, "it, or others, waited for messages that nobody sent")
        else:
            self._hangs(newest, "it came last, and all waited in a round that did not end")

    def _hangs(self, worker: int, why: str) -> None:
        self._turnover.hangs(worker)
        self._condemn(worker, "hung", why)

    def part(self, worker: int, missed: Collection[int]) -> None:
        """A worker takes others for dead: those must be, or it must, before it goes on."""
        if worker in self._condemned:
            return
        for one, why in self._verdict.to_part(worker, missed).items():
            self._condemn(one, "unreachable", why)
        for one, fate in enumerate(self._verdict.fates):
            if one in missed and not fate.lives:
                # It has ended by itself, or that it died was not heard there.
                self._crew.revoke(one)

    def _condemn(self, worker: int, cause: str, why: str) -> None:
        """Revoke a worker; by all means, if that was tried for long enough."""
        self._figures.lost(worker, cause)
        now = time.monotonic()
        if worker not in self._condemned:
            self._condemned[worker] = now
            _LOG.info("worker %d is killed: %s", worker, why)
            self._verdict.blame(worker, why, cause)
            self._crew.revoke(worker)
        elif now - self._condemned[worker] > _FOR_CLEARING:
            self._crew.kill(worker)  # stuck in the kernel, where no signal reaches it


def _of(said: Mapping[int, Standing], workers: Collection[int]) -> dict[int, Standing]:
    return {worker: said[worker] for worker in workers if worker in said}
