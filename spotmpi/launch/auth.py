"""Proof that both ends know the job's token, and frames that only they can make. Pure.

::

    agent -> head   MAGIC and a nonce
    head  -> agent  a nonce, and the head's proof: an HMAC over both nonces, keyed by the token
    agent -> head   the agent's proof: as above, and no other text can be mistaken for it

then frames both ways, ``length | kind | payload | tag``. The tag is an HMAC over the frame and its
number, with a key that token, direction and both nonces decide. So the token never travels, and a
frame that is forged, altered, replayed, dropped or out of order, from another connection or sent
back to its sender, ends the connection. Nothing is encrypted: for that, there is ssh below.

*Stamps* go beside the connection, one in a datagram: a number and an HMAC over it, with keys of
their own. They may be lost; one that is forged, or not later than the last, is passed over.
"""

from __future__ import annotations

import enum
import hmac
import struct
from dataclasses import dataclass

from spotmpi.errors import SpotmpiError

__all__ = ["LONGEST", "NONCE_BYTES", "Frame", "Refused", "Role", "Seal"]

NONCE_BYTES = 32
LONGEST = 1 << 20
"""Bytes of a frame's payload, at most."""

_MAGIC = b"spotmpi1"
_PROOF_BYTES = 32
_TAG_BYTES = 16
_HEAD = struct.Struct("!IB")
_NUMBER = struct.Struct("!Q")


class Role(enum.Enum):
    """Which end of a connection this is."""

    HEAD = b"head"
    AGENT = b"agent"


_OTHER_TOKEN = {
    Role.HEAD: "it does not know the job's token",
    Role.AGENT: "the head has another token: --token-file must be a copy of the file that "
    "`spotmpi run --listen` was given",
}
"""What each end says where the other's proof is wrong."""


class Refused(SpotmpiError):
    """The other end does not know the token, or is none of ours; the connection must be closed."""


@dataclass(frozen=True)
class Frame:
    """One message: what ``kind`` and ``payload`` mean is not known here."""

    kind: int
    payload: bytes


