"""What comes of a user's requests: the verdict is real, the workers are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch import control_messages
from spotmpi.launch.commands.status_table import table
from spotmpi.launch.decoding import Malformed, decode
from spotmpi.launch.head.control_requests import ControlRequests
from spotmpi.launch.head.job_state import JobState
from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.head.status_report import StatusReport
from spotmpi.launch.head.worker_orders import Orders
from spotmpi.launch.liveness import Silences
from spotmpi.launch.start.hosts_file import HostLine
from spotmpi.launcher_channel import IN_ROUND, IN_SCRIPT, Measured, Order
from tests.saying import said

KILLED = 9
"""A process's end, as waitpid() has it."""


class Workers:
    """Notes what is asked of the workers."""

    def __init__(self) -> None:
        self.parted: list[tuple[int, str]] = []
        self.orders: dict[int, Order] = {}
        self.full = False
        self.said: dict[int, Standing] = {}
        self.hosts: dict[str, Silences] = {}

    def part(self, worker: int, why: str) -> None:
        self.parted.append((worker, why))

    def order(self, worker: int, order: Order) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.orders[worker] = order

    def progress(self) -> dict[int, Standing]:
        return self.said

    def silences(self) -> dict[str, Silences]:
        return self.hosts


@dataclass
class Hosts:
    """Notes who is asked to come."""

    asked: list[Any] = field(default_factory=list)

    def add(self, host: HostLine) -> str:
        self.asked.append(host)
        return f"{host.name} with {host.slots} from {host.python}"

    def news(self, name: str) -> str:
        return "" if name != "h3" else f"{name} is here"

    def widen(self, name: str | None, workers: int) -> str:
        self.asked.append((name, workers))
        return f"{workers} on {name}"


class Asked:
    """A job of three workers on two hosts."""

    def __init__(self, keeps: bool = True, growing: Hosts | None = None) -> None:
        self.workers = Workers()
        self.growing = growing
        self.verdict = JobState()
        self.verdict.expect(["h1", "h1", "h2"])
        self.standing = StatusReport("train.py")
        self.orders = Orders(self.workers.order)
        self.requests = ControlRequests(
            "spotmpi-00",
            self.workers,
            self.verdict,
            self.standing,
            keeps,
            self.orders,
            self.workers.part,
            growing,
        )

    def tell(self, event: str, *workers: int, **fields: Any) -> Asked:
        """Workers say something."""
        for worker in workers or range(3):
            self.verdict.told(worker, said(event, **fields))
            self.standing.told(worker, said(event, **fields))
        return self

    def ask(self, what: str, **fields: Any) -> str:
        """What the answer says."""
        question = decode(
            json.dumps({"ask": what, **fields}).encode(), control_messages.QUESTIONS, "ask"
        )
        answer = self.requests.answer(question)
        assert isinstance(answer, control_messages.Said)
        return answer.said

    def end(self, worker: int, status: int) -> None:
        """A worker's process ends."""
        self.verdict.ended(worker, status)
        self.standing.gone(worker)


def trained(**arguments: Any) -> Asked:
    """A job in its training."""
    return Asked(**arguments).tell("begin").tell("ready")


def test_a_stop_is_an_order_to_all_that_train() -> None:
    asked = trained()
    asked.end(1, KILLED)
    assert "after this step, with a checkpoint" in asked.ask("stop")
    assert asked.workers.orders == {0: Order(stop=True), 2: Order(stop=True)}
    assert asked.verdict.ending is None
    assert asked.requests.report().stopping
    for worker in (0, 2):
        asked.end(worker, 75 << 8)
    ending = asked.verdict.conclude()
    assert ending.code == 75
    assert "stopped on request" in ending.sentence


def test_workers_that_could_keep_nothing_are_not_to_stop_any_more() -> None:
    asked = trained()
    asked.ask("stop")
    asked.tell("unsaved", 0, step=7, why="the disk is full")
    for _ in range(3):  # each worker says that it goes on
        asked.verdict.refused_to_stop(again=False)
        asked.requests.refused()
    assert asked.workers.orders == dict.fromkeys(range(3), Order())
    assert asked.requests.report().unsaved == "the disk is full"
    assert not asked.requests.report().stopping
    assert len(asked.verdict.lines) == 3
    assert asked.verdict.lines[-1].startswith("the workers did not stop: the disk is full; they")
    asked.ask("stop")
    asked.tell("checkpoint", 0, step=8, path="/kept/8")
    report = asked.requests.report()
    assert (report.stopping, report.unsaved) == (True, None)


