"""The trace of one worker among others: nothing is shown too early, twice or never."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotmpi.launcher_channel import Cause, LauncherChannel
from spotmpi.policies import Metrics
from spotmpi.protocol.ledger import Settlement
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.recovery import Survey, Verdict
from spotmpi.rounds.recovered import Recovered
from spotmpi.strategies import SSGD, LocalSGD
from spotmpi.trace import records
from spotmpi.trace.records import Trace
from spotmpi.training.journal import Journal


class Launcher(LauncherChannel):
    """Knows when workers died, and remembers what it was told."""

    mute = False  # type: ignore[assignment]

    def __init__(self, **deaths: float) -> None:
        self.deaths = {int(worker.removeprefix("w")): at for worker, at in deaths.items()}
        self.causes: dict[int, Cause] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []

    def tell(self, event: str, **fields: Any) -> None:
        """Note it."""
        self.told.append((event, fields))

    def cause_of(self, worker: int) -> Cause | None:
        """From another one."""
        return self.causes.get(worker)

    def death_of(self, worker: int) -> float | None:
        """From the board."""
        return self.deaths.get(worker)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The trace that all workers share."""
    return tmp_path / "trace.jsonl"


def journal(file: Path, me: int, launcher: Launcher | None = None) -> Journal:
    """That of one worker."""
    return Journal(Trace(file), launcher or Launcher(), me, lambda: "ssgd")


def commit(book: Journal, number: int, leader: int) -> None:
    """Round ``number`` is complete under this leader, and was step ``number``."""
    book.stable(number, leader)
    book.complete(float(number))
    book.step(number, number, lambda: {"by": book._me}, gradients=0)


def written(file: Path, event: str = "step") -> list[tuple[int, int]]:
    """Which steps are in the trace, and who wrote them."""
    return [(r["step"], r["by"]) for r in records.read(file) if r["event"] == event]


def recovered(lost: int = 1) -> Recovered:
    """A passage through the door, with a time for each of its parts."""
    before = Membership.first(["h"] * 3)
    passage = Recovered(before, entered=10.0, detected=10.1, revoked=10.2, reconciled=10.3)
    passage.accepted, passage.settled = 10.4, 10.6
    passage.after = before.without({lost}, 2)
    passage.verdict = Verdict(2, frozenset({lost}), Survey(4, 5, 0, 0, 5, 0, False))
    passage.settlement, passage.progress, passage.messages = Settlement.RECEIVE, 4, 3
    return passage


def test_a_step_is_shown_when_a_later_round_is_complete(file: Path) -> None:
    book = journal(file, 0)
    commit(book, 0, leader=0)
    assert written(file) == []
    commit(book, 1, leader=0)
    assert written(file) == [(0, 0)]


def test_who_leads_next_tells_again_what_is_followed(file: Path) -> None:
    """The old one may have died before it told that all had changed."""
    launcher = Launcher()
    book = journal(file, 1, launcher)
    for number in range(3):
        commit(book, number, leader=0)
    book.switched(3, 0, LocalSGD(h=2), SSGD(), {"why": "slow", "figures": {}})
    commit(book, 3, leader=0)
    assert not launcher.told
    for number in (4, 5):
        commit(book, number, leader=1)
    known = {"step": 3, "strategy": "localsgd:h=2", "why": "slow"}
    assert launcher.told == [("follows", known)]


def test_surveys_are_kept_for_a_trace_only(file: Path) -> None:
    """Nobody would take them out: they would pile up for as long as the training goes on."""
    known = {"steps": 8, "since": 0, "workers": 3, "hosts": 1, "slowest": 1.0}
    metrics = Metrics(SSGD(), seconds=5.0, throughput=9.0, share=0.5, **known)
    book, without = journal(file, 0), Journal(Trace(None), Launcher(), 0, lambda: "ssgd")
    for one in (book, without):
        one.surveyed(metrics, LocalSGD(h=2))
    for number in range(3):
        commit(book, number, leader=0)
    (kept,) = (one for one in records.read(file) if one["event"] == "survey")
    assert (kept["step"], kept["strategy"], kept["decides"]) == (8, "ssgd", "localsgd:h=2")
    assert without._chosen == []


def test_only_who_writes_a_step_describes_it(file: Path) -> None:
    """A description names every worker: with N of them, all but one would be made in vain."""
    described: list[int] = []
    for worker in range(3):
        book = journal(file, worker)
        for number in range(4):
            book.stable(number, leader=0)
            made = partial(lambda me, step: described.append(me) or {"of": step}, worker, number)
            book.complete(float(number))
            book.step(number, number, made, gradients=0)
    assert described == [0, 0, 0]
    assert [r["of"] for r in records.read(file)] == [0, 1, 2]


def test_who_does_not_lead_writes_no_steps(file: Path) -> None:
    book = journal(file, 2)
    for number in range(5):
        commit(book, number, leader=0)
    assert written(file) == []


