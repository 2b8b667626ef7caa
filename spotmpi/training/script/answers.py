"""What `mean`, `once`, `gather` and `sum` returned, as far as a newcomer or a resumed script needs
it. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from spotmpi.protocol.plain_values import unpack

A = TypeVar("A", list[float], bytes)

Answer = list[float] | bytes
"""Numbers of a mean, the packed value of a `once`, or what `gather` or `sum` returned, packed."""

Of = str | int | None
"""What an answer belongs to: the name of a `once`, how many numbers a mean has, `GATHERED`, or what
was summed."""

GATHERED = "gather()"
"""What the answers of `gather` belong to. No function has this name."""

_MOST = 16384
"""Bytes of answers that are kept. Newcomers cannot follow a script that asks for more."""

TOO_LARGE = b""
"""Stands for a value of `once` for which there is no room."""

_MOST_IN_TURN = 1 << 20
"""Bytes of values of `once`, `gather` and `sum`, in front of a step, that newcomers can be told."""


class Answers:
    """The answers that a script was given, or will be given as the others were."""

    guides = True
    """True if a newcomer's script is where the others' are once it has learnt. Otherwise it comes
    there in another way, and tells the launcher when it does."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, Of, Answer]] = []
        """Answers outside of batches: the batches opened before each, its `Of`, the answer."""
        self.had = 0
        """Number of kept answers that this worker's script has had."""
        self.lost = False
        """True if answers are no longer kept: a newcomer cannot get here."""
        self.last: dict[str, bytes] = {}
        """Last packed value of each `once`, or `TOO_LARGE`, by its name."""
        self._turn: list[tuple[Of, bytes]] = []
        """Packed values since the last batch was drawn, or since the last step where steps are
        loose, each with its `Of`."""
        self._large = False
        """True if one of those is too large to be kept."""
        self.asked = False
        """True if something was asked since the last step, in a loop or where steps are loose."""

    def has_room(self, size: int) -> bool:
        """Return True if a newcomer may be told an answer of this size, in bytes."""
        return not self.lost and size <= _MOST_IN_TURN

    def keep(self, answer: Answer | None, of: Of, opened: int) -> bool:
        """Keep an answer given after ``opened`` batches; None: one that is too large. Return False
        if there is no room for it: all answers are `lost` then."""
        self.forget()
        if answer is not None:
            self._kept.append((opened, of, answer))
        self.had = len(self._kept)
        if answer is None or sum(_size(known) for *_, known in self._kept) > _MOST:
            self._kept, self.had, self.lost = [], 0, True
        return not self.lost

    def recall(self, kind: type[A], of: Of, opened: int) -> A | None:
        """Return the answer known for this place; None if there is none, or one of something else.
        The others were given it here, or this script was, before it was resumed."""
        while self.had < len(self._kept) and self._kept[self.had][0] < opened:
            self.had += 1  # this script did not ask there
        if self.had == len(self._kept):
            return None
        before, asked, answer = self._kept[self.had]
        if before != opened or asked != of or not isinstance(answer, kind):
            return None
        self.had += 1
        return answer

    def skip(self, number: int) -> None:
        """Leave out kept answers up to this number: the script skips what asked for them."""
        self.had = min(max(self.had, number), len(self._kept))

    def forget(self) -> None:
        """Drop later answers: they are of another script, or of another model by then."""
        del self._kept[self.had :]

    def keep_last(self, of: str, said: bytes) -> None:
        """Keep a packed value as the last one of the `once` with this name."""
        others = sum(len(one) for name, one in self.last.items() if name != of)
        self.last[of] = said if others + len(said) <= _MOST else TOO_LARGE

    def keep_for_turn(self, answer: Answer | None, of: Of) -> None:
        """Keep an answer until the next step is over; None: one that is too large."""
        self.asked = True
        self._large = self._large or answer is None
        if isinstance(answer, bytes):
            self._turn.append((of, answer))

    def recall_of_turn(self, of: Of) -> bytes | None:
        """Return the next packed value that the others were given on the way to their step; None if
        they were given none that belongs to this."""
        while self._turn:
            found, answer = self._turn.pop(0)
            if found == of:
                return answer
        return None

    def drawn(self) -> None:
        """Note that a batch is drawn: a newcomer's script begins there."""
        self._turn.clear()
        self._large = False

    def tellable(self, in_step: bool) -> bool:
        """Return True if a newcomer can be told all that it needs for its first batch. In a round
        that is none of steps an answer may be missing."""
        there = sum(len(one) for _, one in self._turn)
        return in_step and not self._large and there <= _MOST_IN_TURN

    def stepped(self) -> None:
        """Note that a step is over."""
        self.drawn()
        self.asked = False

    def told(self) -> dict[str, Any]:
        """Return what others need of the kept answers, as JSON values."""
        return {
            "answers": [(opened, of, _plain(answer)) for opened, of, answer in self._kept],
            "last": {name: _plain(said) for name, said in self.last.items()},
        }

    def follow(self, told: Mapping[str, Any]) -> None:
        """Take what others have `told`; this script has had as much, or less."""
        self._kept = [(int(opened), of, _answer(said)) for opened, of, said in told["answers"]]
        self.had = min(self.had, len(self._kept))
        self.last = {name: base64.b64decode(said) for name, said in told["last"].items()}

    def check(self) -> None:
        """Check that packed values can be unpacked. Raises what `unpack` does."""
        for _, of, answer in self._kept:
            if isinstance(answer, bytes):
                found = unpack(answer)
                if of == GATHERED and not isinstance(found, dict):
                    raise ValueError("the values of gather() are no dict")
        for said in self.last.values():
            if said != TOO_LARGE:
                unpack(said)

    def told_of_turn(self) -> list[Any]:
        """Return what others need of the answers on the way to the step, as JSON values."""
        return [(of, _plain(answer)) for of, answer in self._turn]

    def follow_turn(self, told: Sequence[Any]) -> None:
        """Take what others have `told_of_turn`."""
        self._turn = [(of, base64.b64decode(said)) for of, said in told]


class NoAnswers(Answers):
    """None are kept, and none are needed: newcomers find their way by other means."""

    guides = False

    def has_room(self, size: int) -> bool:
        """Return False."""
        return False

    def keep(self, answer: Answer | None, of: Of, opened: int) -> bool:
        """Keep nothing."""
        return True

    def keep_for_turn(self, answer: Answer | None, of: Of) -> None:
        """Keep nothing."""

    def tellable(self, in_step: bool) -> bool:
        """Return True: nothing can be missing."""
        return True


def _size(answer: Answer) -> int:
    """Return the size in bytes, approximately."""
    return len(answer) * (1 if isinstance(answer, bytes) else 8)


def _plain(answer: Answer) -> Any:
    return base64.b64encode(answer).decode() if isinstance(answer, bytes) else answer


def _answer(said: Any) -> Answer:
    return base64.b64decode(said) if isinstance(said, str) else [*map(float, said)]
