"""A newcomer's stages, as one table: how far it has come, and what takes it further. Pure.

The launcher follows every newcomer through its stages, by what it hears of the newcomer and of its
sponsor. These two may be on different hosts. So their messages come in any order, some too late,
and a message may be lost. So a newcomer only goes forward, and a newcomer at one stage has passed
all stages before it.
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
"""Stages in which a newcomer needs its sponsor. If the sponsor ends, so does the newcomer."""

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
"""For each event: the stages before it, and the stage after it. The launcher itself does ``chosen``
and finds ``gone``. The sponsor tells ``spawning``. The newcomer tells the rest."""


def after(stage: Stage, event: str) -> Stage:
    """Return the stage of a newcomer after ``event``. It may be the same."""
    before, then = TABLE.get(event, (frozenset(), stage))
    return then if stage in before else stage
