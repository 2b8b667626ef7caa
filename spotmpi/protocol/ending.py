"""How a training ends on one worker: five states, one table of all ways between them, and two
facts that last: if all were told to stop, and if this worker's script is at its end. Pure.

A training ends because the scripts are at their end, or because all are told to stop. All workers
come to the end in one round. If the last state is to be kept, more rounds follow, in which the
leader writes it: a leader that dies in one of them has a successor. A stop that cannot be kept is
no stop: training goes on. An end that cannot be kept is tried again, until there is no hope.
"""

from __future__ import annotations

import enum

from spotmpi.errors import InvalidTransition

__all__ = ["Ending", "EndEvent", "EndState"]


class EndState(enum.Enum):
    """Where one worker is on the way to the end."""

    RUNNING = "running"
    STOPPING = "stopping"
    """All are to stop at the next boundary where they can."""
    CLOSING = "closing"
    """This worker is in its last rounds: it begins no round of another kind."""
    KEEPING = "keeping"
    """All have come to the end. Only the last state must still be written."""
    ENDED = "ended"
    """The last round is committed."""


class EndEvent(enum.Enum):
    """What leads from one state to another."""

    TOLD = "told to stop"
    CLOSE = "close"
    """The script is at its end, or all can stop here."""
    COME = "come to the end"
    """All have come to the end, and the last state is to be kept."""
    REFUSED = "refused"
    """The last state could not be written. It is tried again."""
    RESUMED = "resumed"
    """The state could not be written where all were to stop: training goes on."""
    DONE = "done"
    """All have come to the end, and nothing more is to be kept."""


_RUNNING, _STOPPING, _CLOSING, _KEEPING, _ENDED = EndState
_BEFORE = (_RUNNING, _STOPPING, _CLOSING)
# All others may come to the end while this worker still runs: it joined late, or it learns.
_TABLE = {
    (_RUNNING, EndEvent.TOLD): _STOPPING,
    (_STOPPING, EndEvent.TOLD): _STOPPING,
    (_RUNNING, EndEvent.CLOSE): _CLOSING,
    (_STOPPING, EndEvent.CLOSE): _CLOSING,
    (_KEEPING, EndEvent.CLOSE): _KEEPING,
    **{(state, EndEvent.COME): _KEEPING for state in _BEFORE},
    **{(state, EndEvent.DONE): _ENDED for state in (*_BEFORE, _KEEPING)},
    (_KEEPING, EndEvent.REFUSED): _KEEPING,
    (_KEEPING, EndEvent.RESUMED): _RUNNING,
}


class Ending:
    """One worker's state on the way to the end."""

    def __init__(self) -> None:
        self.state = EndState.RUNNING
        self.stops = False
        """True if all end here because they were told to stop."""
        self.finishes = False
        """True once this worker's script is at its end."""
        self.finished = False
        """True if all have come to the end, and the script of one of them is there."""

    def handle(self, event: EndEvent) -> None:
        """Go on to the next state. Raises InvalidTransition if the event cannot be, in this one."""
        if (after := _TABLE.get((self.state, event))) is None:
            raise InvalidTransition(self.state.value, event.value)
        self.state = after
        if event in (EndEvent.TOLD, EndEvent.RESUMED):
            self.stops = event is EndEvent.TOLD

    def come(self, keeps: bool, kept: bool, hope: bool) -> None:
        """All have come to the end in a round. ``keeps``: the last state is to be kept. ``kept``:
        it is, as the control words say. ``hope``: if it is not, it may be tried again."""
        if not keeps or (self.sealed and (kept or not (self.stops or hope))):
            self.handle(EndEvent.DONE)
        elif not self.sealed:
            self.handle(EndEvent.COME)
        else:
            self.handle(EndEvent.RESUMED if self.stops else EndEvent.REFUSED)

    @property
    def over(self) -> bool:
        """True if the last round is committed."""
        return self.state is EndState.ENDED

    @property
    def sealed(self) -> bool:
        """True if all have come to the end, beyond recall."""
        return self.state in (EndState.KEEPING, EndState.ENDED)
