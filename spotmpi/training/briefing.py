"""What a newcomer is told by its sponsor. It is one document: at first it says where the others
are, and on the newcomer's admission also how to take part in their rounds."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from spotmpi.protocol.ledger import Ledger
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.state_pages import pack, unpack

__all__ = ["Admission", "Briefing"]


class Admission(NamedTuple):
    """How a newcomer takes part in the next round."""

    before: Membership
    """The membership of the last committed round."""
    committed: int
    """Rounds committed so far."""
    pages: dict[str, Any]
    """Which pages of the state the newcomers have had, as plain values (`PageOrder.state`)."""
    alone: int
    """Words of a mean that the next round carries alone; 0: it is as large as the model asks."""

    def ledger(self, membership: Membership) -> Ledger:
        """Return the ledger with which the newcomer goes on."""
        return Ledger(membership, self.committed, self.before)


class Briefing(NamedTuple):
    """Where the others are, and how a newcomer that is admitted takes part."""

    training: int
    """Number of the training that the others are in; those before it are over."""
    past: list[dict[str, Any]]
    """For each training that is over: what a newcomer needs to come through it by itself. Empty on
    its admission."""
    workers: int
    """Number of workers that the job began with."""
    membership: Membership
    facts: list[str]
    """What must be equal on all workers, as the sponsor has it."""
    rest: dict[str, Any]
    """The plain values of the sponsor's registry; on an admission those that pages depend on."""
    admission: Admission | None = None
    """None as long as the newcomer is no member."""

    def encode(self) -> bytes:
        """Return the document as JSON."""
        fields = self._asdict() | {"membership": pack(self.membership)}
        if (admission := self.admission) is not None:
            fields["admission"] = admission._asdict() | {"before": pack(admission.before)}
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> Briefing:
        """Return the document that `encode` made into ``data``."""
        fields = json.loads(data)
        fields["membership"] = unpack(fields["membership"])
        if (admission := fields["admission"]) is not None:
            admission["before"] = unpack(admission["before"])
            fields["admission"] = Admission(**admission)
        return cls(**fields)
