"""How a job has come to its end."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobEnding"]


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
