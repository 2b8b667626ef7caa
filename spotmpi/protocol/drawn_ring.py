"""A ring of all members that is drawn anew for each round, by all alike. Pure."""

from __future__ import annotations

from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.sampler import shuffled

__all__ = ["before"]


def before(me: WorkerId, membership: Membership, seed: int, number: int) -> WorkerId | None:
    """The member that stands before ``me`` in the ring of the round of this ``number``; None if
    there is no other. O(members), and the same on all that know the same membership."""
    ids = membership.ids
    if me not in ids or len(ids) < 2:
        return None
    order = shuffled(len(ids), [seed, number, membership.generation]).tolist()
    rank: int = order[order.index(membership.rank(me)) - 1]
    return ids[rank]
