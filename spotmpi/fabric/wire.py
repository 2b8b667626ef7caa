"""Tokens as bytes. Fixed fields and a list of integers: nothing that is read can execute."""

from __future__ import annotations

import struct

from spotmpi.errors import SpotmpiError
from spotmpi.recovery import Kind, Survey, Token

_HEAD = struct.Struct("<B?qqqqqqqqI")
_ONE = struct.Struct("<q")


def encode(token: Token) -> bytes:
    """The bytes of ``token``: constant size plus 8 bytes for each loss."""
    survey = token.survey
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
        len(token.lost),
    )
    return head + b"".join(map(_ONE.pack, sorted(token.lost)))


def decode(data: bytes | bytearray) -> Token:
    """The token of these bytes; `SpotmpiError` if they are none."""
    try:
        kind, ending, attempt, origin, *numbers, count = _HEAD.unpack_from(data)
        if len(data) != _HEAD.size + _ONE.size * count:
            raise ValueError(f"{len(data)} bytes for {count} losses")
        lost = frozenset(number for (number,) in _ONE.iter_unpack(data[_HEAD.size :]))
        low, high, source, committed_in, dealt, dealt_in = numbers
        survey = Survey(low, high, source, committed_in, dealt, dealt_in, ending)
        return Token(Kind(kind), attempt, origin, lost, survey)
    except (struct.error, ValueError) as error:
        raise SpotmpiError(f"a control message is no token of spotmpi: {error}") from error