@pytest.mark.parametrize("leader_got_to", [2, 3])
def test_a_new_leader_writes_what_the_old_one_left_and_nothing_twice(
    file: Path, leader_got_to: int
) -> None:
    """Whether the old one died before or after it showed the step that had just become stable."""
    old, new = journal(file, 0), journal(file, 1)
    for number in range(leader_got_to + 1):
        commit(old, number, leader=0)
    for number in range(4):
        commit(new, number, leader=0)
    commit(new, 4, leader=1)
    commit(new, 5, leader=1)
    assert [step for step, _ in written(file)] == [0, 1, 2, 3, 4]


def test_a_step_outlives_two_leaders_of_whom_neither_came_to_write_it(file: Path) -> None:
    """Leader 0 dies in round 4. Leader 1 committed it while 0 led, and dies in round 5."""
    book = journal(file, 2)
    for number in range(4):
        commit(book, number, leader=0)
    commit(book, 4, leader=1)
    commit(book, 5, leader=1)
    commit(book, 6, leader=2)
    assert written(file)[-3:] == [(3, 2), (4, 2), (5, 2)]


def test_what_a_leader_has_written_is_not_kept_for_ever(file: Path) -> None:
    book = journal(file, 2)
    for number in range(50):
        commit(book, number, leader=0 if number < 20 else 1)
        assert len(book._waiting) <= 5


def test_a_recovery_is_timed_from_the_death_to_the_first_round_after_it(file: Path) -> None:
    launcher = Launcher(w1=10.05)
    book = journal(file, 0, launcher)
    book.recovered(recovered())
    book.stable(5, leader=0)
    book.complete(11.05)
    book.step(5, 5, {"by": 0}.copy, gradients=0)
    book.stable(6, leader=0)
    (shown,) = [r for r in records.read(file) if r["event"] == "recovery"]
    assert shown["lost"] == [1]
    assert shown["generation"] == 2
    parts = ["detect_ms", "revoke_ms", "reconcile_ms", "accept_ms", "restart_ms", "total_ms"]
    assert [shown[part] for part in parts] == pytest.approx([50, 100, 100, 100, 200, 1000])
    assert shown["verdict"] == "repair"
    assert shown["settlement"] == "received"
    assert shown["messages_sent"] == {"0": 3}
    assert [event for event, _ in launcher.told] == ["recovery"]


def test_a_death_before_the_worker_came_back_to_us_is_not_its_detection_time(file: Path) -> None:
    """It was computing, perhaps for minutes."""
    book = journal(file, 0, Launcher(w1=2.0))
    book.recovered(recovered())
    book.complete(11.0)
    book.step(5, 5, {"by": 0}.copy, gradients=0)
    book.digested(7)
    (seen,) = [r for r in records.read(file) if r["event"] == "recovered"]
    assert seen["detect_ms"] == pytest.approx(100)
    assert seen["total_ms"] == pytest.approx(9000)


def test_an_unknown_moment_of_death_is_null(file: Path) -> None:
    book = journal(file, 0)
    book.recovered(recovered())
    book.complete(11.0)
    book.step(5, 5, {"by": 0}.copy, gradients=0)
    book.digested(7)
    (seen,) = [r for r in records.read(file) if r["event"] == "recovered"]
    assert seen["detect_ms"] is seen["total_ms"] is None


def test_every_survivor_reports_what_it_saw_itself(file: Path) -> None:
    for worker in (0, 2):
        book = journal(file, worker)
        book.recovered(recovered())
        book.complete(11.0)
        book.step(5, 5, {"by": worker}.copy, gradients=0)
        book.digested(7 + worker)
    seen = [r for r in records.read(file) if r["event"] == "recovered"]
    assert [(r["worker"], r["at"], r["digest"]) for r in seen] == [
        (0, 11.0, f"{7:016x}"),
        (2, 11.0, f"{9:016x}"),
    ]


def test_a_step_has_the_digest_that_came_after_its_commit(file: Path) -> None:
    book = journal(file, 0)
    for number in range(3):
        commit(book, number, leader=0)
        book.digested(number)
    assert [r["digest"] for r in records.read(file)] == [f"{0:016x}", f"{1:016x}"]


def test_the_trace_says_which_steps_are_lost_with_all_who_knew_them(file: Path) -> None:
    """Worker 0 alone trained steps 0 to 4; worker 3 came then, and 0 died before it wrote 3."""
    old, new = journal(file, 0), journal(file, 3)
    for number in range(4):
        commit(old, number, leader=0)
    new.stable(5, leader=0)
    new.complete(5.0)
    new.step(5, 5, lambda: {"by": 3}, gradients=0)
    new.stable(6, leader=3)
    new.stable(7, leader=3)
    assert written(file) == [(0, 0), (1, 0), (2, 0), (5, 3)]
    found = [r for r in records.read(file) if r["event"] == "gap"]
    assert {r["strategy_name"] for r in found} == {"ssgd"}
    gaps = [(r["step"], r["steps"]) for r in found]
    assert gaps == [(3, 2)]
    another = journal(file, 4)
    another.stable(9, leader=4)
    another.reach(6)  # nothing is missing any more
    assert [r["event"] for r in records.read(file)][-1] == "step"
    another.reach(8)
    assert list(records.read(file))[-1]["steps"] == 2


