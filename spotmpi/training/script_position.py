"""Where a script stands: what it has drawn of which batches, and what it was told between them.

Equal on all workers at every boundary. A newcomer runs the same script from its beginning, and gets
to where the others are without their help: batches that are used up yield nothing, and a mean that
was asked for outside of any batches, or what was done once there, is answered as it was then. In
its first batch it is told what was done once since the others' last step.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.sampler import Dealer, Lease, PacesOf, Sampler

A = TypeVar("A", list[float], bytes)

Answer = list[float] | bytes
"""The numbers of a mean, or the packed value of what was done once."""

_MOST = 16384
"""Bytes of answers that are kept; a script that asks for more newcomers cannot follow."""

_MOST_IN_TURN = 1 << 20
"""Bytes of what is done once between two steps, for newcomers to be told of it."""


class ScriptPosition:
    """One worker's script. Local, all of it."""

    def __init__(self) -> None:
        self.dealer = Dealer()
        self._samplers: list[Sampler] = []
        self._kept: dict[int, Mapping[str, Any]] = {}
        """Of a checkpoint, or of the others: where samplers stand that are not open yet."""
        self._closed: set[int] = set()
        """Samplers whose batches the script has left, used up or not."""
        self._inside = 0
        """Loops over batches that the script is in."""
        self._answers: list[tuple[int, Answer]] = []
        """Outside of loops: samplers opened before, and what was answered."""
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
        return number

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
            self.dealer.drop(self._samplers[number])

    def draw(
        self, number: int, membership: Membership, steps: int = 1, *paces: PacesOf
    ) -> Lease | None:
        """The next lease of these batches, as `sampler.Dealer.draw` has it; None: they are over."""
        if number in self._closed:
            return None
        return self.dealer.draw(self._samplers[number], membership, steps, *paces)

    def left(self, workers: int) -> int | None:
        """Steps that are to come, where so many take them; None where that is not known: outside of
        batches, and in a script that goes through batches more than once."""
        if len(self._samplers) != 1 or not self._inside or self._loose:
            return None
        return self._samplers[0].left(workers)

    def planned(self, number: int) -> dict[str, int]:
        """What the script has asked for with these batches."""
        sampler = self._samplers[number]
        return {"n": sampler.n, "batch_size": sampler.batch_size, "passes": sampler.passes}

    @property
    def left_early(self) -> list[int]:
        """The batches that the script has opened, and not gone through to their end."""
        return [number for number, one in enumerate(self._samplers) if not one.over and one.n]

    def used_up(self, number: int) -> bool:
        """Whether the others are through with these batches, for a worker that is dealt nothing."""
        return number in self._closed or self._samplers[number].over

    # Answers.

    def remember(self, answer: Answer) -> None:
        """All workers were told the same, now."""
        if self._inside or self._loose:
            self.asked = True
            if isinstance(answer, bytes):
                self._turn.append(answer)
            return
        self._answers.append((len(self._samplers), answer))
        self._told = len(self._answers)
        if sum(_size(known) for _, known in self._answers) > _MOST:
            self._answers, self._told = [], 0
            self.lost = True

    def recall(self, kind: type[A]) -> A | None:
        """What the others were told where this script is now; None if they have yet to be, or
        were told something else there."""
        if self._inside or self._told == len(self._answers):
            return None
        opened, answer = self._answers[self._told]
        if opened != len(self._samplers) or not isinstance(answer, kind):
            return None
        self._told += 1
        return answer

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
        self._loose = True

    # State.

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            f"sampler/{number}/{key}": value
            for number, sampler in enumerate(self._samplers)
            for key, value in sampler.state().items()
        }

    def resume(self, state: Mapping[str, Any], where: str = "") -> None:
        """Go on from what a checkpoint `kept`, with the samplers that the script will open."""
        found: dict[int, dict[str, Any]] = {}
        for name, value in state.items():
            if name.startswith("sampler/"):
                _, number, key = name.split("/", 2)
                found.setdefault(int(number), {})[key] = value
        self._kept = dict(found)

    def told(self, contributors: Sequence[WorkerId] | None = None) -> dict[str, Any]:
        """Plain values for a newcomer; after the step drawn, if its ``contributors`` are given. If
        workers take different numbers of steps, its lease is `lent`, and `settle` does the rest."""
        drawn = None if contributors is None else self.dealer.drawn
        lent = None if drawn is None else drawn.lent()
        if drawn is not None and lent is not None:
            lent["sampler"] = self._samplers.index(drawn)
        return {
            "lent": lent,
            "samplers": [self._of(sampler, contributors) for sampler in self._samplers],
            "closed": sorted(self._closed),
            "answers": [(opened, _plain(answer)) for opened, answer in self._answers],
            "turn": [_plain(answer) for answer in self._turn] if contributors is None else [],
            "loose": self._loose,
            "lost": self.lost,
            "dealer": self.dealer.after(),
        }

    def take(self, state: Mapping[str, Any]) -> None:
        """Go on where it was `told`, with the samplers that are open and those to come."""
        self._kept = dict(enumerate(state["samplers"]))
        for number, sampler in enumerate(self._samplers):
            if number in self._kept:
                sampler.restore(self._kept[number])
        self._closed = set(state["closed"])
        self._answers = [(int(opened), _answer(said)) for opened, said in state["answers"]]
        self._turn = [base64.b64decode(said) for said in state["turn"]]
        self._told = min(self._told, len(self._answers))
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
            self._samplers[number].restore(self._kept[number])
        self._lent = None

    def _of(self, sampler: Sampler, contributors: Iterable[WorkerId] | None) -> dict[str, Any]:
        counts = contributors is not None and self.dealer.drawn is sampler and not sampler.lent()
        found = sampler.after(contributors or ()) if counts else sampler.state()
        return {**found, "pool": found["pool"].tolist()}


def _size(answer: Answer) -> int:
    """In bytes, more or less."""
    return len(answer) * (1 if isinstance(answer, bytes) else 8)


def _plain(answer: Answer) -> Any:
    return base64.b64encode(answer).decode() if isinstance(answer, bytes) else answer


def _answer(said: Any) -> Answer:
    return base64.b64decode(said) if isinstance(said, str) else list(said)
