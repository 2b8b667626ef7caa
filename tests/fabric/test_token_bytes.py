"""Tokens as bytes: whole, of constant size, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.token_bytes import decode, encode
from spotmpi.protocol.recovery import PlannedChange, Survey, Token, TokenKind

NUMBERS = st.integers(-(2**63), 2**63 - 1)
WORKERS = st.integers(0, 2**63 - 1)
PLANS = st.builds(
    PlannedChange, st.frozensets(WORKERS, max_size=20), st.none() | WORKERS, st.none() | WORKERS
)
SURVEYS = st.builds(
    Survey, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.booleans(), PLANS
)
TOKENS = st.builds(
    Token,
    st.sampled_from(TokenKind),
    NUMBERS,
    NUMBERS,
    st.frozensets(NUMBERS, max_size=20),
    SURVEYS,
)


@given(TOKENS)
def test_a_token_comes_back_as_it_was(token: Token) -> None:
    assert decode(encode(token)) == token


@given(TOKENS)
def test_a_token_grows_by_eight_bytes_a_loss_or_a_leave_and_nothing_else(token: Token) -> None:
    survey = replace(token.survey, plan=PlannedChange(newcomer=5, sponsor=0))
    empty = replace(token, lost=frozenset(), survey=survey)
    more = len(token.lost) + len(token.survey.plan.leaving)
    assert len(encode(token)) == len(encode(empty)) + 8 * more


def test_the_lost_and_those_who_leave_are_not_mistaken_for_each_other() -> None:
    survey = Survey(1, 1, 0, 0, 0, 0, False, PlannedChange(frozenset({2, 3}), 0, 0))
    token = Token(TokenKind.ACCEPT, 4, 1, frozenset({5}), survey)
    assert decode(encode(token)) == token
    other = replace(
        token, lost=frozenset({2, 3}), survey=replace(survey, plan=PlannedChange(frozenset({5})))
    )
    assert decode(encode(other)) == other
    assert len(encode(other)) == len(encode(token))


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
