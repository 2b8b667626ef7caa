"""Where a script stands: the batches that it has drawn, and the answers that it was given.

The position is equal on all workers at every boundary. A newcomer runs the same script from its
beginning, and gets to where the others are without their help. Its loop over passes begins with the
pass that they are in. Batches that are used up yield nothing. A `mean` or a `once` outside of
batches is answered as it was then. In its first batch the newcomer is told what `once` returned
since the others' last step. A resumed script gets to its checkpoint in the same way.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

from spotmpi.errors import CheckpointError, UsageError
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.plain_values import unpack
from spotmpi.protocol.sampler import Dealer, Lease, PacesOf, Sampler, pool_of

A = TypeVar("A", list[float], bytes)

Answer = list[float] | bytes
"""Numbers of a mean, or the packed value of a `once`."""

Of = str | int | None
"""What an answer belongs to: the name of a `once`, or how many numbers a mean has."""

_MOST = 16384
"""Bytes of answers that are kept. Newcomers cannot follow a script that asks for more."""

TOO_LARGE = b""
"""Stands for a value of `once` for which there is no room."""

_MOST_IN_TURN = 1 << 20
"""Bytes of values of `once`, between two steps, that newcomers can be told."""


@dataclass
class _Passes:
    """A loop over passes, and where the script is in it."""

    now: int
    """Pass that the script is in: those before it are done."""
    opened: int
    """Batches opened when that pass began, or, if the loop is `over`, when the script left it."""
    answered: int
    """Answers given when that pass began, or, if the loop is `over`, when the script left it."""
    over: bool = False
    """True if the script has gone on to something else, even if passes are left."""


class ScriptPosition:
    """The position of one worker's script. Local, all of it."""

    def __init__(self) -> None:
        self.dealer = Dealer()
        self._samplers: list[Sampler | None] = []
        """Samplers by the number of their batches; None for a pass that this script skipped."""
        self._kept: dict[int, Mapping[str, Any]] = {}
        """States of samplers that are not open yet, from a checkpoint or from the others."""
        self._closed: set[int] = set()
        """Samplers whose batches the script has left, used up or not."""
        self._inside = 0
        """Number of loops over batches that the script is in."""
        self._loops: list[_Passes] = []
        """Loops over passes that were entered; after a checkpoint, or from the others, also later
        ones."""
        self._entered = 0
        """Number of known loops over passes that this script has entered."""
        self._pass: int | None = None
        """Pass that the script is in, or -1 before the first; None outside of such loops."""
        self._planned = 0
        """Passes of the loop that the script is in."""
        self._left: tuple[int, int] | None = None
        """Batches opened and answers given when it left its last loop over passes; None if it
        cannot go on there any more."""
        self._resumed = False
        """True if the script goes on from a checkpoint."""
        self._done: tuple[int, int, int] | None = None
        """Arguments of the last batches, if nothing was left of these when they were opened."""
        self.repeats = False
        """True once, if the last batches are in a loop that was gone through before: what stands in
        it beside batches is done again."""
        self._warned = False
        """True after `repeats` was true."""
        self._early: list[int] = []
        """Batches that were not gone through to their end, as the others know it."""
        self.last: dict[str, bytes] = {}
        """Last packed value of each `once`, or `TOO_LARGE`, by its name."""
        self._answers: list[tuple[int, Of, Answer]] = []
        """Answers outside of batches: the number of samplers before each, its `Of`, the answer."""
        self._told = 0
        """Number of kept answers that this worker's script has had."""
        self._loose = False
        """True if steps are taken outside of batches. Means between them follow no rule."""
        self._turn: list[bytes] = []
        """Values of `once` since the last step, in a loop or where steps are loose."""
        self.asked = False
        """True if something was asked since the last step, in a loop or where steps are loose."""
        self._lent: Mapping[str, Any] | None = None
        """The others' next lease, in which this worker has no part."""
        self.lost = False
        """True if answers are no longer kept: a newcomer cannot get here."""

    # Batches.

    def open(self, n: int, batch_size: int, passes: int, seed: int) -> int:
        """Open the script's next batches and return their number."""
        number = len(self._samplers)
        sampler = Sampler(n, batch_size, passes, [seed, number])
        if number in self._kept:
            sampler.restore(self._kept[number])
        self._samplers.append(sampler)
        asked = n, batch_size, passes
        alike = self._resumed and self._pass is None and self._done == asked
        self.repeats = alike and not self._warned
        self._warned = self._warned or alike
        self._done = asked if n and sampler.over else None
        return number

    def _sampler(self, number: int) -> Sampler:
        sampler = self._samplers[number]
        assert sampler is not None
        return sampler

    @property
    def inside(self) -> bool:
        """True if the script goes through batches."""
        return self._inside > 0

    def enter(self) -> None:
        """Note that the script goes through batches from now on."""
        self._inside += 1

    def leave(self, number: int, used: bool = False) -> None:
        """Note that the script leaves its batches. Drop the drawn lease unless ``used`` in part."""
        self._inside -= 1
        self._closed.add(number)
        if not used:
            self.dealer.drop(self._sampler(number))

    def draw(
        self, number: int, membership: Membership, steps: int = 1, *paces: PacesOf
    ) -> Lease | None:
        """Return the next lease of these batches (`sampler.Dealer.draw`); None if they are over."""
        if number in self._closed:
            return None
        lease = self.dealer.draw(self._sampler(number), membership, steps, *paces)
        if lease is not None:
            self._goes_on()
        return lease

    def left(self, workers: int) -> int | None:
        """Return the steps to come, if ``workers`` workers take them; None if not known. It is not
        known outside of batches, and in a script that goes through batches more than once, or more
        than once in each pass of its loop over passes."""
        before = self._pass or 0
        if len(self._samplers) != before + 1 or not self._inside or self._loose:
            return None
        here = self._sampler(before)
        whole = -(-here.n // (here.batch_size * workers)) * here.passes
        return here.left(workers) + whole * max(0, self._planned - before - 1)

    def planned(self, number: int) -> dict[str, int]:
        """Return what the script has asked for with these batches."""
        sampler = self._sampler(number)
        return {"n": sampler.n, "batch_size": sampler.batch_size, "passes": sampler.passes}

    @property
    def left_early(self) -> list[int]:
        """Batches that the script has opened and not gone through to their end."""
        return [
            number
            for number, one in enumerate(self._samplers)
            if (number in self._early if one is None else one.n and not one.over)
        ]

    def used_up(self, number: int) -> bool:
        """Return True if the others used up these batches; for a worker that is dealt nothing."""
        return number in self._closed or self._sampler(number).over

    # Passes.

    def enter_passes(self, n: int) -> None:
        """Enter the script's next loop over ``n`` passes. Raises UsageError if it is in one."""
        if self._pass is not None:
            raise UsageError(
                "passes() was called inside a loop over passes(): leave that loop first, or write "
                "the inner one with range()"
            )
        self._leave_behind()
        if self._entered == len(self._loops):
            self._loops.append(_Passes(0, len(self._samplers), self._told))
        self._entered += 1
        self._pass, self._planned = -1, n

    def next_pass(self) -> int | None:
        """Return the pass that the script is to go through next; None if none is left."""
        assert self._pass is not None
        loop = self._loops[self._entered - 1]
        if loop.over or loop.now > self._pass:  # the first pass, or the others are further
            missing = loop.opened - len(self._samplers)
            self._samplers.extend([None] * missing)
            self._told = min(max(self._told, loop.answered), len(self._answers))
        else:
            self._forget()
            loop.now, loop.opened, loop.answered = self._pass + 1, len(self._samplers), self._told
        self._pass = loop.now
        return None if loop.over or loop.now >= self._planned else loop.now

    def leave_passes(self) -> None:
        """Note that the script has left its loop over passes, used up or not."""
        self._pass, self._planned = None, 0
        self._left = len(self._samplers), self._told

    def _leave_behind(self) -> None:
        """Mark the loop over passes that the script has left as over: it does not come back to it.

        The script must have gone on to something else first. If it was resumed after it had left
        the loop early, it may be meant to take longer this time.
        """
        if self._left is not None:
            loop = self._loops[self._entered - 1]
            (loop.opened, loop.answered), loop.over = self._left, True
            self._left = None

    def end(self) -> None:
        """Note that the training is over."""
        self._leave_behind()

    def _goes_on(self) -> None:
        """Note that the script comes to a step."""
        self._leave_behind()
        self._forget()

    # Answers.

    def _forget(self) -> None:
        """Drop later answers: they are of another script, or of another model by then."""
        del self._answers[self._told :]

    def remember(self, answer: Answer, of: Of = None) -> None:
        """Keep an answer that all workers were given now."""
        if self._inside or self._loose:
            self.asked = True
            if isinstance(answer, bytes):
                self._turn.append(answer)
            return
        self._forget()
        if self.lost:
            return
        self._answers.append((len(self._samplers), of, answer))
        self._told = len(self._answers)
        if sum(_size(known) for *_, known in self._answers) > _MOST:
            self._answers, self._told = [], 0
            for loop in self._loops:
                loop.answered = 0
            self.lost = True

    def recall(self, kind: type[A], of: Of = None) -> A | None:
        """Return the answer known for this place; None if there is none, or one of something else.
        The others were given it here, or this script was, before it was resumed."""
        if self._inside:
            return None
        here = len(self._samplers)
        while self._told < len(self._answers) and self._answers[self._told][0] < here:
            self._told += 1  # this script did not ask there
        if self._told == len(self._answers):
            return None
        opened, asked, answer = self._answers[self._told]
        if opened != here or asked != of or not isinstance(answer, kind):
            return None
        self._told += 1
        return answer

    def keep_last(self, of: str, said: bytes) -> None:
        """Keep a packed value as the last one of the `once` with this name."""
        others = sum(len(one) for name, one in self.last.items() if name != of)
        self.last[of] = said if others + len(said) <= _MOST else TOO_LARGE

    def recall_of_turn(self) -> bytes | None:
        """Return the next `once` value that the others got since their last step, if known."""
        return self._turn.pop(0) if self._turn else None

    @property
    def tellable(self) -> bool:
        """True if a newcomer can be told all that it needs for its first batch."""
        return sum(map(_size, self._turn)) <= _MOST_IN_TURN

    def stepped(self) -> None:
        """Note that a step is over."""
        self._turn.clear()
        self.asked = False

    def loosen(self) -> None:
        """Note a step outside of batches: later answers cannot be told from each other."""
        if not self._loose:
            self._goes_on()
        self._loose = True

    # State.

    def kept(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the position."""
        states = {**self._kept}
        states |= {n: one.state() for n, one in enumerate(self._samplers) if one is not None}
        known = {
            f"sampler/{number}/{key}": pool_of(state) if key == "pool" else value
            for number, state in states.items()
            for key, value in state.items()
        }
        return {**known, "script": json.dumps(self._script())}

    def resume(self, state: Mapping[str, Any], where: str = "") -> None:
        """Go on from what a checkpoint `kept`, with the samplers that the script will open.

        Raises CheckpointError if no script can have been there.
        """
        found: dict[int, dict[str, Any]] = {}
        for name, value in state.items():
            if name.startswith("sampler/"):
                _, number, key = name.split("/", 2)
                found.setdefault(int(number), {})[key] = value
        self._kept, self._resumed = dict(found), True
        if "script" not in state:  # an older version wrote it
            return
        try:
            self._follow(json.loads(state["script"]))
            for _, _, answer in self._answers:
                if isinstance(answer, bytes):
                    unpack(answer)
            for said in self.last.values():
                if said != TOO_LARGE:
                    unpack(said)
            opened = max((loop.opened for loop in self._loops), default=0)
            fits = opened <= len(found) and found.keys() >= {*range(opened)}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error):
            fits = False
        if not fits:
            raise CheckpointError(
                f"{where} does not say where its script stood: it was not written by spotmpi"
            )

    def _script(self) -> dict[str, Any]:
        """Return where the script stands between its batches, as JSON values."""
        return {
            "loops": [astuple(loop) for loop in self._loops],
            "answers": [(opened, of, _plain(answer)) for opened, of, answer in self._answers],
            "last": {name: _plain(said) for name, said in self.last.items()},
            "early": self.left_early,
        }

    def _follow(self, known: Mapping[str, Any]) -> None:
        """Take the position ``known`` of the others; this script is there, or before it."""
        loops = [
            _Passes(int(now), int(opened), int(answered), bool(over))
            for now, opened, answered, over in known["loops"]
        ]
        self._loops = [*loops, *self._loops[len(loops) :]]
        self._answers = [(int(opened), of, _answer(said)) for opened, of, said in known["answers"]]
        self._told = min(self._told, len(self._answers))
        self.last = {name: base64.b64decode(said) for name, said in known["last"].items()}
        self._early = list(map(int, known["early"]))

    def snapshot(self, contributors: Sequence[WorkerId] | None = None) -> dict[str, Any]:
        """Return plain values for a newcomer; with ``contributors``, as after the drawn step. If
        workers take different numbers of steps, its lease is `lent`, and `settle` does the rest."""
        drawn = None if contributors is None else self.dealer.drawn
        lent = None if drawn is None else drawn.lent()
        if drawn is not None and lent is not None:
            lent["sampler"] = self._samplers.index(drawn)
        return {
            "lent": lent,
            **self._script(),
            "samplers": [
                _listed(self._kept[number] if one is None else self._of(one, contributors))
                for number, one in enumerate(self._samplers)
            ],
            "closed": sorted(self._closed),
            "turn": [_plain(answer) for answer in self._turn] if contributors is None else [],
            "loose": self._loose,
            "lost": self.lost,
            "dealer": self.dealer.after(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `snapshot`, with the samplers that are open and those to come."""
        self._follow(state)
        self._kept = dict(enumerate(state["samplers"]))
        for number, sampler in enumerate(self._samplers):
            if sampler is not None and number in self._kept:
                sampler.restore(self._kept[number])
        self._closed = set(state["closed"])
        self._turn = [base64.b64decode(said) for said in state["turn"]]
        self._loose, self.lost = bool(state["loose"]), bool(state["lost"])
        self._lent = state["lent"]
        self.dealer.restore(int(state["dealer"]))

    def settle(
        self, taken: Mapping[WorkerId, int], contributors: Iterable[WorkerId], seed: int
    ) -> None:
        """End the others' lease that was lent, after its round. ``taken``: steps that each worker
        took. ``contributors``: workers that brought theirs."""
        if self._lent is None:
            return
        number = int(self._lent["sampler"])
        state = self._kept[number]
        sampler = Sampler(int(state["n"]), 1, int(state["pass"]) + 1, [seed, number])
        sampler.restore(state)
        lease = sampler.borrow(self._lent)
        sampler.end([taken.get(worker, 0) for worker in lease.slots])
        sampler.count(contributors)
        self._kept[number] = sampler.state()
        if number < len(self._samplers):
            self._sampler(number).restore(self._kept[number])
        self._lent = None

    def _of(self, sampler: Sampler, contributors: Iterable[WorkerId] | None) -> dict[str, Any]:
        counts = contributors is not None and self.dealer.drawn is sampler and not sampler.lent()
        return sampler.after(contributors or ()) if counts else sampler.state()


def _listed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sampler's state as JSON values."""
    return {**state, "pool": pool_of(state).tolist()}


def _size(answer: Answer) -> int:
    """Return the size in bytes, approximately."""
    return len(answer) * (1 if isinstance(answer, bytes) else 8)


def _plain(answer: Answer) -> Any:
    return base64.b64encode(answer).decode() if isinstance(answer, bytes) else answer


def _answer(said: Any) -> Answer:
    return base64.b64decode(said) if isinstance(said, str) else [*map(float, said)]
