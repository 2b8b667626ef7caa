"""The boundary after a round: what all workers do before the next one. Pure.

All that know the training come to the same, from the sum of the control words and from what they
all know.
"""

from __future__ import annotations

from typing import NamedTuple

from spotmpi.protocol import exact_means
from spotmpi.protocol.control_word import END, GATHER, MEAN, ONCE, STEP, WORDS_OF_ALL, ControlSum
from spotmpi.protocol.ending import EndEvent, Ending

__all__ = ["LENGTH", "START", "Boundary", "Payload", "boundary", "follow"]


class Payload(NamedTuple):
    """What a round carries that has not the model's size."""

    kind: int
    """The kind of its round: any but `STEP` and `END`."""
    size: int
    """Words of the mean or of each worker, numbers of the sum, or bytes of values; 0: nothing, as
    all wait for the value."""
    lengths: bool = False
    """True if it is the table of the values' lengths. It comes first if these differ."""
    places: int = 1
    """How many places there are, each with this many words: one for each worker; 1: all bring to
    the same place."""


class Boundary(NamedTuple):
    """What follows from a committed round."""

    over: bool
    """True if all have come to the end of the training."""
    stops: bool
    """True if all are to stop: here, or at the next boundary where they can."""
    changes: bool
    """True if workers leave or join before the next round."""
    saves: bool
    """True if a worker wants a checkpoint of this boundary."""
    owed: bool
    """True if a value of `once` is known, but not to all scripts."""
    payload: Payload | None
    """What the next round carries; None: what the model's size asks for."""
    astray: int | None = None
    """Stands for the call that workers have come to, if some that joined lately have come to
    another one (`ControlSum.astray`). These leave, and the others do the round again."""


LENGTH = 8
"""Bytes of an entry in a table of lengths."""

START = Boundary(False, False, False, False, False, None)
"""The boundary before the first round."""


def boundary(
    word: ControlSum, last: Payload | None, stopping: bool, full: int, learnt: int
) -> Boundary:
    """Return what follows from a round. ``last``: its own payload.
    ``stopping``: all were to stop before. ``full``: number of workers that knew everything in it.
    ``learnt``: number of newcomers that know everything by it."""
    if (astray := word.astray) is not None:  # what it says is said again
        return START._replace(astray=astray)
    kind, over, leaving = word.kind, word.over, word.leaving
    payload = None
    if kind not in (STEP, END) and not word.brought:
        payload = _payload(kind, word, last, full)
    everybody = leaving >= full + learnt
    stops = stopping or (not over and (word.stop or everybody))
    # Not when a newcomer has just learnt: it cannot report this step if all others leave. And not
    # within a `once`, a `gather` or a `sum`: a newcomer's script could not take part in it.
    waits = stops or over or learnt > 0 or (payload is not None and payload.kind != MEAN)
    changes = not waits and (leaving > 0 or word.newcomer)
    return Boundary(over, stops, changes, word.save, kind == ONCE and word.size > 0, payload)


def _payload(kind: int, word: ControlSum, last: Payload | None, full: int) -> Payload | None:
    """Return what the round after one of this kind carries, which had the payload ``last``."""
    if kind == ONCE:
        return None if word.size and last is not None and last.size else Payload(ONCE, word.size)
    if kind == GATHER and not word.size:  # nobody has a value, or nobody any more
        return None
    if kind == GATHER and (word.alike if last is None else last.lengths):
        return Payload(GATHER, word.size)
    if last is not None:
        return None
    if kind == GATHER:
        return Payload(GATHER, LENGTH * full, lengths=True)
    if kind == MEAN:
        return Payload(MEAN, word.numbers * exact_means.WORDS) if word.numbers else None
    return Payload(kind, word.numbers, places=full if kind == WORDS_OF_ALL else 1)


def follow(
    ending: Ending, word: ControlSum, last: Payload | None, full: int, learnt: int
) -> Boundary:
    """Return what follows from a round, as `boundary`, and have ``ending`` hear of a stop."""
    after = boundary(word, last, ending.stops, full, learnt)
    if after.stops and not after.over:
        ending.handle(EndEvent.TOLD)
    return after
