"""Tokens as bytes: whole, of constant size, and nothing else is taken for one."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.wire import decode, encode
from spotmpi.recovery import Kind, Survey, Token

NUMBERS = st.integers(-(2**63), 2**63 - 1)
SURVEYS = st.builds(Survey, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.booleans())
TOKENS = st.builds(
    Token, st.sampled_from(Kind), NUMBERS, NUMBERS, st.frozensets(NUMBERS, max_size=20), SURVEYS
)


@given(TOKENS)
def test_a_token_comes_back_as_it_was(token: Token) -> None:
    assert decode(encode(token)) == token


@given(TOKENS)
def test_a_token_grows_by_eight_bytes_a_loss_and_nothing_else(token: Token) -> None:
    empty = Token(token.kind, token.attempt, token.origin, frozenset(), token.survey)
    assert len(encode(token)) == len(encode(empty)) + 8 * len(token.lost)


@given(st.binary(max_size=200))
def test_other_bytes_are_a_token_or_an_error_of_ours(data: bytes) -> None:
    try:
        token = decode(data)
    except SpotmpiError:
        return
    assert len(encode(token)) <= len(data)


@given(TOKENS, st.integers(1, 60))
def test_a_token_that_is_cut_short_or_longer_is_refused(token: Token, bytes_: int) -> None:
    with pytest.raises(SpotmpiError, match="no token"):
        decode(encode(token)[:-bytes_])
    with pytest.raises(SpotmpiError, match="no token"):
        decode(encode(token) + bytes(bytes_))
