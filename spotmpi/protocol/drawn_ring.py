"""A ring of all members, drawn again for each round. All members draw the same one. Pure."""

from __future__ import annotations

from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.sampler import shuffled

__all__ = ["before"]


def before(me: WorkerId, membership: Membership, seed: int, number: int) -> WorkerId | None:
    """Return the member before ``me`` in the ring of round ``number``; None if there is no other.
    It takes O(members). All that know the same membership get the same."""
    ids = membership.ids
    if me not in ids or len(ids) < 2:
        return None
    order = shuffled(len(ids), [seed, number, membership.generation]).tolist()
    rank: int = order[order.index(membership.rank(me)) - 1]
    return ids[rank]