@pytest.mark.parametrize(("keeps", "code"), [(True, 74), (False, 130)])
def test_whoever_does_not_want_to_wait_ends_the_job_without_a_checkpoint(
    keeps: bool, code: int
) -> None:
    asked = trained(keeps=keeps)
    assert "ended at once" in asked.ask("stop", now=True)
    assert asked.workers.orders == {}
    assert asked.verdict.ending is not None
    assert asked.verdict.ending.code == code
    with pytest.raises(UsageError, match="ending already"):
        asked.ask("stop", now=True)


def test_a_job_that_waits_for_hosts_can_be_ended() -> None:
    asked = Asked()
    asked.verdict._workers.clear()
    assert asked.ask("stop") == "the job is ended at once: nobody trains in it"
    assert asked.verdict.conclude().code == 130


def test_a_second_stop_is_said_no_second_time() -> None:
    asked = trained()
    asked.ask("stop")
    asked.ask("stop")
    assert len(asked.verdict.lines) == 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: trained(keeps=False), "it has no --checkpoint"),
        (Asked, "nobody trains in it"),
        (lambda: trained().tell("done"), "nobody trains in it"),
    ],
)
def test_where_nothing_can_be_kept_a_stop_ends_the_job_at_once(
    make: Callable[[], Asked], why: str
) -> None:
    asked = make()
    assert asked.ask("stop") == f"the job is ended at once: {why}"
    assert asked.workers.orders == {}
    ending = asked.verdict.conclude()
    assert ending.code == 130
    assert ending.sentence.startswith("spotmpi stop; the job was ended, and every worker in it")
    with pytest.raises(UsageError, match="the job is ending already"):
        asked.ask("stop")


def test_an_order_that_cannot_be_written_is_no_stop() -> None:
    asked = trained()
    asked.workers.full = True
    with pytest.raises(UsageError, match="no order can be written into the job's folder"):
        asked.ask("stop")
    assert asked.verdict.ending is None
    assert not asked.requests.report().stopping


def test_a_shrink_takes_one_worker_and_says_whose_doing_it_was() -> None:
    asked = trained()
    assert asked.ask("shrink", worker=2) == "worker 2 on h2 leaves before the next step"
    assert asked.workers.parted == [(2, "spotmpi shrink")]
    asked.end(2, KILLED)
    with pytest.raises(UsageError, match="worker 2 on h2 has come to its end: revoked"):
        asked.ask("shrink", worker=2)


def test_a_newcomer_that_does_not_train_yet_is_killed() -> None:
    asked = trained()
    assert asked.verdict.newcomer("h3") == 3
    assert asked.ask("shrink", worker=3) == "worker 3 on h3 does not train yet and is killed"
    assert asked.workers.parted == [(3, "spotmpi shrink")]


@pytest.mark.parametrize("worker", [3, -1, None, "1", 1.0, True, [0], float("inf")])
def test_a_worker_that_is_none_is_refused(worker: Any) -> None:
    asked = trained()
    with pytest.raises(
        (UsageError, Malformed), match=r"there is no worker|shrink\.worker is|Infinity"
    ):
        asked.ask("shrink", worker=worker)
    assert asked.workers.parted == []


def test_nobody_is_taken_before_all_are_ready() -> None:
    with pytest.raises(UsageError, match="not all workers are ready"):
        Asked().tell("begin").tell("ready", 0, 1).ask("shrink", worker=1)


def test_the_last_one_that_trains_is_not_taken() -> None:
    asked = trained()
    asked.end(0, KILLED)
    asked.end(1, KILLED)
    with pytest.raises(UsageError, match="nobody would train on without worker 2: use `spotmpi s"):
        asked.ask("shrink", worker=2)


def test_a_host_that_is_asked_for_is_passed_on_and_the_answer_comes_back() -> None:
    asked = trained(growing=Hosts())
    assert asked.ask("grow", line="h3 slots=2 python=/py") == "h3 with 2 from /py"


@pytest.mark.parametrize("host", [{}, {"host": None}, {"host": "h1"}])
def test_more_workers_are_asked_of_a_host(host: dict[str, Any]) -> None:
    hosts = Hosts()
    trained(growing=hosts).ask("more", workers=2, **host)
    assert hosts.asked == [(host.get("host"), 2)]


@pytest.mark.parametrize("workers", [0, -1, 5000, "2", None, True, 1.5])
def test_a_number_of_workers_that_is_none_is_not_asked_for(workers: Any) -> None:
    hosts = Hosts()
    with pytest.raises(Malformed, match=r"more\.workers is"):
        trained(growing=hosts).ask("more", workers=workers)
    assert hosts.asked == []


@pytest.mark.parametrize("line", ["h3 slots=x", "-oProxyCommand=x", "", None])
def test_a_host_that_is_none_is_not_asked(line: Any) -> None:
    hosts = Hosts()
    with pytest.raises((UsageError, Malformed), match=r"spotmpi grow|grow\.line is"):
        trained(growing=hosts).ask("grow", line=line)
    assert hosts.asked == []


