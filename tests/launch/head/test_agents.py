"""What a host's agent and its fleet say to each other, over a real connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi import __version__
from spotmpi.launch import messages
from spotmpi.launch.auth import Frame, Role, Seal
from spotmpi.launch.decoding import Message
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.head.agents import Agents
from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.limits import Limits
from spotmpi.launch.link import HostLink, read
from spotmpi.launch.liveness import Silences
from spotmpi.launch.tcp_connections import TcpConnection
from spotmpi.launch.udp_beats import UdpBeats
from spotmpi.launcher_channel import IN_SCRIPT, Cause, Order
from spotmpi.notice import Notice
from tests.patience import NEVER_SILENT_MS
from tests.saying import said

TOKEN = bytes(range(32))


class Host:
    """A fleet, and a host of it whose agent says what the test wants."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.notices: list[tuple[str, Notice]] = []
        self.said: list[str] = []
        self.logged: list[tuple[str, bytes]] = []
        self.newcomers: list[str] = []
        self.told: list[Any] = []
        """What the agent was told."""
        self.resting: list[str] = []
        self.fleet = Agents(
            self.loop,
            messages.Assignment("/", ("script",), {}, NEVER_SILENT_MS, 30.0),
            lambda *_: None,
            lambda: False,
            lambda host, notice: self.notices.append((host, notice)),
            self.newcomer,
            self.resting.append,
            self.said.append,
            socket.socket,
            lambda process, data: self.logged.append((process, data)),
            Limits(),
        )
        self.agent = self.come("h2", self.take, pytest.fail)

    def come(
        self, name: str, take: Callable[[Frame], None], gone: Callable[[str], None]
    ) -> HostLink:
        """One more host, whose agent takes frames; returns its end of the trunk."""
        here, there = (one.detach() for one in socket.socketpair())
        self.fleet.meet((here, here), Seal(Role.HEAD, TOKEN, bytes(32)), 60, pytest.fail)
        agent = HostLink(
            self.loop, (there, there), Seal(Role.AGENT, TOKEN, bytes([1]) * 32), take, gone
        )
        self.turn_until(lambda: agent.open)
        agent.tell(messages.Hello(__version__))
        agent.tell(messages.Offer(name, 2, None))
        agent.tell(messages.Fit())
        self.turn_until(lambda: name in {host.name for host in self.fleet.hosts})
        return agent

    def newcomer(self, host: str) -> int:
        self.newcomers.append(host)
        return 1 + len(self.newcomers)

    def take(self, frame: Frame) -> None:
        self.told.append(read(frame, messages.FROM_HEAD))

    def hear(self, kind: type[Message], times: int = 1) -> list[Any]:
        """Turn until the agent was told something so often; return it."""

        def found() -> list[Any]:
            return [one for one in self.told if isinstance(one, kind)]

        self.turn_until(lambda: len(found()) == times)
        return found()

    def turn_until(self, done: Callable[[], object]) -> None:
        while not done():
            assert self.loop.turn(30), "nothing happens any more"


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.agent.close()
    for one in made.fleet.hosts:
        one.trunk.close()
    made.loop.close()


NOTICED = messages.Noticed("ec2", 118.0, "EC2 spot instance action: terminate", advice=False)


def test_seconds_that_are_left_become_a_date_of_the_head_s_clock(host: Host) -> None:
    before = time.time()
    host.agent.tell(NOTICED)
    host.turn_until(lambda: host.notices)
    ((name, notice),) = host.notices
    assert (name, notice.source, notice.what) == ("h2", "ec2", NOTICED.what)
    assert notice.deadline is not None
    assert before + 118 <= notice.deadline <= time.time() + 118


def test_a_notice_without_a_time_stays_without(host: Host) -> None:
    host.agent.tell(replace(NOTICED, seconds=None))
    host.turn_until(lambda: host.notices)
    assert host.notices[0][1].deadline is None


def test_a_host_that_its_workers_have_left_may_go_when_that_is_known(host: Host) -> None:
    host.agent.tell(NOTICED)
    host.turn_until(lambda: host.notices)
    assert messages.Leave() not in host.told
    host.agent.tell(messages.Free())
    host.hear(messages.Leave)


def test_a_worker_is_in_its_script_since_one_moment_however_often_that_is_said(host: Host) -> None:
    """Who looks for stalls knows by it that it is the same stay, and each word takes its time."""
    host.fleet.recruit("h2")

    def told(*said: Any) -> Standing:
        host.agent.tell(messages.Progressed((messages.HowFar(2, *said, "evaluating"),)))
        host.turn_until(lambda: host.fleet.progress().get(2, (None,) * 6)[4] == said[-1])
        return host.fleet.progress()[2]

    first, second = told(7, 6, IN_SCRIPT, 1.0, 0.5), told(7, 6, IN_SCRIPT, 1.9, 1.5)
    assert first.since == second.since
    assert told(8, 7, IN_SCRIPT, 0.0, 2.5).since > first.since


