"""How long a job waits for who may be dead, or for MPI, before it does without."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Of one job, in seconds. The head has them, and tells agents what is theirs.

    These are safe on any network and on busy machines, so there is no option to change them. Tests
    build the launcher with shorter ones: they show the same faults, and are through sooner.
    """

    fence: float = 30.0
    """Of a silent head, after which an agent ends its workers; and in which nothing is heard from
    anybody, after which a head does. They cost nothing but waiting: who is excluded cannot go on
    (`Channel.confirm`)."""

    question: float = 20.0
    """From an answer of mpirun's server to the next question."""

    answer: float = 20.0
    """After which its answer is overdue: busy cores, or a head that was stopped, need some."""

    spawn: float = 30.0
    """For MPI to bring a newcomer in, where nobody's script is at work; scripts may take as long as
    they like."""

    reader: float = 5.0
    """Without a reader of the launcher's own output, after which what is too much is dropped."""
