"""Notices: a cloud, or a batch system, says that it will take a host away.

A process of its own (``python -m spotmpi.notice``, `watcher`) asks the metadata service of the
host's cloud (`ec2`, `gce`, `azure`), so that a service which hangs delays nobody. It imports the
standard library and little of spotmpi: it runs beside a training for as long as that takes.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

__all__ = ["Notice", "clean"]

_LONGEST = 200
"""Characters of a description that are kept: it comes from outside, and goes to a terminal."""


@dataclass(frozen=True)
class Notice:
    """A host is to be taken away.

    ``source`` is the provider, or "signal". ``deadline`` is when, in Unix seconds of the clock of
    whoever holds this notice; None where nobody says when. ``what`` says it in the provider's
    words. With ``advice`` it is only likelier than usual that the host will be taken away: that is
    told, and nothing is done about it.
    """

    source: str
    deadline: float | None
    what: str
    advice: bool = False

    def left(self, now: float) -> float | None:
        """Seconds until the deadline, never negative; None where nobody says when."""
        return None if self.deadline is None else max(0.0, self.deadline - now)

    def sentence(self, host: str | None, now: float) -> str:
        """Say it to the user. ``host`` is None for the launcher's own."""
        where = "this host" if host is None else f"host {host}"
        left = self.left(now)
        if self.advice:
            return f"{where} may be taken away before long ({self.what})"
        when = "soon" if left is None else "now" if left < 0.5 else f"in {left:.0f} s"
        return f"{where} is to be taken away {when} ({self.what})"

    def encode(self) -> str:
        """Return the notice as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str | bytes) -> Notice:
        """Read what `encode` wrote. Raises ValueError for anything else."""
        fields = json.loads(line)
        if not isinstance(fields, dict) or fields.keys() != cls.__dataclass_fields__.keys():
            raise ValueError("a notice has a source, a deadline, what it is and if it is advice")
        return cls.checked(**fields)

    @classmethod
    def checked(cls, source: object, deadline: object, what: object, advice: object) -> Notice:
        """Make a notice of what came from another process or host. Raises ValueError."""
        match source, deadline, what, advice:
            case (str(), float() | int() | None, str(), bool()) if not isinstance(deadline, bool):
                at = None if deadline is None else float(deadline)
                if at is None or math.isfinite(at):
                    return cls(clean(source), at, clean(what), advice)
        raise ValueError("a field of the notice is of a wrong kind")


def clean(text: str) -> str:
    """What may be shown of a text from outside: one line, printable, not long."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
