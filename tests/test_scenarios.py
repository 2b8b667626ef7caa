"""Recoveries as transcripts: ``tests/scenarios/recoveries/*.txt``.

The protocol and the ledger are the real ones; what arrives
when, and who dies, is the transcript's choice:

    ring 4                       workers 0 to 3 train as generation 0
    interrupt 0,2 progress=5     these meet a failure, 5 rounds committed; dealt=6, dealt_in=0 say
                                 what they were dealt, where it matters
    end 0,1,2 progress=6         these have committed the last round and wait to leave
    kill 1                       dies; what it sent is still under way
    lose 1 at 0                  MPI tells worker 0 that worker 1 is dead
    deliver 0->2                 the oldest message from 0 to 2 arrives; deliver all: everything
    drop 1->2                    it does not: its sender died
    revocation reaches 0,3       they hear that the control path is revoked
    build                        everybody alive is in the build: it returns
    repair 1                     worker 1 has received the record and commits it
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from spotmpi.protocol.ledger import Ledger, Settlement
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.recovery import (
    Build,
    Built,
    Command,
    ControlRevoked,
    DoorState,
    Event,
    Interrupted,
    Lost,
    Received,
    Recovery,
    Resume,
    RevokeControl,
    Send,
    Token,
    TokenKind,
    Verdict,
)
from tests.transcripts import check_titles, compare

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "recoveries").glob("*.txt"))


class Stage:
    """The workers of one scenario, and the messages under way between them."""

    def __init__(self) -> None:
        self.machines: dict[int, Recovery] = {}
        self.ledgers: dict[int, Ledger] = {}
        self.alive: set[int] = set()
        self.under_way: dict[tuple[int, int], deque[Token]] = defaultdict(deque)
        self.order: list[tuple[int, int]] = []
        self.builds: dict[int, Verdict | None] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.said: list[str] = []

    def perform(self, line: str) -> list[str]:
        """Execute one command; return what happened."""
        self.said = []
        name, _, rest = line.partition(" ")
        action: Callable[[str], None] = getattr(self, f"do_{name}")
        action(rest)
        return self.said or ["nothing happens"]

    # Commands.

    def do_ring(self, rest: str) -> None:
        membership = Membership.first(["here"] * int(rest))
        for worker in membership.ids:
            self.machines[worker] = Recovery(worker, membership)
            self.ledgers[worker] = Ledger(membership)
        self.alive = set(membership.ids)
        self.say(f"workers {_names(membership.ids)} train as generation 0")

    def do_interrupt(self, rest: str, ending: bool = False) -> None:
        workers, fields = _parse(rest)
        for worker in workers:
            ledger = self.ledgers[worker]
            progress = fields.get("progress", ledger.committed)
            while ledger.committed < progress:
                if not ledger.open:
                    ledger.begin()
                ledger.commit()
            if ending and not ledger.ending:
                ledger.end()
            elif not ending and not ledger.open:
                ledger.begin()
            generation = self.machines[worker].membership.generation
            stamp = ledger.stamp(fields.get("dealt", progress), fields.get("dealt_in", generation))
            rounds = f"{ledger.committed} rounds done"
            self.say(f"{worker} {'is at the end' if ending else 'freezes'} with {rounds}")
            self.handle(worker, Interrupted(stamp))

    def do_end(self, rest: str) -> None:
        self.do_interrupt(rest, ending=True)

    def do_kill(self, rest: str) -> None:
        for worker in _parse(rest)[0]:
            self.alive.remove(worker)
            self.builds.pop(worker, None)
            self.say(f"{worker} dies")

    def do_lose(self, rest: str) -> None:
        lost, _, hearers = rest.partition(" at ")
        for worker in _parse(hearers)[0]:
            self.handle(worker, Lost(frozenset(_parse(lost)[0])))

    def do_deliver(self, rest: str) -> None:
        if rest != "all":
            sender, receiver = map(int, rest.split("->"))
            self.deliver(sender, receiver)
            return
        while self.order:
            self.deliver(*self.order[0])

    def do_drop(self, rest: str) -> None:
        sender, receiver = map(int, rest.split("->"))
        token = self.take(sender, receiver)
        self.say(f"{sender}->{receiver}: {_token(token)} never arrives")

    def do_revocation(self, rest: str) -> None:
        for worker in _parse(rest.removeprefix("reaches "))[0]:
            self.handle(worker, ControlRevoked())

    def do_build(self, _rest: str) -> None:
        missing = self.alive - self.builds.keys()
        if missing:
            self.say(f"the build waits for {_names(missing)}")
            return
        members = frozenset(self.alive)
        everybody = frozenset(self.machines[min(members)].membership.ids)
        sealed = all(
            verdict is not None and everybody - verdict.lost == members
            for verdict in self.builds.values()
        )
        self.say(f"the build of {_names(members)} {'is sealed' if sealed else 'fails for all'}")
        self.builds.clear()
        if not sealed:  # the control path is new: what was under way on the old one is gone
            self.under_way.clear()
            self.order.clear()
        for worker in sorted(members):
            self.handle(worker, Built(sealed, members))

    def do_repair(self, rest: str) -> None:
        for worker in _parse(rest)[0]:
            ledger = self.ledgers[worker]
            ledger.repair(self.verdicts[worker])
            self.say(
                f"{worker} has committed round {ledger.committed - 1} "
                f"with the contributions of {_names(ledger.contributors)}"
            )

    # What happens.

    def deliver(self, sender: int, receiver: int) -> None:
        """The oldest message between two workers arrives."""
        token = self.take(sender, receiver)
        if receiver not in self.alive:
            self.say(f"{sender}->{receiver}: {_token(token)} reaches nobody")
            return
        if self.machines[receiver].state is DoorState.BUILDING:
            self.say(f"{sender}->{receiver}: {_token(token)} waits, {receiver} is in the build")
            return
        self.say(f"{sender}->{receiver}: {_token(token)}")
        self.handle(receiver, Received(token))

    def take(self, sender: int, receiver: int) -> Token:
        """The oldest message between two workers, which is under way no longer."""
        self.order.remove((sender, receiver))
        return self.under_way[sender, receiver].popleft()

    def handle(self, worker: int, event: Event) -> None:
        """Let a worker's protocol handle ``event``, and say what it does."""
        machine = self.machines[worker]
        before = machine.state
        commands = machine.handle(event)
        if machine.state is DoorState.PREPARED and before is not DoorState.PREPARED:
            self.say(f"  {worker} is prepared")
        for command in commands:
            self.execute(worker, command)
        if not commands and machine.state is before and not isinstance(event, Interrupted):
            self.say(f"  {worker} waits")

    def execute(self, worker: int, command: Command) -> None:
        """Do what the protocol of ``worker`` asks for."""
        match command:
            case Send(to, token):
                self.under_way[worker, to].append(token)
                self.order.append((worker, to))
                self.say(f"  {worker} sends to {to}: {_token(token)}")
            case RevokeControl():
                self.say(f"  {worker} revokes the control path")
            case Build(verdict):
                self.builds[worker] = verdict
                with_it = "" if verdict else " without a verdict"
                self.say(f"  {worker} enters the build{with_it}")
            case Resume(verdict, membership):
                self.resume(worker, verdict, membership)

    def resume(self, worker: int, verdict: Verdict, membership: Membership) -> None:
        """The verdict is sealed: say what it means for the worker and its open round."""
        ledger = self.ledgers[worker]
        ledger.adopt(membership)
        self.verdicts[worker] = verdict
        settlement = ledger.settle(verdict)
        if verdict.ended:
            what = "leaves for good"
        elif settlement is Settlement.RETRY:
            what = f"retries round {ledger.committed}"
        elif settlement is Settlement.RECEIVE:
            what = f"waits for the record of round {ledger.committed} from {verdict.survey.source}"
        elif verdict.survey.source == worker:
            what = f"gives the record of round {ledger.committed - 1}"
        else:
            what = f"has round {ledger.committed - 1} already"
        generation = membership.generation
        self.say(f"  {worker} is in generation {generation} of {_names(membership.ids)}: {what}")

    def say(self, line: str) -> None:
        """One line of the transcript."""
        self.said.append(line)


def _token(token: Token) -> str:
    survey = token.survey
    rounds = f"{survey.low}" if survey.low == survey.high else f"{survey.low} to {survey.high}"
    facts = [f"lost {_names(token.lost) or 'nobody'}"]
    if token.kind is TokenKind.RECONCILE:
        facts.append(f"rounds done {rounds}")
    return f"{token.kind.name.lower()} {token.attempt} ({'; '.join(facts)})"


def _names(workers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(workers)))


def _parse(text: str) -> tuple[list[int], dict[str, int]]:
    names, *fields = text.split()
    pairs = (field.partition("=") for field in fields)
    return [int(name) for name in names.split(",")], {key: int(value) for key, _, value in pairs}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_happens_as_the_transcript_says(path: Path) -> None:
    compare(path, Stage().perform)


def test_every_scenario_is_a_sentence_that_tells_its_story() -> None:
    assert len(SCENARIOS) >= 12
    check_titles(SCENARIOS)
