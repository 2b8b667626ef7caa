"""A round by which all get the words of each worker, and the choice of the round for a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotmpi.arrays.backend import Buffer
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.round import SumRound, Taken
from spotmpi.rounds.summand import OwnWords, Summand, Words

__all__ = ["WordsRound", "round_of"]


class WordsRound(SumRound):
    """Rounds until all have the words of each worker, as `SumRound` has them.

    Each worker brings its own words to a place of its own. One that is lost has no place.
    """

    def __init__(self, memory: RoundMemory, mine: OwnWords) -> None:
        """``mine``: this worker's words."""
        super().__init__(memory, mine)
        self._own = mine

    def bring(self) -> None:
        """Bring nothing yet: the place follows from who takes part."""
        self.memory.bring_nothing()

    def prepare(self, membership: Membership, me: WorkerId) -> None:
        """Bring the words, if the round carries them."""
        if self.carries:
            place = self.memory.transfer.full(membership.ids).index(me)
            self._own.pack([self.memory.bring_to(place)])

    def _total(self, workers: int) -> Sequence[Buffer]:
        """Return each worker's words, in ring order."""
        return self.memory.placed[:workers]


def round_of(
    memory: RoundMemory, mine: Summand | Words, step: Callable[[], Taken] | None
) -> SumRound:
    """Return the round to which this worker brings ``mine``. ``step``: see `SumRound`."""
    return WordsRound(memory, mine) if isinstance(mine, OwnWords) else SumRound(memory, mine, step)
