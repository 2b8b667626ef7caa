"""How workers come, leave, stop and end, as transcripts: ``tests/scenarios/endings/*.txt``.

The control words, the boundary and the states are the real ones. What workers say is the
transcript's choice:

    train 3 keeps               workers 0 to 2 train; the last state is to be kept
    round step leave=1 save=0   all take part in a round of steps; worker 1 is to leave, worker 0
                                wants a checkpoint; also: newcomer=, stop=, published=
    round mean numbers=3        a mean of three numbers is asked for
    round once size=40          one worker has a value of 40 bytes; size=0: none has one yet
    round end late=2            all are at the end; worker 2 joined late and takes a step
    round step learns=3         worker 3 learns; learnt=3: and knows everything after this round
    close 0,1                   these begin their last rounds
    give up                     it is of no more use to try to keep the end
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.protocol import control_word
from spotmpi.protocol.boundary import Payload, follow
from spotmpi.protocol.control_word import ControlSum, ControlWord
from spotmpi.protocol.ending import EndEvent, Ending
from tests.transcripts import check_titles, compare

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "endings").glob("*.txt"))
KINDS = {
    "step": control_word.STEP,
    "mean": control_word.MEAN,
    "once": control_word.ONCE,
    "end": control_word.END,
}
FLAGS = ("leave", "newcomer", "save", "stop", "published", "late", "learns", "learnt")


class Workers:
    """Those of one scenario."""

    def __init__(self) -> None:
        self.workers: dict[int, Ending] = {}
        self.keeps, self.hope = False, True
        self.payload: Payload | None = None

    def perform(self, line: str) -> list[str]:
        """Execute one command; return what happened."""
        name, *words = line.split()
        if name == "train":
            self.workers = {worker: Ending() for worker in range(int(words[0]))}
            self.keeps = words[1:] == ["keeps"]
        elif name == "close":
            for worker in map(int, words[0].split(",")):
                self.workers[worker].handle(EndEvent.CLOSE)
        elif name == "give":
            self.hope = False
        else:
            assert name == "round"
            return [*self.round(words[0], dict(word.split("=") for word in words[1:])), self.states]
        return [self.states]

    def round(self, name: str, given: dict[str, str]) -> list[str]:
        """Sum all control words, and do what follows as a session does."""
        said = {flag: {*map(int, filter(None, given.pop(flag, "").split(",")))} for flag in FLAGS}
        learn, learnt = said["learns"] | said["learnt"], said["learnt"]
        for worker in learn:
            self.workers.setdefault(worker, Ending())
        numbers = int(given.pop("numbers", given.pop("size", "0")))
        assert not given
        values = [0.0] * control_word.WORDS
        for worker in self.workers:
            late = worker in said["late"]
            word = ControlWord(
                None if worker in learn else KINDS["step" if late else name],
                worker,
                leaves=worker in said["leave"],
                newcomer=worker in said["newcomer"],
                save=worker in said["save"],
                stop=worker in said["stop"],
                published=worker in said["published"],
                late=late,
                numbers=numbers if name == "mean" or worker == 0 else 0,
            )
            values = [one + other for one, other in zip(values, word.encode(), strict=True)]
        full = len(self.workers) - len(learn)
        total = ControlSum(values, full)
        total.check_kind(control_word.END if total.over else KINDS[name], 0)
        if total.over:
            for ending in self.workers.values():
                ending.come(self.keeps, total.published, self.hope)
        told = [
            follow(ending, total, self.payload, full, len(learnt))
            for ending in self.workers.values()
        ]
        after = told[0]
        assert set(told) == {after}, "workers come to different boundaries"
        self.payload = after.payload
        lines = ["workers leave or join before the next round"] * after.changes
        lines += ["a checkpoint is wanted"] * after.saves
        lines += ["a value is known"] * after.owed
        if after.payload is not None:
            kind = control_word.KINDS[after.payload.kind]
            lines += [f"the next round is of {kind} and carries {after.payload.size}"]
        return lines

    @property
    def states(self) -> str:
        """Where all are."""
        where: dict[str, list[str]] = {}
        for worker, ending in self.workers.items():
            where.setdefault(ending.state.value, []).append(str(worker))
        return "; ".join(f"{state}: {', '.join(who)}" for state, who in where.items())


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_happens_as_the_transcript_says(path: Path) -> None:
    compare(path, Workers().perform)


def test_every_scenario_is_a_sentence_that_tells_its_story() -> None:
    assert len(SCENARIOS) >= 10
    check_titles(SCENARIOS)
