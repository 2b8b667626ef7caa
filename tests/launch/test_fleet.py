"""What a host's agent and its fleet say to each other, over a real connection."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi import __version__
from spotmpi.channel import Order
from spotmpi.launch.agent import Assignment
from spotmpi.launch.fleet import Fleet
from spotmpi.launch.seal import Frame, Role, Seal
from spotmpi.launch.silence import Silences
from spotmpi.launch.trunk import MESSAGE, Trunk, message
from spotmpi.notice import Notice

TOKEN = bytes(range(32))


class Host:
    """A fleet, and a host of it whose agent says what the test wants."""

    def __init__(self) -> None:
        self.select = selectors.PollSelector()
        self.notices: list[tuple[str, Notice]] = []
        self.said: list[str] = []
        self.newcomers: list[str] = []
        self.told: list[dict[str, Any]] = []
        """What the agent was told."""
        self.resting: list[str] = []
        self.fleet = Fleet(
            self.select,
            Assignment("/", ["script"], {}, 60_000),
            lambda *_: None,
            lambda: False,
            lambda host, notice: self.notices.append((host, notice)),
            self.newcomer,
            self.resting.append,
            self.said.append,
        )
        self.agent = self.come("h2", self.take, pytest.fail)

    def come(self, name: str, take: Callable[[Frame], None], gone: Callable[[str], None]) -> Trunk:
        """One more host, whose agent takes frames; returns its end of the trunk."""
        here, there = (one.detach() for one in socket.socketpair())
        self.fleet.meet((here, here), Seal(Role.HEAD, TOKEN, bytes(32)), 60, pytest.fail)
        agent = Trunk(
            self.select, (there, there), Seal(Role.AGENT, TOKEN, bytes([1]) * 32), take, gone
        )
        self.turn_until(lambda: agent.open)
        agent.tell("hello", name=name, slots=2, version=__version__, problem=None)
        agent.tell("ready")
        self.turn_until(lambda: name in {host.name for host in self.fleet.hosts})
        return agent

    def newcomer(self, host: str) -> int:
        self.newcomers.append(host)
        return 1 + len(self.newcomers)

    def take(self, frame: Frame) -> None:
        if frame.kind == MESSAGE:
            self.told.append(message(frame))

    def hear(self, event: str, times: int = 1) -> list[dict[str, Any]]:
        """Turn until the agent was told something so often; return it."""

        def found() -> list[dict[str, Any]]:
            return [fields for fields in self.told if fields["event"] == event]

        self.turn_until(lambda: len(found()) == times)
        return found()

    def turn_until(self, done: Callable[[], object]) -> None:
        while not done():
            ready = self.select.select(30)
            assert ready, "nothing happens any more"
            for key, _ in ready:
                key.data()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.agent.close()
    for one in made.fleet.hosts:
        one.trunk.close()
    made.select.close()


SAID: dict[str, Any] = {
    "source": "ec2",
    "seconds": 118.0,
    "what": "EC2 spot instance action: terminate",
    "advice": False,
}


def test_seconds_that_are_left_become_a_date_of_the_head_s_clock(host: Host) -> None:
    before = time.time()
    host.agent.tell("noticed", **SAID)
    host.turn_until(lambda: host.notices)
    ((name, notice),) = host.notices
    assert (name, notice.source, notice.what) == ("h2", "ec2", SAID["what"])
    assert notice.deadline is not None
    assert before + 118 <= notice.deadline <= time.time() + 118


def test_a_notice_without_a_time_stays_without(host: Host) -> None:
    host.agent.tell("noticed", **SAID | {"seconds": None})
    host.turn_until(lambda: host.notices)
    assert host.notices[0][1].deadline is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": "soon"},
        {"seconds": [1]},
        {"seconds": float("nan")},
        {"source": None},
        {"what": 3},
        {"advice": "no"},
    ],
)
def test_a_notice_that_is_none_is_left_out(host: Host, wrong: dict[str, Any]) -> None:
    host.agent.tell("noticed", **SAID | wrong)
    host.agent.tell("noticed")
    host.agent.tell("noticed", **SAID)
    host.turn_until(lambda: host.notices)
    assert len(host.notices) == 1


def test_a_host_that_its_workers_have_left_may_go_when_that_is_known(host: Host) -> None:
    host.agent.tell("noticed", **SAID)
    host.turn_until(lambda: host.notices)
    assert "leave" not in [fields["event"] for fields in host.told]
    host.agent.tell("free")
    host.hear("leave")


def test_what_an_agent_has_for_the_user_comes_with_its_name_and_in_one_line(host: Host) -> None:
    host.agent.tell("says", text="a\x1b[2J\nb")
    host.turn_until(lambda: host.said)
    assert host.said == ["h2: a?[2J?b"]


def test_a_host_of_a_job_that_runs_starts_newcomers_who_know_that_they_are(
    host: Host, tmp_path: Path
) -> None:
    assert host.fleet.place(["h2"], tmp_path) == ["h2", "h2"]
    assert host.newcomers == []
    host.fleet.recruit("h2")
    host.fleet.recruit("h3")  # which is not there
    (start,) = host.hear("start")
    assert host.newcomers == ["h2"]
    assert start["worker"] == 2
    assert start["environ"]["SPOTMPI_NEWCOMER"] == "2"
    host.fleet.dismiss()


def test_a_host_that_comes_while_the_job_ends_gets_no_worker(host: Host, tmp_path: Path) -> None:
    host.fleet.place(["h2"], tmp_path)
    host.fleet.end()
    heard: list[dict[str, Any]] = []
    late = host.come("h3", lambda frame: heard.append(message(frame)), lambda _: None)
    assert host.newcomers == []
    host.fleet.dismiss()
    host.turn_until(lambda: any(said["event"] == "leave" for said in heard))
    assert "start" not in [said["event"] for said in heard]
    late.close()


def test_newcomers_are_ordered_revoked_and_taken_for_dead_as_all_workers_are(
    host: Host, tmp_path: Path
) -> None:
    host.fleet.place(["h2"], tmp_path)
    host.fleet.recruit("h2")
    host.fleet.order(2, Order(leave=True, newcomer=5))
    (order,) = host.hear("order")
    assert order == {"event": "order", "worker": 2, "stop": False, "leave": True, "newcomer": 5}
    host.fleet.revoke(2)
    assert host.hear("kill")[0]["worker"] == 2
    host.agent.tell("heard", worker=2, said="ended", fields={"status": 9})
    assert host.hear("died")[0]["worker"] == 2
    assert [(heard.worker, heard.event) for heard in host.fleet.hear()] == [(2, "ended")]
    host.fleet.dismiss()


def test_a_newcomer_that_ends_before_it_trains_is_dead_to_mpi_whatever_its_code(
    host: Host, tmp_path: Path
) -> None:
    """It may be a member already, and the others wait for it; one that trains ends as all do."""
    host.fleet.place(["h2"], tmp_path)
    for worker in (2, 3):
        host.fleet.recruit("h2")
        host.agent.tell("heard", worker=worker, said="admitted", fields={})
    host.agent.tell("heard", worker=2, said="trains", fields={"step": 4})
    for worker in (2, 3):
        host.agent.tell("heard", worker=worker, said="ended", fields={"status": 0})
    assert [died["worker"] for died in host.hear("died")] == [3]
    host.fleet.dismiss()


def test_a_host_may_be_silent_for_short_only_once_its_newcomer_is_admitted(
    host: Host, tmp_path: Path
) -> None:
    """Its workers are not among those that the job began with."""
    host.fleet.place([], tmp_path)
    host.fleet.recruit("h2")
    host.agent.tell("heard", worker=2, said="ready", fields={})
    host.agent.tell("heard", worker=2, said="admitted", fields={})
    host.hear("started")
    assert host.fleet.hosts[0].settled is not None
    said = [heard.event for heard in host.fleet.hear()]
    assert said == ["ready", "admitted"]
    host.fleet.dismiss()


def settled(host: Host, folder: Path) -> Silences:
    """Have the host come so far that its silence counts; return what the fleet knows of it."""
    host.fleet.place([], folder)
    host.fleet.recruit("h2")
    host.agent.tell("heard", worker=2, said="admitted", fields={})
    host.hear("started")
    return host.fleet.silences()["h2"]


def test_the_silence_of_a_host_counts_from_when_it_is_settled(host: Host, tmp_path: Path) -> None:
    host.fleet.hear()
    assert host.fleet.silences()["h2"].longest == 0.0
    silences = settled(host, tmp_path)
    host.fleet.hear()
    first = silences.longest
    assert first > 0
    host.fleet.hear()
    assert silences.longest > first  # no clock stands still
    host.fleet.dismiss()


def test_what_the_head_has_not_read_yet_is_no_silence(host: Host, tmp_path: Path) -> None:
    silences = settled(host, tmp_path)
    host.fleet.hear()
    before = silences.longest
    host.agent.beat()
    host.fleet.hear()
    assert silences.longest == before
    host.fleet.dismiss()


def test_what_is_said_of_another_host_s_worker_is_left_out(host: Host, tmp_path: Path) -> None:
    host.fleet.place(["h2"], tmp_path)
    host.agent.tell("heard", worker=7, said="admitted", fields={})
    host.agent.tell("heard", worker=1, said="ready", fields={})
    host.agent.tell("says", text="now")
    host.turn_until(lambda: host.said)
    assert [(heard.worker, heard.event) for heard in host.fleet.hear()] == [(1, "ready")]
    assert host.fleet.hosts[0].settled is None
    host.fleet.dismiss()


def test_a_round_that_is_over_says_that_all_were_ready(host: Host, tmp_path: Path) -> None:
    host.fleet.place(["h2"], tmp_path)
    host.agent.tell("heard", worker=1, said="ready", fields={})
    host.agent.tell("says", text="now")
    host.turn_until(lambda: host.said)
    assert host.fleet.hosts[0].settled is None
    host.agent.tell("heard", worker=1, said="underway", fields={})
    host.hear("started")
    assert host.fleet.hosts[0].settled is not None
    host.fleet.dismiss()


def test_of_two_hosts_that_do_not_reach_each_other_one_is_told_to_go(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    gone: list[str] = []
    other = host.come("h3", lambda frame: heard.append(message(frame)), gone.append)
    host.fleet.place(["h2", "h3"], tmp_path)
    link = ["10.0.0.2:1024", "10.0.0.3:1025", False]
    host.agent.tell("claims", links=[link])
    host.turn_until(lambda: any(said["event"] == "claimed" for said in heard))
    assert next(said for said in heard if said["event"] == "claimed")["links"] == [link]
    assert not [said for said in host.told if said["event"] == "claimed"], "it said so itself"
    for wait in (0.0, 1.2):  # it is no rift unless it lasts
        assert host.fleet.hear() == []
        host.agent.tell("claims", links=[link])
        other.tell("confirms", links=[link])
        host.turn_until(lambda: host.select.select(0.05) == [])
        later = time.monotonic() + wait
        monkeypatch.setattr(time, "monotonic", lambda later=later: later)
    lost = host.fleet.hear()
    assert [(one.worker, one.event) for one in lost] == [(2, "lost"), (3, "lost")]
    assert lost[0].fields["how"].startswith("host h3 does not reach h2, though the head does")
    assert host.resting == ["h3"]
    assert [one.name for one in host.fleet.hosts] == ["h2"]
    host.turn_until(lambda: gone)
    assert heard[-1]["event"] == "refused"
    assert "does not reach h2" in heard[-1]["why"]
    host.fleet.dismiss()