class Seal:
    """One end of one connection: bytes in, frames out, and the other way round.

    ``token`` is secret, at least 16 random bytes; ``nonce`` fresh random bytes, never used before.
    """

    def __init__(self, role: Role, token: bytes, nonce: bytes) -> None:
        if len(token) < 16 or len(nonce) != NONCE_BYTES:
            raise ValueError("a token has 16 bytes or more, a nonce just 32")
        self._role = role
        self._token = token
        self._nonce = nonce
        self._received = bytearray()
        self._keys: dict[Role, bytes] = {}
        self._stamp_keys: dict[Role, bytes] = {}
        self._numbers = dict.fromkeys(Role, 0)
        self._stamped = self._expected = 0
        self._nonces = b""
        self._refused = ""
        self.open = False
        """Whether the other end has proved that it knows the token."""

    def greeting(self) -> bytes:
        """What to send before anything is received."""
        return _MAGIC + self._nonce if self._role is Role.AGENT else b""

    @property
    def closed(self) -> str:
        """What it means if the other end closes the connection now."""
        if self._role is Role.HEAD and self._nonces and not self.open:
            return (
                "it closed the connection when it was to prove that it knows the job's token: "
                "its --token-file may be of another job"
            )
        return "the connection was closed"

    def feed(self, data: bytes) -> tuple[bytes, list[Frame]]:
        """Take what was received; return what to send in answer, and the frames that came.

        Raises `Refused`, and from then on for ever.
        """
        if self._refused:
            raise Refused(self._refused)
        self._received += data
        try:
            answer = b"" if self.open else self._shake_hands()
            return answer, self._frames() if self.open else []
        except Refused as refused:
            self._refused = str(refused)
            raise

    def wrap(self, kind: int, payload: bytes) -> bytes:
        """The bytes of the next frame to send. The other end must have proved itself."""
        if len(payload) > LONGEST:
            raise ValueError(f"a frame of {len(payload)} bytes; the longest has {LONGEST}")
        frame = _HEAD.pack(len(payload), kind) + payload
        return frame + self._tag(self._role, frame)

    def stamp(self) -> bytes:
        """A datagram that says that this end lives. The other end must have proved itself."""
        number = _NUMBER.pack(self._stamped)
        self._stamped += 1
        return number + self._mark(self._role, number)

    def proves(self, datagram: bytes) -> bool:
        """Whether the other end has stamped this, and later than all that was believed before."""
        if not self.open or len(datagram) != _NUMBER.size + _TAG_BYTES:
            return False
        number, mark = datagram[: _NUMBER.size], datagram[_NUMBER.size :]
        if not hmac.compare_digest(mark, self._mark(self._other, number)):
            return False
        (at,) = _NUMBER.unpack(number)
        if at < self._expected:
            return False
        self._expected = at + 1
        return True

    @property
    def _other(self) -> Role:
        return Role.HEAD if self._role is Role.AGENT else Role.AGENT

    def _mark(self, sender: Role, number: bytes) -> bytes:
        return hmac.digest(self._stamp_keys[sender], number, "sha256")[:_TAG_BYTES]

    def _shake_hands(self) -> bytes:
        if self._role is Role.HEAD:
            return self._meet_agent()
        begin = self._take(NONCE_BYTES + _PROOF_BYTES)
        if begin is None:
            return b""
        self._nonces = self._nonce + begin[:NONCE_BYTES]
        self._check(Role.HEAD, begin[NONCE_BYTES:])
        return self._proof(Role.AGENT)

    def _meet_agent(self) -> bytes:
        answer = b"" if self._nonces else self._greet()
        # Whoever sends this along with its nonce has not read the head's: it cannot be right.
        proof = self._take(_PROOF_BYTES) if self._nonces else None
        if proof is not None:
            self._check(Role.AGENT, proof)
        return answer

    def _greet(self) -> bytes:
        known = self._received[: len(_MAGIC)]
        if known != _MAGIC[: len(known)]:
            raise Refused("it does not speak spotmpi's protocol")
        begin = self._take(len(_MAGIC) + NONCE_BYTES)
        if begin is None:
            return b""
        self._nonces = begin[len(_MAGIC) :] + self._nonce
        return self._nonce + self._proof(Role.HEAD)

    def _check(self, role: Role, proof: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(role)):
            raise Refused(_OTHER_TOKEN[self._role])
        for direction in Role:
            self._keys[direction] = self._digest(b"key " + direction.value)
            self._stamp_keys[direction] = self._digest(b"stamps " + direction.value)
        self.open = True

    def _proof(self, role: Role) -> bytes:
        return self._digest(b"proof " + role.value)

    def _digest(self, purpose: bytes) -> bytes:
        return hmac.digest(self._token, purpose + b"\0" + self._nonces, "sha256")

    def _frames(self) -> list[Frame]:
        found = []
        while len(self._received) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._received)
            if length > LONGEST:
                raise Refused(f"it announces a frame of {length} bytes")
            whole = self._take(_HEAD.size + length + _TAG_BYTES)
            if whole is None:
                break
            frame = whole[:-_TAG_BYTES]
            if not hmac.compare_digest(whole[-_TAG_BYTES:], self._tag(self._other, frame)):
                raise Refused("it sends a frame that is forged, altered or out of order")
            found.append(Frame(kind, frame[_HEAD.size :]))
        return found

    def _tag(self, sender: Role, frame: bytes) -> bytes:
        number = self._numbers[sender]
        self._numbers[sender] = number + 1
        tag = hmac.digest(self._keys[sender], _NUMBER.pack(number) + frame, "sha256")
        return tag[:_TAG_BYTES]

    def _take(self, count: int) -> bytes | None:
        if len(self._received) < count:
            return None
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken
