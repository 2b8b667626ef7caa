"""Tokens and rows of members as bytes: fixed fields and lists of integers.

Nothing that is read can execute code.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.doorbell import ADDRESS_BYTES
from spotmpi.fabric.neighbours.neighbours import CARD_BYTES
from spotmpi.launcher_channel import Name
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.recovery import PlannedChange, Survey, Token, TokenKind

_HEAD = struct.Struct("<B?qqqqqqqqqqII")
_ONE = struct.Struct("<q")
_NOBODY = -1


def encode(token: Token) -> bytes:
    """Return ``token`` as bytes: a constant size, plus 8 bytes for each worker lost or leaving."""
    survey = token.survey
    plan = survey.plan
    head = _HEAD.pack(
        token.kind,
        survey.ending,
        token.attempt,
        token.origin,
        survey.low,
        survey.high,
        survey.source,
        survey.committed_in,
        survey.dealt,
        survey.dealt_in,
        _NOBODY if plan.newcomer is None else plan.newcomer,
        _NOBODY if plan.sponsor is None else plan.sponsor,
        len(token.lost),
        len(plan.leaving),
    )
    workers = (*sorted(token.lost), *sorted(plan.leaving))
    return head + b"".join(map(_ONE.pack, workers))


def decode(data: bytes | bytearray) -> Token:
    """Return the token of these bytes. Raises `SpotmpiError` if they are none."""
    try:
        kind, ending, attempt, origin, *numbers, losses, leaving = _HEAD.unpack_from(data)
        if len(data) != _HEAD.size + _ONE.size * (losses + leaving):
            raise ValueError(f"{len(data)} bytes for {losses} losses and {leaving} that leave")
        workers = [number for (number,) in _ONE.iter_unpack(data[_HEAD.size :])]
        low, high, source, committed_in, dealt, dealt_in, newcomer, sponsor = numbers
        plan = PlannedChange(frozenset(workers[losses:]), _worker(newcomer), _worker(sponsor))
        survey = Survey(low, high, source, committed_in, dealt, dealt_in, ending, plan)
        return Token(TokenKind(kind), attempt, origin, frozenset(workers[:losses]), survey)
    except (struct.error, ValueError) as error:
        raise SpotmpiError(f"a control message is no token of spotmpi: {error}") from error


def _worker(number: int) -> WorkerId | None:
    return None if number == _NOBODY else number


class Row(NamedTuple):
    """What all members must know of one worker."""

    worker: WorkerId
    host: str
    bell: bytes
    """Address of its doorbell."""
    card: bytes
    """What its neighbours need to reach its memory, in `CARD_BYTES`."""
    name: Name
    """MPI's name of its process."""


_NAME_BYTES = 256
_ROW = struct.Struct(f"<q{_NAME_BYTES}s{ADDRESS_BYTES}s{CARD_BYTES}s{_NAME_BYTES}sI")


def pack_row(row: Row) -> bytes:
    """Return a row as bytes, the same number for each worker."""
    host = row.host.encode()[:_NAME_BYTES]
    return _ROW.pack(row.worker, host, row.bell, row.card, *row.name)


def unpack_rows(data: bytes | bytearray) -> list[Row]:
    """Return the rows that `pack_row` made, in the order of their bytes."""
    return [
        Row(
            worker,
            host.rstrip(b"\0").decode(errors="replace"),
            bell.rstrip(b"\0"),
            card,
            Name(space.rstrip(b"\0"), rank),
        )
        for worker, host, bell, card, space, rank in _ROW.iter_unpack(data)
    ]