def test_a_shorter_run_over_the_trace_of_a_longer_one_has_all_its_steps(file: Path) -> None:
    """Workers meet in a round before the file is emptied."""
    before = journal(file, 0)
    for number in range(9):
        commit(before, number, leader=0)
    again = journal(file, 0)
    again.stable(0, leader=0)
    again.begin(None)
    for number in range(4):
        commit(again, number, leader=0)
    assert written(file) == [(0, 0), (1, 0), (2, 0)]


def test_a_run_that_resumes_writes_the_steps_that_it_trains_again(file: Path) -> None:
    before = journal(file, 0)
    for number in range(9):
        commit(before, number, leader=0)
    again = journal(file, 0)
    again.stable(0, leader=0)
    again.begin(5)
    again.trace.write("resume", step=5)
    for number in range(5, 9):
        commit(again, number, leader=0)
    assert [step for step, _ in written(file)] == [*range(8), 5, 6, 7]


def of(file: Path, event: str) -> list[Any]:
    """Who is told of, in the records of one kind."""
    return [r for r in records.read(file) if r["event"] == event]


def test_why_a_worker_is_gone_is_told_when_the_launcher_knows(file: Path) -> None:
    """Which may be long after the recovery, that does not wait for it."""
    launcher = Launcher(w1=10.05)
    book = journal(file, 0, launcher)
    book.recovered(recovered())
    for number in range(5, 8):
        commit(book, number, leader=0)
    assert of(file, "recovery")
    assert of(file, "cause") == []
    launcher.causes[1] = Cause("silent", "host h2 was silent for 203 ms")
    commit(book, 8, leader=0)
    commit(book, 9, leader=0)
    (told,) = of(file, "cause")
    assert (told["worker"], told["cause"]) == (1, "silent")
    assert told["why"] == "host h2 was silent for 203 ms"


@pytest.mark.parametrize(("known_after", "told"), [(3, True), (1000, False)])
def test_a_training_that_ends_right_after_a_loss_waits_for_its_cause_but_not_for_long(
    file: Path, known_after: int, told: bool
) -> None:
    launcher, rested = Launcher(), list[float]()
    book = journal(file, 0, launcher)
    book.recovered(recovered())
    for number in range(5, 8):
        commit(book, number, leader=0)

    def rest(seconds: float) -> None:
        rested.append(seconds)
        if len(rested) == known_after:
            launcher.causes[1] = Cause("killed", "SIGKILL")

    book.await_causes(rest)
    assert bool(of(file, "cause")) == told
    assert sum(rested) == pytest.approx(0.03 if told else 1.0)
    book.await_causes(rest) if told else None
    assert len(rested) == (3 if told else 100)


def test_where_there_is_no_launcher_nobody_waits_for_a_cause(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launcher, "mute", True)
    book = journal(file, 0, Launcher())
    book.recovered(recovered())
    for number in range(5, 8):
        commit(book, number, leader=0)
    book.await_causes(pytest.fail)


def test_what_is_known_only_at_the_end_is_told_then(file: Path) -> None:
    launcher = Launcher()
    book = journal(file, 0, launcher)
    book.recovered(recovered())
    for number in range(5, 8):
        commit(book, number, leader=0)
    launcher.causes[1] = Cause("killed", "SIGKILL")
    book.end(8, [0, 2], "finished", [3])
    assert [r["event"] for r in records.read(file)][-2:] == ["cause", "end"]
    assert of(file, "end")[0]["left_early"] == [3]


def test_what_a_survivor_computed_before_it_came_is_told_apart(file: Path) -> None:
    launcher = Launcher(w1=4.0)
    book = journal(file, 0, launcher)
    book.recovered(recovered())  # it had entered the round at 10
    for number in range(5, 7):
        commit(book, number, leader=0)
    assert of(file, "recovery")[0]["came_ms"] == pytest.approx(6000)


def test_batches_are_told_once_with_their_first_step(file: Path) -> None:
    book = journal(file, 0)
    for number in range(4):
        book.stable(number, 0)
        book.batches(number, number // 2, {"n": 12, "batch_size": 2, "passes": 3})
        book.complete(float(number))
        book.step(number, number, lambda: {"by": 0}, gradients=0)
    book.stable(4, 0)
    told = [(r["event"], r["step"]) for r in records.read(file)]
    batches, step = "batches", "step"
    assert told == [(batches, 0), (step, 0), (step, 1), (batches, 2), (step, 2), (step, 3)]
