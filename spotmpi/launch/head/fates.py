"""What has become of one worker, and of a job at its end. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NEWCOMERS", "JobEnding", "Worker", "WorkerState"]

NEWCOMERS = ("waiting", "joining", "turned away")
"""States of those that came later than the others, and do not train."""


@dataclass(frozen=True)
class JobEnding:
    """How the job ends: its code, one sentence that says why and what to do, and what to show.

    ``text`` is shown above the sentence (a traceback). ``runtime`` asks for what mpirun said.
    ``again``: the launcher starts the job again.
    """

    code: int
    sentence: str
    text: str = ""
    runtime: bool = False
    again: bool = False


@dataclass(frozen=True)
class WorkerState:
    """What has become of one worker."""

    host: str
    state: str
    """"starting", "training", "trained" (the script goes on), "finished", "left", "stopped",
    "revoked", or "ended" with the job; of a newcomer also "waiting" (a spare), "joining" and
    "turned away"."""
    how: str
    """It was revoked, else empty."""

    @property
    def lives(self) -> bool:
        """Whether it has not come to its end."""
        return self.comes or self.state in ("training", "trained")

    @property
    def comes(self) -> bool:
        """Whether it is on its way to its first step."""
        return self.state in ("starting", "waiting", "joining")


@dataclass
class Worker:
    """One worker, as `JobState` follows it."""

    host: str
    began: bool = False
    training: int = 0
    """Which one of its own it is in, or was in last."""
    ready: bool = False
    done: bool = False
    late: bool = False
    """It came later than the others."""
    newcomer: bool = False
    """It came later than the others, and does not train yet."""
    replaces: bool = False
    """It was started in the place of one that trained."""
    before: Worker | None = None
    """In the place of which it was started."""
    since: int = 0
    """The step from which on it trains."""
    crash: tuple[str, int | None] | None = None
    """Its stacks, and its step, if it has died by a signal of its own."""
    waits: bool = False
    """A newcomer that could be brought in."""
    joined: str = ""
    """What to tell of a newcomer that trains, where its admission is not told yet."""
    admitted: bool = False
    """That it was admitted has been told."""
    parted: bool = False
    """It left the others on request."""
    why: str = ""
    """It is being killed, if we do that ourselves."""
    kind: str = ""
    """What that counts as, as `Cause` has it."""
    how: str = ""
    """It was revoked."""
    garbled: bool = False
    """It said something that is no message, which was told."""
    end: str = ""
    """Empty while it lives, then "finished", "left", "requeue", "revoked" or "turned away"."""

    @property
    def crashed_again(self) -> bool:
        """At the place, and in the step, or after as many steps, as the one for which it came."""
        if self.crash is None or self.before is None or self.before.crash is None:
            return False
        (there, then), (here, now) = self.before.crash, self.crash
        if then is None or now is None:
            return then is now and _place(there) == _place(here)
        same = now in (then, self.since + then - self.before.since)
        return same and _place(there) == _place(here)

    @property
    def state(self) -> str:
        """As `WorkerState` has it."""
        if self.end:
            return "stopped" if self.end == "requeue" else self.end
        if self.newcomer and self.waits:
            return "joining" if self.ready else "waiting"
        if self.done:
            return "trained"
        return "training" if self.ready else "starting"


def _place(stacks: str) -> str:
    """The innermost frame of the thread that crashed."""
    return stacks.partition("Current thread")[2].partition("\n")[2].partition("\n")[0]
