"""Where a script stands: the batches that it has drawn, and the answers that it was given.

The position is equal on all workers at every boundary. A newcomer runs the same script from its
beginning, and gets to where the others are without their help. Its loop over passes begins with the
pass that they are in. Batches that are used up yield nothing. A `mean`, a `once`, a `gather` or a
`sum` outside of batches is answered as it was then. In its first batch the newcomer is told what
`once`, `gather` and `sum` returned on the others' way to their step. A resumed script gets to its
checkpoint in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spotmpi.errors import CheckpointError
from spotmpi.protocol.dealer import Dealer, PacesOf, evenly
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.plain_values import NONSENSE
from spotmpi.protocol.sampler import Lease, Sampler, pool_of, told_of
from spotmpi.training.script.answers import A, Answer, Answers, Of
from spotmpi.training.script.pass_loops import PassLoops, Place


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
        self.recent = False
        """True if this worker joined lately: it leaves if its script makes another call than the
        others'."""
        self.strays = 0
        """Rounds in which workers were to leave for that reason. Alike on all."""
        self.inside = 0
        """Number of loops over batches that the script is in."""
        self.loops = PassLoops()
        self.answers = Answers()
        self._resumed = False
        """True if the script goes on from a checkpoint, until `repeats` is true."""
        self._done: tuple[int, int, int] | None = None
        """Arguments of the last batches, if nothing was left of these when they were opened."""
        self.repeats = False
        """True once, if the last batches are in a loop that was gone through before: what stands in
        it beside batches is done again."""
        self._early: list[int] = []
        """Batches that were not gone through to their end, as the others know it."""
        self._loose = False
        """True if steps are taken outside of batches. Means between them follow no rule."""
        self._lent: Mapping[str, Any] | None = None
        """The others' next lease, in which this worker has no part."""

    # Batches.

    def open(self, n: int, batch_size: int, passes: int, seed: int) -> int:
        """Open the script's next batches and return their number."""
        number = len(self._samplers)
        sampler = Sampler(n, batch_size, passes, [seed, number])
        if number in self._kept:
            sampler.restore(self._kept[number])
        self._samplers.append(sampler)
        asked = n, batch_size, passes
        self.repeats = self._resumed and self.loops.now is None and self._done == asked
        self._resumed = self._resumed and not self.repeats
        self._done = asked if n and sampler.over else None
        return number

    def _sampler(self, number: int) -> Sampler:
        sampler = self._samplers[number]
        assert sampler is not None
        return sampler

    def enter(self) -> None:
        """Note that the script goes through batches from now on."""
        self.inside += 1

    def leave(self, number: int, used: bool = False) -> None:
        """Note that the script leaves its batches. Drop the drawn lease unless ``used`` in part."""
        self.inside -= 1
        self._closed.add(number)
        if not used:
            self.dealer.drop(self._sampler(number))

    def draw(
        self,
        number: int,
        membership: Membership,
        steps: int = 1,
        paces: PacesOf = evenly,
        delay: int = 0,
    ) -> Lease | None:
        """Return the next lease of these batches (`Dealer.draw`); None if they are over."""
        if number in self._closed:
            return None
        lease = self.dealer.draw(self._sampler(number), membership, steps, paces, delay)
        if lease is not None:
            self._goes_on()
        return lease

    def left(self, workers: int) -> int | None:
        """Return the steps to come, if ``workers`` workers take them; None if not known. It is not
        known outside of batches, and in a script that goes through batches more than once, or more
        than once in each pass of its loop over passes."""
        before = self.loops.now or 0
        if len(self._samplers) != before + 1 or not self.inside or self._loose:
            return None
        here = self._sampler(before)
        whole = -(-here.n // (here.batch_size * workers)) * here.passes
        return here.left(workers) + whole * max(0, self.loops.planned - before - 1)

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

    # Between batches.

    @property
    def _here(self) -> Place:
        return len(self._samplers), self.answers.had

    def enter_passes(self, n: int) -> None:
        """Enter the script's next loop over ``n`` passes. Raises UsageError if it is in one."""
        self.loops.enter(n, self._here)

    def next_pass(self) -> int | None:
        """Return the pass that the script is to go through next; None if none is left."""
        if (there := self.loops.ahead) is None:
            self.answers.forget()
        else:
            opened, answered = there
            self._samplers.extend([None] * (opened - len(self._samplers)))
            self.answers.skip(answered)
        return self.loops.next(self._here)

    def leave_passes(self) -> None:
        """Note that the script has left its loop over passes, used up or not."""
        self.loops.leave(self._here)

    def _goes_on(self) -> None:
        """Note that the script comes to a step."""
        self.loops.leave_behind()
        self.answers.forget()

    def remember(self, answer: Answer | None, of: Of = None) -> None:
        """Keep an answer that all workers were given now; None: one that is too large."""
        if self.inside or self._loose:
            self.answers.keep_for_turn(answer, of)
        elif not self.answers.lost and not self.answers.keep(answer, of, len(self._samplers)):
            self.loops.lose_answers()

    def recall(self, kind: type[A], of: Of = None) -> A | None:
        """Return the answer known for this place; None if there is none, or one of something else.
        The others were given it here, or this script was, before it was resumed."""
        return None if self.inside else self.answers.recall(kind, of, len(self._samplers))

    def loosen(self) -> None:
        """Note a step outside of batches: later answers cannot be told from each other."""
        if not self._loose:
            self._goes_on()
        self._loose = True

    # State.

    def kept(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the position."""
        states = {**self._kept}
        states |= {n: one.kept() for n, one in enumerate(self._samplers) if one is not None}
        known = {
            f"sampler/{number}/{key}": pool_of(state) if key == "pool" else value
            for number, state in states.items()
            for key, value in state.items()
            if key != "pending"
        }
        return {**known, "script": json.dumps(self._script())}

    def resume(self, state: Mapping[str, Any], where: str = "") -> None:
        """Go on from what a checkpoint `kept`, with the samplers that the script will open.

        Raises CheckpointError if no script can have been there.
        """
        found: dict[int, dict[str, Any]] = {}
        try:
            for name, value in state.items():
                if name.startswith("sampler/"):
                    _, number, key = name.split("/", 2)
                    found.setdefault(int(number), {})[key] = value
            self._kept, self._resumed = dict(found), True
            if "script" not in state:  # an older version wrote it
                return
            self._follow(json.loads(state["script"]))
            self.answers.check()
            opened = self.loops.opened
            fits = opened <= len(found) and found.keys() >= {*range(opened)}
        except NONSENSE:
            fits = False
        if not fits:
            raise CheckpointError(
                f"{where} does not say where its script stood: it was not written by spotmpi"
            )

    def _script(self) -> dict[str, Any]:
        """Return where the script stands between its batches, as JSON values."""
        return {"loops": self.loops.told(), **self.answers.told(), "early": self.left_early}

    def _follow(self, known: Mapping[str, Any]) -> None:
        """Take the position ``known`` of the others; this script is there, or before it."""
        self.loops.follow(known["loops"])
        self.answers.follow(known)
        self._early = list(map(int, known["early"]))

    def snapshot(self, contributors: Sequence[WorkerId] | None = None) -> dict[str, Any]:
        """Return plain values for a newcomer; with ``contributors``, as after the drawn step. If
        workers take different numbers of steps, its lease is `lent`, and `settle` does the rest."""
        states = [
            self._kept[number] if one is None else one.state()
            for number, one in enumerate(self._samplers)
        ]
        drawn, lent = self.dealer.drawn, None
        if contributors is not None and drawn is not None:
            number = self._samplers.index(drawn)
            if (lent := drawn.lent()) is None:
                states[number] = drawn.after(contributors)
            else:
                lent["sampler"] = number
        return {
            "lent": lent,
            **self._script(),
            "samplers": [told_of(state) for state in states],
            "closed": sorted(self._closed),
            "turn": self.answers.told_of_turn() if contributors is None else [],
            "loose": self._loose,
            "lost": self.answers.lost,
            "strays": self.strays,
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
        self.answers.follow_turn(state["turn"])
        self._loose, self.answers.lost = bool(state["loose"]), bool(state["lost"])
        self._lent, self.strays = state["lent"], int(state["strays"])
        self.dealer.restore(int(state["dealer"]))

    def settle(
        self, taken: Mapping[WorkerId, int], contributors: Collection[WorkerId], seed: int
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
