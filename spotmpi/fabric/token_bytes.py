"""Tokens, and who is there, as bytes: fixed fields and lists of integers.

Nothing that is read can execute.
"""

from __future__ import annotations

import struct

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.doorbell import ADDRESS_BYTES
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.recovery import PlannedChange, Survey, Token, TokenKind

_HEAD = struct.Struct("<B?qqqqqqqqqqII")
_ONE = struct.Struct("<q")
_NOBODY = -1


def encode(token: Token) -> bytes:
    """The bytes of ``token``: constant size plus 8 bytes for each worker lost or leaving."""
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
    """The token of these bytes; `SpotmpiError` if they are none."""
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


Row = tuple[WorkerId, str, bytes]
"""A worker, its host, its doorbell."""

_HOST_BYTES = 256
_ROW_BYTES = _ONE.size + _HOST_BYTES + ADDRESS_BYTES


def pack_row(worker: WorkerId, host: str, bell: bytes) -> bytes:
    """A row as bytes, as many for everybody."""
    name = host.encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
    return (_ONE.pack(worker) + name + bell).ljust(_ROW_BYTES, b"\0")


def unpack_rows(data: bytes | bytearray) -> list[Row]:
    """The rows that `pack_row` made, one after the other."""
    rows = []
    for i in range(0, len(data), _ROW_BYTES):
        row = bytes(data[i : i + _ROW_BYTES])
        name, address = row[_ONE.size : _ONE.size + _HOST_BYTES], row[_ONE.size + _HOST_BYTES :]
        text = name.rstrip(b"\0").decode(errors="replace")
        rows.append((_ONE.unpack_from(row)[0], text, address.rstrip(b"\0")))
    return rows
