"""Where a script stands: what it has drawn of which batches, and what it was told between them.

Equal on all workers at every boundary. A newcomer runs the same script from its beginning, and gets
to where the others are without their help: a loop over passes begins with the one that they are in,
batches that are used up yield nothing, and a mean that was asked for outside of any batches, or
what was done once there, is answered as it was then. In its first batch it is told what was done
once since the others' last step. A script that is resumed gets to its checkpoint in the same way.
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
"""The numbers of a mean, or the packed value of what was done once."""

Of = str | int | None
"""What an answer is to: the name of what was done once, or how many numbers a mean is of."""

_MOST = 16384
"""Bytes of answers that are kept; a script that asks for more newcomers cannot follow."""

TOO_LARGE = b""
"""Stands for a value of what was done once, if there is no room for it."""

_MOST_IN_TURN = 1 << 20
"""Bytes of what is done once between two steps, for newcomers to be told of it."""


@dataclass
class _Passes:
    """A loop over passes, and where the script is in it."""

    now: int
    """The pass that it is in: those before it are done."""
    opened: int
    """Batches that it had opened when it began with that, ..."""
    answered: int
    """... and answers that it had been given."""
    over: bool = False
    """It has gone on to something else, whatever passes are left; `opened` and `answered` are
    of when it left the loop."""


class ScriptPosition:
    """One worker's script. Local, all of it."""

    def __init__(self) -> None:
        self.dealer = Dealer()
        self._samplers: list[Sampler | None] = []
        """None: of a pass that this script has not gone through."""
        self._kept: dict[int, Mapping[str, Any]] = {}
        """Of a checkpoint, or of the others: where samplers stand that are not open yet."""
        self._closed: set[int] = set()
        """Samplers whose batches the script has left, used up or not."""
        self._inside = 0
        """Loops over batches that the script is in."""
        self._loops: list[_Passes] = []
        """Loops over passes: those that were entered; of a checkpoint, or of the others, also those
        that this script will enter."""
        self._entered = 0
        """Of these, those that this script has entered."""
        self._pass: int | None = None
        """The pass that it is in, or -1 before the first; None outside of such loops."""
        self._planned = 0
        """Passes of the loop that it is in."""
        self._left: tuple[int, int] | None = None
        """What had been opened and answered when it left the last of these loops, if it may still
        be told to go on there."""
        self._resumed = False
        """It goes on from a checkpoint."""
        self._done: tuple[int, int, int] | None = None
        """What the last batches were asked for with, if there was nothing left of them then."""
        self.repeats = False
        """The last batches are of a loop that was gone through before: what stands in it, beside
        batches, is done again. True once."""
        self._warned = False
        """It was true."""
        self._early: list[int] = []
        """Batches that were not gone through to their end, as the others know it."""
        self.last: dict[str, bytes] = {}
        """By the name of what was done once: its last value, packed, or `TOO_LARGE`."""
        self._answers: list[tuple[int, Of, Answer]] = []
        """Outside of loops over batches: samplers opened before, and what was answered to what."""
        self._told = 0
        """Of these, those that this worker's script has had."""
        self._loose = False
        """Steps are taken outside of batches: means are asked for between them, by no rule."""
        self._turn: list[bytes] = []
        """What was done once since the last step, in a loop or where steps are loose."""
        self.asked = False
        """Something was asked for since the last step, in a loop or where steps are loose."""
        self._lent: Mapping[str, Any] | None = None
        """Of the others, whose next lease this worker has no part in."""
        self.lost = False
        """An answer is kept no more: a newcomer cannot get here."""

    # Batches.

    def open(self, n: int, batch_size: int, passes: int, seed: int) -> int:
        """The script comes to its next batches; return their number."""
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
        """Whether the script goes through batches."""
        return self._inside > 0

    def enter(self) -> None:
        """The script goes through batches from now on."""
        self._inside += 1

    def leave(self, number: int, used: bool = False) -> None:
        """It does not any more; a lease that was drawn is given up, unless it is ``used`` in
        part."""
        self._inside -= 1
        self._closed.add(number)
        if not used:
            self.dealer.drop(self._sampler(number))

    def draw(
        self, number: int, membership: Membership, steps: int = 1, *paces: PacesOf
    ) -> Lease | None:
        """The next lease of these batches, as `sampler.Dealer.draw` has it; None: they are over."""
        if number in self._closed:
            return None
        lease = self.dealer.draw(self._sampler(number), membership, steps, *paces)
        if lease is not None:
            self._goes_on()
        return lease

    def left(self, workers: int) -> int | None:
        """Steps that are to come, where so many take them; None where that is not known: outside of
        batches, and in a script that goes through batches more than once, or more than once in each
        pass of its loop over passes."""
        before = self._pass or 0
        if len(self._samplers) != before + 1 or not self._inside or self._loose:
            return None
        here = self._sampler(before)
        whole = -(-here.n // (here.batch_size * workers)) * here.passes
        return here.left(workers) + whole * max(0, self._planned - before - 1)

    def planned(self, number: int) -> dict[str, int]:
        """What the script has asked for with these batches."""
        sampler = self._sampler(number)
        return {"n": sampler.n, "batch_size": sampler.batch_size, "passes": sampler.passes}

    @property
    def left_early(self) -> list[int]:
        """The batches that the script has opened, and not gone through to their end."""
        return [
            number
            for number, one in enumerate(self._samplers)
            if (number in self._early if one is None else one.n and not one.over)
        ]

    def used_up(self, number: int) -> bool:
        """Whether the others are through with these batches, for a worker that is dealt nothing."""
        return number in self._closed or self._sampler(number).over

    # Passes.

    def enter_passes(self, n: int) -> None:
        """The script comes to its next loop over passes, of so many. UsageError if it is in one."""
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
        """The pass that the script is to go through next; None if none is left."""
        assert self._pass is not None
        loop = self._loops[self._entered - 1]
        if loop.over or loop.now > self._pass:  # the first one, or the others are further
            missing = loop.opened - len(self._samplers)
            self._samplers.extend([None] * missing)
            self._told = min(max(self._told, loop.answered), len(self._answers))
        else:
            self._forget()
            loop.now, loop.opened, loop.answered = self._pass + 1, len(self._samplers), self._told
        self._pass = loop.now
        return None if loop.over or loop.now >= self._planned else loop.now

    def leave_passes(self) -> None:
        """The script has left its loop over passes, used up or not."""
        self._pass, self._planned = None, 0
        self._left = len(self._samplers), self._told

    def _leave_behind(self) -> None:
        """The script does not come back to a loop over passes that it has left.

        Not before it has gone on to something else: where it was left early and then resumed, it
        may be meant to take longer this time.
        """
        if self._left is not None:
            loop = self._loops[self._entered - 1]
            (loop.opened, loop.answered), loop.over = self._left, True
            self._left = None

    def end(self) -> None:
        """The training is over."""
        self._leave_behind()

    def _goes_on(self) -> None:
        """The script comes to a step."""
        self._leave_behind()
        self._forget()

    # Answers.

    def _forget(self) -> None:
        """What was answered further on is of another script, or of another model by then."""
        del self._answers[self._told :]

    def remember(self, answer: Answer, of: Of = None) -> None:
        """All workers were told the same, now."""
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
        """What the others were told where this script is now, or what it was told there before it
        was resumed; None if that has yet to be, or was something else."""
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
        """This, packed, is the last value of what is called so."""
        others = sum(len(one) for name, one in self.last.items() if name != of)
        self.last[of] = said if others + len(said) <= _MOST else TOO_LARGE

    def recall_of_turn(self) -> bytes | None:
        """What the others were told next since their last step; None if that is not known."""
        return self._turn.pop(0) if self._turn else None

    @property
    def tellable(self) -> bool:
        """Whether a newcomer can be told all that it needs for its first batch."""
        return sum(map(_size, self._turn)) <= _MOST_IN_TURN

    def stepped(self) -> None:
        """A step is over."""
        self._turn.clear()
        self.asked = False

    def loosen(self) -> None:
        """A step is taken outside of batches: no later answer can be told from others."""
        if not self._loose:
            self._goes_on()
        self._loose = True

    # State.

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
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

        Raises CheckpointError if nobody can have been there.
        """
        found: dict[int, dict[str, Any]] = {}
        for name, value in state.items():
            if name.startswith("sampler/"):
                _, number, key = name.split("/", 2)
                found.setdefault(int(number), {})[key] = value
        self._kept, self._resumed = dict(found), True
        if "script" not in state:  # one that older versions wrote
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
        """Where the script stands between its batches, in the values of JSON."""
        return {
            "loops": [astuple(loop) for loop in self._loops],
            "answers": [(opened, of, _plain(answer)) for opened, of, answer in self._answers],
            "last": {name: _plain(said) for name, said in self.last.items()},
            "early": self.left_early,
        }

    def _follow(self, known: Mapping[str, Any]) -> None:
        """Come to where this was said of the others, or before."""
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
        """Plain values for a newcomer; after the step drawn, if its ``contributors`` are given. If
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
        """Go on where it was `told`, with the samplers that are open and those to come."""
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
        """The others' lease that was lent with what was taken is through: so many steps of it were
        taken, and these brought theirs."""
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
    """In the values of JSON."""
    return {**state, "pool": pool_of(state).tolist()}


def _size(answer: Answer) -> int:
    """In bytes, more or less."""
    return len(answer) * (1 if isinstance(answer, bytes) else 8)


def _plain(answer: Answer) -> Any:
    return base64.b64encode(answer).decode() if isinstance(answer, bytes) else answer


def _answer(said: Any) -> Answer:
    return base64.b64decode(said) if isinstance(said, str) else [*map(float, said)]