def test_log_lines_come_with_the_process_that_they_are_of(host: Host) -> None:
    host.fleet.recruit("h2")
    host.agent.tell(messages.Logged("a\x1b[2J\nb"))
    host.agent.pass_output(2, 3, b"c\n")
    host.turn_until(lambda: len(host.logged) == 2)
    assert host.logged == [("agent on h2", b"a?[2J?b\n"), ("worker 2 on h2", b"c\n")]
    assert host.said == []


@pytest.mark.parametrize("stream", [0, 4])
def test_a_host_that_writes_to_a_stream_that_is_none_is_lost(host: Host, stream: int) -> None:
    host.fleet.recruit("h2")
    host.agent.pass_output(2, stream, b"c\n")
    host.turn_until(lambda: not host.fleet.hosts)
    assert "sent what no agent sends" in str(host.fleet.hear())


def test_what_an_agent_has_for_the_user_comes_with_its_name_and_in_one_line(host: Host) -> None:
    host.agent.tell(messages.Says("a\x1b[2J\nb"))
    host.turn_until(lambda: host.said)
    assert host.said == ["h2: a?[2J?b"]


def test_a_host_of_a_job_that_runs_starts_newcomers_who_know_that_they_are(
    host: Host, tmp_path: Path
) -> None:
    assert host.fleet.place(["h2"], tmp_path) == ["h2", "h2"]
    assert host.newcomers == []
    host.fleet.widen("h2", 1)
    (start,) = host.hear(messages.Start)
    assert host.newcomers == ["h2"]
    assert start.worker == 2
    assert start.environ["SPOTMPI_NEWCOMER"] == "2"
    host.fleet.dismiss()


def test_a_host_that_comes_while_the_job_ends_gets_no_worker(host: Host, tmp_path: Path) -> None:
    host.fleet.place(["h2"], tmp_path)
    host.fleet.end()
    heard: list[Any] = []
    late = host.come(
        "h3", lambda frame: heard.append(read(frame, messages.FROM_HEAD)), lambda _: None
    )
    assert host.newcomers == []
    host.fleet.dismiss()
    host.turn_until(lambda: messages.Leave() in heard)
    assert not [one for one in heard if isinstance(one, messages.Start)]
    late.close()


def test_newcomers_are_ordered_revoked_and_taken_for_dead_as_all_workers_are(
    host: Host, tmp_path: Path
) -> None:
    host.fleet.place(["h2"], tmp_path)
    host.fleet.widen("h2", 1)
    host.fleet.order(2, Order(leave=True, newcomer=5))
    (order,) = host.hear(messages.Instruct)
    assert order == messages.Instruct(2, Order(leave=True, newcomer=5))
    host.fleet.revoke(2)
    assert host.hear(messages.Kill)[0].worker == 2
    host.fleet.kill(2)
    assert host.hear(messages.Forsake)[0].worker == 2
    assert host.fleet.hear() == []
    host.agent.tell(messages.Passed(2, said("ended", status=9)))
    assert host.hear(messages.Died)[0].worker == 2
    assert [(heard.worker, heard.said.event) for heard in host.fleet.hear()] == [(2, "ended")]
    host.fleet.dismiss()


def test_a_newcomer_that_ends_before_it_trains_is_dead_to_mpi_whatever_its_code(
    host: Host, tmp_path: Path
) -> None:
    """It may be a member already, and the others wait for it; one that trains ends as all do."""
    host.fleet.place(["h2"], tmp_path)
    for worker in (2, 3):
        host.fleet.widen("h2", 1)
        host.agent.tell(messages.Passed(worker, said("admitted")))
    host.agent.tell(messages.Passed(2, said("trains", step=4)))
    for worker in (2, 3):
        host.agent.tell(messages.Passed(worker, said("ended", status=0)))
    assert [died.worker for died in host.hear(messages.Died)] == [3]
    host.fleet.dismiss()


def test_a_host_may_be_silent_for_short_only_once_its_newcomer_is_admitted(
    host: Host, tmp_path: Path
) -> None:
    """Its workers are not among those that the job began with."""
    host.fleet.place([], tmp_path)
    host.fleet.widen("h2", 1)
    host.agent.tell(messages.Passed(2, said("ready")))
    host.agent.tell(messages.Passed(2, said("admitted")))
    host.turn_until(lambda: host.fleet.hosts[0].beats.settled)
    heard = [one.said.event for one in host.fleet.hear()]
    assert heard == ["ready", "admitted"]
    host.fleet.dismiss()


