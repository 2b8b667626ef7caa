"""A newcomer's life, as one table: how far it has come, and what brings it further. Pure.

The launcher follows every newcomer through it, from what it hears of the newcomer and of its
sponsor. These two may be on different hosts, so what they say comes in any order, some of it too
late; and a word may be lost. So a newcomer goes forward only, and who has come to a stage has been
through those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

__all__ = ["SPONSORED", "TABLE", "Stage", "after"]


class Stage(Enum):
    """How far a newcomer has come."""

    ASKED = "its host was told to start it"
    STARTED = "its script runs, up to the Trainer"
    READY = "it waits for one of the members to bring it in, its sponsor"
    CHOSEN = "its sponsor was told to, and does so in its next round"
    SPAWNED = "its sponsor has asked MPI for it, and MPI starts in it"
    CONNECTED = "it and its sponsor can talk"
    BRIEFED = "it knows where the members are, and its script gets there"
    KNOCKING = "it waits to be let in before the members' next round"
    LEARNING = "it is a member, and learns"
    TRAINING = "it trains"
    GONE = "it has come to its end"


SPONSORED = frozenset({Stage.CHOSEN, Stage.SPAWNED, Stage.CONNECTED, Stage.BRIEFED, Stage.KNOCKING})
"""Where it needs its sponsor, and ends with it."""

_NEW = frozenset({Stage.ASKED, Stage.STARTED})
_UNKNOWN_TO_MPI = frozenset({Stage.CHOSEN, Stage.SPAWNED})

TABLE: Mapping[str, tuple[frozenset[Stage], Stage]] = {
    "begin": (frozenset({Stage.ASKED}), Stage.STARTED),
    "waiting": (_NEW, Stage.READY),
    "chosen": (frozenset({Stage.READY}), Stage.CHOSEN),
    "spawning": (frozenset({Stage.CHOSEN}), Stage.SPAWNED),
    "connected": (_UNKNOWN_TO_MPI, Stage.CONNECTED),
    "ready": (_UNKNOWN_TO_MPI | {Stage.CONNECTED}, Stage.BRIEFED),
    "knocks": (SPONSORED - {Stage.KNOCKING}, Stage.KNOCKING),
    "admitted": (SPONSORED, Stage.LEARNING),
    "trains": (SPONSORED | {Stage.LEARNING}, Stage.TRAINING),
    "gone": (frozenset(Stage), Stage.GONE),
}
"""What is heard: from where it leads, and where to. ``chosen`` is the launcher's own doing, and
``gone`` what it finds; ``spawning`` the sponsor tells, all else the newcomer itself."""


def after(stage: Stage, event: str) -> Stage:
    """Where a newcomer is after this."""
    before, then = TABLE.get(event, (frozenset(), stage))
    return then if stage in before else stage