GROWTH: list[dict[str, Any]] = [{"what": "grow", "line": "h3"}, {"what": "more", "workers": 1}]


def test_what_has_come_of_a_host_is_told() -> None:
    asked = trained(growing=Hosts())
    assert (asked.ask("host", host="h3"), asked.ask("host", host="h4")) == ("h3 is here", "")


@pytest.mark.parametrize("growth", GROWTH)
def test_who_cannot_grow_is_told_how_it_could(growth: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="start it with --replace to have it grow on this host"):
        trained().ask(**growth)


@pytest.mark.parametrize("growth", GROWTH)
def test_a_job_that_ends_does_not_grow(growth: dict[str, Any]) -> None:
    asked = trained(keeps=False, growing=Hosts())
    asked.ask("stop")
    with pytest.raises(UsageError, match="the job is ending already"):
        asked.ask(**growth)
    assert asked.growing is not None
    assert asked.growing.asked == []


def test_one_of_the_last_two_is_not_taken_while_the_other_leaves() -> None:
    asked = trained()
    asked.end(0, KILLED)
    asked.orders.give(1, leave=True)
    with pytest.raises(UsageError, match="nobody would train on without worker 2"):
        asked.ask("shrink", worker=2)
    assert asked.ask("shrink", worker=1) == "worker 1 on h1 leaves before the next step"


def test_a_report_has_all_that_is_known() -> None:
    asked = trained()
    asked.tell(
        "recovery", 0, 2, generation=1, lost=[1], step=8, workers=2, verdict="retry", total_ms=1.0
    )
    asked.tell("checkpoint", 0, step=10, path="/runs/step-10")
    asked.end(1, KILLED)
    asked.workers.said = {
        0: Standing(14, 12, IN_ROUND, 0.0, loss=0.5),
        1: Standing(9, 7, IN_ROUND, 0.0),
        2: Standing(14, 12, IN_SCRIPT, 0.0, 1.5, "evaluating"),
    }
    report = asked.requests.report()
    assert (report.job, report.generation, report.step) == ("spotmpi-00", 1, 12)
    assert report.loss == 0.5
    assert "step 12, loss 0.5, generation 1" in table(report)
    assert report.checkpoint == control_messages.SavedAt(10, "/runs/step-10")
    assert report.ending is None
    assert [one.state for one in report.workers] == ["training", "revoked", "training"]
    assert [one.doing for one in report.workers] == ["round", None, "script"]
    assert [one.step for one in report.workers] == [12, 7, 12]
    assert report.workers[1].how == "SIGKILL"
    assert report.workers[1].when.startswith("20")
    assert report.workers[0].awaited_seconds is None
    assert report.workers[2].awaited_seconds > 0
    assert [one.quiet_seconds for one in report.workers] == [None, None, 1.5]
    assert [one.busy for one in report.workers] == [None, None, "evaluating"]


def test_a_report_names_the_processes_of_those_that_live() -> None:
    asked = trained()
    for worker in range(3):
        asked.tell("runs", worker, pid=4711 + worker)
    asked.end(1, KILLED)
    assert [one.pid for one in asked.requests.report().workers] == [4711, None, 4713]


def test_looks_find_how_fast_it_goes_and_for_how_long() -> None:
    asked = trained()
    for step in (12, 13):
        known = Measured(whole=20, samples=8 * step)
        asked.workers.said = {0: Standing(step, step, IN_ROUND, 0.0, measured=known)}
        report = asked.requests.look()
    assert report.steps_in_all == 20
    assert report.steps_per_second is not None
    assert report.steps_per_second > 0
    assert report.samples_per_second == pytest.approx(8 * report.steps_per_second, rel=1e-3)
    assert report.seconds_to_go == pytest.approx(7 / report.steps_per_second, abs=1e-3)


def test_a_report_says_how_silent_the_hosts_were() -> None:
    asked = trained()
    assert asked.requests.report().hosts == ()
    one = Silences()
    one.saw(0.0481)
    asked.workers.hosts = {"h2": one}
    (said,) = asked.requests.report().hosts
    assert said == control_messages.HostReport("h2", 48.1, None, 0.0)


def test_states_follow_the_workers() -> None:
    asked = Asked()

    def states() -> list[str]:
        return [one.state for one in asked.requests.report().workers]

    assert states() == ["starting"] * 3
    asked.tell("begin").tell("ready")
    assert states() == ["training"] * 3
    asked.tell("done", 0, 1)
    assert states() == ["trained", "trained", "training"]
    asked.end(0, 0)
    asked.end(1, KILLED)
    asked.end(2, 75 << 8)
    assert states() == ["finished", "revoked", "stopped"]
