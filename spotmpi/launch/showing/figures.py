"""What a job has come to, in sums that go on when it is started again: for other programs. Pure.

How it stands comes once a second (`look`), what happens in between as it is heard.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from spotmpi.launch import messages
from spotmpi.launch.control_messages import Report, WorkerReport
from spotmpi.launch.decoding import Message

__all__ = ["CAUSES", "Figures", "Spent"]

CAUSES = ("killed", "crashed", "host", "stopped", "hung", "unreachable")
"""Why workers are lost: they got a signal; MPI crashed; their host is gone; they were stopped; they
did nothing while others waited; others did not reach them."""

_LIVING = ("starting", "waiting", "joining", "training", "trained")


class Spent(NamedTuple):
    """Seconds of workers, summed over all of them."""

    computing: float = 0.0
    communicating: float = 0.0
    """They waited for a round, or for the others in one, and nothing was wrong."""
    stalled: float = 0.0
    """They waited for another membership."""

    @classmethod
    def of(cls, one: WorkerReport) -> Spent:
        """Of one worker."""
        stalled = one.stalled_seconds or 0.0
        waiting = max(0.0, (one.waiting_seconds or 0.0) - stalled)
        return cls(one.computing_seconds or 0.0, waiting, stalled)

    @classmethod
    def all(cls, parts: Iterable[Spent]) -> Spent:
        """Together."""
        return cls(*map(sum, zip(*parts, strict=True))) if (parts := [*parts]) else cls()


@dataclass
class _Noticed:
    """A host that is to be taken away."""

    at: float
    given: float | None


@dataclass
class Figures:
    """One job's, from its first start to its last end. Local.

    ``dollars_an_hour`` is what a host costs. Times are the caller's monotonic seconds.
    """

    dollars_an_hour: float | None = None
    recoveries: Counter[str] = field(default_factory=Counter)
    """By their causes."""
    recovering: float = 0.0
    """Seconds from deaths until others went on."""
    joined: int = 0
    departed: int = 0
    """Workers that left on request."""
    recomputed: int = 0
    """Gradients that were computed and did not count."""
    notices: int = 0
    notice_given: float = 0.0
    """Seconds from notices until hosts were to be taken away, where that was said ..."""
    notice_used: float = 0.0
    """... and until the last worker had left them."""
    dollars: float = 0.0
    worker_seconds: float = 0.0
    """For which workers were there."""

    def __post_init__(self) -> None:
        self.now: Report | None = None
        """How the job stands, by the last look."""
        self._before = Spent()
        """Of earlier starts."""
        self._used_before = self._again_before = 0
        self._again = 0
        self._furthest = 0
        """Step that was reached before this start."""
        self._looked: float | None = None
        self._noticed: dict[str, _Noticed] = {}
        self._begin_run()

    def _begin_run(self) -> None:
        self._causes: dict[int, str] = {}
        self._untold: dict[int, tuple[int, ...]] = {}
        """Recoveries whose cause is not known yet, by generation."""
        self._generations: dict[int, float] = {}
        """Milliseconds that each took, if it was a recovery, until the last worker went on."""
        self._vain: dict[int, int] = {}
        self._samples = 0

    # What happens.

    def begins(self) -> None:
        """The job is started (again): its workers are others, and count from 0."""
        self._before, self._used_before = self.spent, self.samples
        if self.now is not None:
            self._furthest = max(self._furthest, self.now.step or 0)
        self.now = self._looked = None
        self._begin_run()

    def told(self, worker: int, said: Message) -> None:
        """Take what is heard of a worker."""
        match said:
            case messages.Ended(status=status, in_mpi=in_mpi) if os.WIFSIGNALED(status):
                self.lost(worker, "crashed" if in_mpi else "killed")
            case messages.Vanished():
                self.lost(worker, "killed")
            case messages.HostLost():
                self.lost(worker, "host")
            case messages.Stopped():
                self.lost(worker, "stopped")
            case messages.Recovery():
                vain = said.recomputed_gradients
                self.recomputed += max(0, vain - self._vain.get(worker, 0))
                self._vain[worker] = vain
                if said.generation not in self._generations:
                    self._generations[said.generation] = 0.0
                    self._untold[said.generation] = said.lost
                    self._tell()
                more = (said.total_ms or 0.0) - self._generations[said.generation]
                if more > 0:
                    self._generations[said.generation] += more
                    self.recovering += more / 1e3
            case messages.Change() if said.generation not in self._generations:
                self._generations[said.generation] = 0.0
                self.joined += len(said.joined)
                self.departed += len(said.left)

    def lost(self, worker: int, cause: str) -> None:
        """A worker is lost, or is about to be, for one of `CAUSES`; the first counts."""
        self._causes.setdefault(worker, cause)
        self._tell()

    def _tell(self) -> None:
        for generation, lost in list(self._untold.items()):
            known = [self._causes[one] for one in lost if one in self._causes]
            if known:
                del self._untold[generation]
                self.recoveries[known[0]] += 1

    def noticed(self, host: str | None, left: float | None, now: float) -> None:
        """A host is to be taken away, in so many seconds if that is known; None is the launcher's
        own, with which all others go."""
        if host is None:
            self.notices += 1
        elif host not in self._noticed:
            self.notices += 1
            self._noticed[host] = _Noticed(now, left)

    # How it stands.

    def look(self, status: Report, now: float) -> None:
        """Take how the job stands now."""
        living = [one for one in status.workers if one.state in _LIVING]
        hosts = {one.host for one in living}
        if self._looked is not None:
            passed = now - self._looked
            self.worker_seconds += passed * len(living)
            self.dollars += passed / 3600 * len(hosts) * (self.dollars_an_hour or 0.0)
        used = status.samples or 0
        if 0 < (status.step or 0) <= self._furthest:
            self._again += used - self._samples
        self._samples = used
        self._looked, self.now = now, status
        for host, known in list(self._noticed.items()):
            if host not in hosts:
                del self._noticed[host]
                if known.given is not None:
                    self.notice_given += known.given
                    self.notice_used += min(now - known.at, known.given)

    @property
    def spent(self) -> Spent:
        """By all workers, those that are gone as well."""
        workers = () if self.now is None else self.now.workers
        return Spent.all([self._before, *map(Spent.of, workers)])

    @property
    def samples(self) -> int:
        """Used by all workers."""
        return self._used_before + self._samples

    @property
    def samples_again(self) -> int:
        """Of these, those of steps that were taken before: all workers were lost, and the job went
        on from a checkpoint."""
        return self._again

    @property
    def goodput(self) -> float | None:
        """The share of the workers' time in which they computed what counts."""
        if not self.worker_seconds:
            return None
        again = self._again / self.samples if self.samples else 0.0
        return min(1.0, self.spent.computing / self.worker_seconds) * (1.0 - again)
