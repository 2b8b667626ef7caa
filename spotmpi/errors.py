"""Everything that spotmpi raises on purpose.

::

    SpotmpiError
    |-- UsageError          the caller's input is wrong; the message says what to do
    |-- CheckpointError     no checkpoint can be read, or one cannot be written
    |-- TraceError          a trace is broken, or does not prove what it should
    |-- NoAnswer            a cloud's metadata service gave no usable answer (internal: whoever
    |                       watches for notices asks again)
    |-- ScriptError         the script is wrong on this or another worker; the job must end
    |   |-- LeftAlone       one worker left the training loop while others go on
    |   `-- ReplicaMismatch replicas that must be equal are not
    |-- OnceError           what `once` ran on one worker raised: on all workers alike
    |-- PeersLost           a fabric operation met a dead peer or a revoked fabric (internal: the
    |                       driver turns it into a recovery, users never see it)
    `-- InvalidTransition   the protocol got an event that its state does not know (a bug of ours;
                            the message carries the story)

    SystemExit
    |-- Stopped             the job stops below ``min_workers`` with a checkpoint written (75)
    `-- Left                this worker left the others on request (0)
        `-- Strayed         this worker joined lately, and its script is not where the others' are
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "InvalidTransition",
    "Left",
    "LeftAlone",
    "NoAnswer",
    "OnceError",
    "PeersLost",
    "ReplicaMismatch",
    "ScriptError",
    "SpotmpiError",
    "Stopped",
    "Strayed",
    "TraceError",
    "UsageError",
]

EXIT_REQUEUE = 75
"""Exit code of a job that stopped with a checkpoint: EX_TEMPFAIL, a batch system may requeue it."""


class SpotmpiError(Exception):
    """Root of the tree."""


class UsageError(SpotmpiError):
    """The caller's input is wrong; the message says what was got, what is expected, what to do."""


class CheckpointError(SpotmpiError):
    """No checkpoint can be read, or one cannot be written."""


class TraceError(SpotmpiError):
    """A trace is broken, or does not prove what it should."""


class NoAnswer(SpotmpiError):
    """A cloud's metadata service gave no usable answer, and may give one when asked again."""


class ScriptError(SpotmpiError):
    """The training script is wrong, here or on another worker. Never a revocation."""


class LeftAlone(ScriptError):
    """One worker left the training loop while others go on."""


class ReplicaMismatch(ScriptError):
    """Replicas, or what workers feed into one round, differ where they must be equal."""


class OnceError(SpotmpiError):
    """What `once` ran on one worker raised. Raised on all workers alike, and training may go on."""


class PeersLost(SpotmpiError):
    """A fabric operation met a dead peer, or somebody revoked the fabric."""


class InvalidTransition(SpotmpiError):
    """A protocol state got an event that it does not know; the message carries the story so far."""

    def __init__(self, state: str, event: str, story: tuple[str, ...] = ()) -> None:
        lines = "".join(f"\n  {line}" for line in story)
        super().__init__(f"state {state} does not know event {event}; the story so far:{lines}")


class Stopped(SystemExit):
    """The job stopped below ``min_workers`` with a checkpoint written.

    A ``SystemExit``, so that an ``except Exception`` in a script does not swallow it and so that
    a process which does nothing about it ends with code 75.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(EXIT_REQUEUE)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Left(SystemExit):
    """This worker left at a step boundary, on request; the others go on without it.

    A ``SystemExit`` as `Stopped` is: the process ends with code 0, and the script with it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Strayed(Left):
    """This worker joined lately, and its script has come to another call than the others'.

    They wait until its process has ended, and go on as without any worker that is lost.
    """