def settled(host: Host, folder: Path) -> Silences:
    """Have the host come so far that its silence counts; return what the fleet knows of it."""
    host.fleet.place([], folder)
    host.fleet.widen("h2", 1)
    host.agent.tell(messages.Passed(2, said("admitted")))
    host.turn_until(lambda: host.fleet.hosts[0].beats.settled)
    return host.fleet.silences()["h2"]


def test_the_silence_of_a_host_counts_from_when_it_is_settled(host: Host, tmp_path: Path) -> None:
    host.fleet.hear()
    assert host.fleet.silences()["h2"].longest == 0.0
    silences = settled(host, tmp_path)
    host.fleet.hear()  # all that has been said until now
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


def test_a_round_that_is_over_says_that_all_were_ready(host: Host, tmp_path: Path) -> None:
    host.fleet.place(["h2"], tmp_path)
    host.agent.tell(messages.Passed(1, said("ready")))
    host.agent.tell(messages.Says("now"))
    host.turn_until(lambda: host.said)
    assert host.fleet.hosts[0].beats.settled is False
    host.agent.tell(messages.Passed(1, said("underway")))
    host.turn_until(lambda: host.fleet.hosts[0].beats.settled)
    host.fleet.dismiss()


def test_of_two_hosts_that_do_not_reach_each_other_one_is_told_to_go(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    gone: list[str] = []
    other = host.come(
        "h3", lambda frame: heard.append(read(frame, messages.FROM_HEAD)), gone.append
    )
    host.fleet.place(["h2", "h3"], tmp_path)
    links = (TcpConnection("10.0.0.2:1024", "10.0.0.3:1025", False),)
    host.agent.tell(messages.Claims(links))
    host.turn_until(lambda: messages.Claimed(links) in heard)
    assert messages.Claimed(links) not in host.told, "it said so itself"
    for wait in (0.0, 1.2):  # it is no rift unless it lasts
        assert host.fleet.hear() == []
        host.agent.tell(messages.Claims(links))
        other.tell(messages.Confirms(links))
        while host.loop.turn(0.2):
            pass
        later = time.monotonic() + wait
        monkeypatch.setattr(time, "monotonic", lambda later=later: later)
    lost = host.fleet.hear()
    assert [one.worker for one in lost] == [2, 3]
    assert all(isinstance(one.said, messages.HostLost) for one in lost)
    assert lost[0].said.how.startswith("host h3 does not reach h2, though the head does")
    assert lost[0].said.kind == "unreachable"
    assert host.resting == ["h3"]
    assert [one.name for one in host.fleet.hosts] == ["h2"]
    host.turn_until(lambda: gone)
    assert isinstance(heard[-1], messages.Refusal)
    assert "does not reach h2" in heard[-1].why
    host.fleet.dismiss()


def test_a_host_starts_only_as_many_as_it_has_room_for(host: Host, tmp_path: Path) -> None:
    """One that came anew has all its workers: whoever it was to replace is none of them."""
    host.fleet.place(["h2"], tmp_path)
    assert host.fleet.recruit("h2") is None
    host.agent.tell(messages.Passed(1, said("ended", status=9)))
    host.hear(messages.Died)
    assert host.fleet.recruit("h2") == 2
    assert host.fleet.recruit("h2") is None
    assert host.fleet.recruit("h3") is None
    host.fleet.dismiss()


def test_a_host_is_heard_by_datagrams_too(host: Host) -> None:
    udp = UdpBeats(host.loop, host.agent.seal, 0.0)
    name = udp.offer(["127.0.0.1"])
    assert name is not None
    host.agent.tell(messages.UdpSocket(*name))
    (head,) = host.hear(messages.UdpSocket)
    udp.meet(head.address, head.port)
    there = host.fleet.hosts[0].beats
    host.turn_until(lambda: there.udp.heard)
    host.fleet.hear()
    assert not there.news
    link, before = there._awake, there.udp.heard
    udp.beat(time.monotonic())
    host.turn_until(lambda: there.udp.heard > before)
    assert there.news
    host.fleet.hear()
    assert not there.news
    assert there._awake == link, "a datagram was taken for the link"
    udp.close()
    there.udp.close()


@pytest.mark.parametrize("address", ["0.0.0.0", "224.0.0.1", "h2", "fe80::1"])
def test_an_agent_that_names_no_host_s_address_is_heard_by_its_link(
    host: Host, address: str
) -> None:
    host.agent.tell(messages.UdpSocket(address, 9))
    host.agent.tell(messages.Says("here"))
    host.turn_until(lambda: host.said)
    assert not [one for one in host.told if isinstance(one, messages.UdpSocket)]


def test_all_hosts_are_told_why_a_worker_is_gone(host: Host, tmp_path: Path) -> None:
    host.fleet.place(["h2"], tmp_path)
    cause = Cause("hung", "it did nothing")
    host.fleet.explain(1, cause)
    assert host.hear(messages.Explained) == [messages.Explained(1, cause)]
    host.fleet.dismiss()
