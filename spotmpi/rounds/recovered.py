"""One passage of a worker through the door: what happened in it, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotmpi.protocol.ledger import Settlement
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import Verdict

__all__ = ["Recovered"]


@dataclass
class Recovered:
    """One passage through the door. Times are seconds on the fabric's clock."""

    before: Membership
    entered: float = 0.0
    """Time when the call began that met the loss."""
    detected: float = 0.0
    """Time when that call failed, so this worker saw the loss."""
    revoked: float = 0.0
    reconciled: float = 0.0
    """Time when this worker was prepared, or knew that the others were."""
    accepted: float = 0.0
    """Time when this worker could enter the build."""
    settled: float = 0.0
    """Time when the open round was repaired, if a repair was due."""
    complete: float = 0.0
    """Time when the first round after it was complete."""
    after: Membership = field(init=False)
    verdict: Verdict = field(init=False)
    settlement: Settlement = Settlement.RETRY
    progress: int = 0
    """Rounds that this worker had committed when it entered the door."""
    messages: int = 0
    """Tokens that this worker sent."""
    earlier: frozenset[WorkerId] = frozenset()
    """Workers lost in earlier verdicts, sealed but with the repair interrupted by another loss."""

    def __str__(self) -> str:
        change = self.verdict.change
        return (
            f"generation {self.after.generation}: {len(self.after.ids)} workers; "
            f"lost {self.losses}, left {sorted(change.leaving)}, joined {change.newcomer}; "
            f"{self.settlement.name.lower()}"
        )

    @property
    def losses(self) -> list[WorkerId]:
        """Workers that are no members any more and were not told to leave, by rank."""
        return sorted(self.earlier | self.verdict.lost, key=self.before.rank)

    @property
    def gone(self) -> frozenset[WorkerId]:
        """Workers that are no members any more."""
        return self.earlier | self.verdict.lost | self.verdict.change.leaving
