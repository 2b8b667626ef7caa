"""Nobody who does not know the token gets a word in, and nothing that was said can be changed."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spotmpi.launch.auth import LONGEST, NONCE_BYTES, Frame, Refused, Role, Seal

TOKEN = bytes(range(32))


def ends(token: bytes = TOKEN, of_agent: bytes = TOKEN, salt: int = 0) -> tuple[Seal, Seal]:
    """Head and agent, before a byte has travelled."""
    nonces = (bytes([salt + i]) * NONCE_BYTES for i in (1, 2))
    return Seal(Role.HEAD, token, next(nonces)), Seal(Role.AGENT, of_agent, next(nonces))


def opened(salt: int = 0) -> tuple[Seal, Seal]:
    """Head and agent that have proved themselves to each other."""
    head, agent = ends(salt=salt)
    shake_hands(head, agent)
    assert head.open
    assert agent.open
    return head, agent


def shake_hands(head: Seal, agent: Seal) -> None:
    to_agent, _ = head.feed(agent.greeting())
    to_head, _ = agent.feed(to_agent)
    head.feed(to_head)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=8), st.data())
def test_frames_arrive_as_they_were_sent_however_they_are_cut(
    sent: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    head, agent = opened()
    for sender, receiver in ((head, agent), (agent, head)):
        stream = b"".join(sender.wrap(kind, payload) for kind, payload in sent)
        found: list[Frame] = []
        while stream:
            cut = data.draw(st.integers(1, len(stream)))
            answer, frames = receiver.feed(stream[:cut])
            assert answer == b""
            found += frames
            stream = stream[cut:]
        assert found == [Frame(kind, payload) for kind, payload in sent]


def test_the_handshake_may_come_byte_by_byte() -> None:
    head, agent = ends()
    to_head, to_agent = bytearray(agent.greeting()), bytearray()
    while to_head or to_agent:
        if to_head:
            to_agent += head.feed(bytes([to_head.pop(0)]))[0]
        if to_agent:
            to_head += agent.feed(bytes([to_agent.pop(0)]))[0]
    assert head.open
    assert agent.open


def test_the_token_never_travels() -> None:
    head, agent = ends()
    hello = agent.greeting()
    answer, _ = head.feed(hello)
    proof, _ = agent.feed(answer)
    said = hello + answer + proof + agent.wrap(0, b"x")
    assert not any(TOKEN[i : i + 8] in said for i in range(len(TOKEN) - 8))


def test_an_agent_with_another_token_is_refused() -> None:
    head, agent = ends(of_agent=bytes(32))
    answer, _ = head.feed(agent.greeting())
    with pytest.raises(Refused, match="the head has another token: --token-file must be a copy of"):
        agent.feed(answer)  # each finds out about the other
    with pytest.raises(Refused, match="does not know the job's token"):
        head.feed(bytes(32))
    assert not head.open
    assert not agent.open


def test_a_head_that_does_not_know_the_token_gets_no_proof() -> None:
    head, agent = ends(token=bytes(32))
    answer, _ = head.feed(agent.greeting())
    with pytest.raises(Refused):
        agent.feed(answer)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"SSH-2.0-x"])
def test_who_speaks_another_protocol_is_refused_at_once(said: bytes) -> None:
    head, _ = ends()
    with pytest.raises(Refused, match="does not speak spotmpi's protocol"):
        head.feed(said)


def test_half_a_handshake_gives_nothing_away() -> None:
    head, agent = ends()
    assert head.feed(agent.greeting()[:-1]) == (b"", [])
    assert not head.open


def test_a_recorded_handshake_does_not_open_another_connection() -> None:
    head, agent = ends()
    hello = agent.greeting()
    proof, _ = agent.feed(head.feed(hello)[0])
    later, _ = ends(salt=5)  # a new connection has a new nonce
    later.feed(hello)
    with pytest.raises(Refused):
        later.feed(proof)


def test_an_end_does_not_take_its_own_proof_for_the_other_s() -> None:
    """Reflection: an attacker sends everything back."""
    head, agent = ends()
    answer, _ = head.feed(agent.greeting())
    with pytest.raises(Refused):
        head.feed(answer[NONCE_BYTES:])


@pytest.mark.parametrize("change", ["flip", "replay", "drop", "swap", "reflect", "elsewhere"])
def test_a_stream_that_was_tampered_with_ends(change: str) -> None:
    head, agent = opened()
    first, second = (agent.wrap(1, text) for text in (b"one", b"two"))
    assert head.feed(first)[1] == [Frame(1, b"one")]
    if change == "flip":
        stream = bytearray(second)
        stream[6] ^= 1
    elif change == "replay":
        stream = first
    elif change == "drop":
        stream = agent.wrap(1, b"three")
    elif change == "swap":
        stream = agent.wrap(1, b"three") + second
    elif change == "reflect":
        stream = head.wrap(1, b"two")
    else:
        other_head, other_agent = opened(salt=7)
        other_head.feed(other_agent.wrap(1, b"one"))
        stream = other_agent.wrap(1, b"two")
    with pytest.raises(Refused, match="forged, altered or out of order"):
        head.feed(bytes(stream))
    with pytest.raises(Refused):
        head.feed(second)  # and nothing is believed any more


def test_a_frame_too_long_is_refused_before_it_is_kept() -> None:
    head, agent = opened()
    with pytest.raises(ValueError, match="longest"):
        agent.wrap(0, bytes(LONGEST + 1))
    with pytest.raises(Refused, match="announces a frame of 4294967295 bytes"):
        head.feed(b"\xff\xff\xff\xff\x00")


def test_a_guessable_token_is_no_token() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Seal(Role.HEAD, b"secret", bytes(NONCE_BYTES))


def test_a_stamp_counts_once_and_for_the_other_end_only() -> None:
    head, agent = Seal(Role.HEAD, bytes(32), bytes(32)), Seal(Role.AGENT, bytes(32), bytes(32))
    assert not head.proves(bytes(24)), "nobody has proved anything"
    answer, _ = head.feed(agent.greeting())
    proof, _ = agent.feed(answer)
    head.feed(proof)
    first, second, third = agent.stamp(), agent.stamp(), agent.stamp()
    assert head.proves(first)
    assert not head.proves(first), "sent again"
    assert head.proves(third), "one may be lost"
    assert not head.proves(second), "come too late"
    assert not agent.proves(agent.stamp()), "sent back to its sender"
    forged = bytearray(agent.stamp())
    for place in range(len(forged)):
        forged[place] ^= 1
        assert not head.proves(bytes(forged)), f"byte {place} is another"
        forged[place] ^= 1
    assert not head.proves(bytes(forged[:-1]))
    assert not head.proves(bytes(forged) + b"x")
    assert head.proves(bytes(forged)), "what was forged has moved nothing"


def test_a_stamp_of_another_connection_counts_for_nothing() -> None:
    head, _ = opened()
    _, other = opened(salt=7)
    assert not head.proves(other.stamp())


def test_stamps_and_frames_are_numbered_apart() -> None:
    head, agent = opened()
    assert head.proves(agent.stamp())
    assert head.feed(agent.wrap(1, b"one"))[1] == [Frame(1, b"one")]
    assert head.proves(agent.stamp())
