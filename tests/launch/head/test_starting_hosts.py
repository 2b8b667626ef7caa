"""Hosts are started, waited for and tried again: the fleet is real, the agents only come."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch import processes
from spotmpi.launch.auth import NONCE_BYTES, Role, Seal
from spotmpi.launch.event_loop import Action, Loop
from spotmpi.launch.head.agents import Agents
from spotmpi.launch.head.starting_hosts import Start, StartingHosts
from spotmpi.launch.head.wanted_hosts import HostsFile, WantedHosts
from spotmpi.launch.limits import Limits
from spotmpi.launch.messages import Assignment
from spotmpi.launch.start import crowd
from spotmpi.launch.start.hosts_file import HostLine, parse
from spotmpi.settings import Watch
from tests.patience import NEVER_SILENT_MS
from tests.running import LIMIT

AGENT = Path(__file__).parents[1] / "scripts" / "agent.py"

COMES = [sys.executable, str(AGENT)]
SILENT = ["sleep", "1000"]
FAILS = ["sh", "-c", "echo no route >&2; exit 3"]
HANGS = ["sh", "-c", "exec >&-; exec sleep 1000"]
NO_PROGRAM = ["/nonexistent"]


class Clock:
    """The time of day, which a test may set forward."""

    def __init__(self) -> None:
        self.now = time.monotonic
        self.ahead = 0.0

    def monotonic(self) -> float:
        return self.now() + self.ahead


class Repeated(Loop):
    """A loop that leaves it to the test when what is done again and again is done."""

    def __init__(self) -> None:
        super().__init__()
        self.again: Action = lambda: pytest.fail("nothing is done again and again")

    def every(self, seconds: float, name: Hashable, action: Action) -> None:
        assert (seconds, name) == (5, "gather")
        self.again = action


class Hosts:
    """A job's hosts, each of which does as ``commands`` has it; in the place of a `Job`."""

    ends_by_itself = False

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loop = Repeated()
        self.console = self
        self.commands: dict[str, list[str]] = {}
        self.started: list[str] = []
        """The hosts whose agents were started, in order."""
        self.pids: dict[str, int] = {}
        self.serving: set[int] = set()
        self.uninvited: list[subprocess.Popen[bytes]] = []
        self.said: list[str] = []
        self.wanted: list[int] = []
        """How many workers were asked for in all, each time that changed."""
        self.too_few_are_there = ""
        self.fleet = Agents(
            self.loop,
            Assignment("/", ("script",), {}, NEVER_SILENT_MS, 30.0),
            lambda *_: None,
            lambda: False,
            lambda *_: None,
            lambda _: 0,
            lambda host: pytest.fail(f"{host} is to rest"),
            self.said.append,
            socket.socket,
            lambda *_: None,
            Limits(),
        )
        self.gathering: StartingHosts

    def gather(self, *lines: str, file: Path | None = None, **options: Any) -> Hosts:
        """Begin with these lines of a hosts file, or with a real one."""
        options = {"min_workers": 1, "door": None, "start": Start.FIRST, "alone": False} | options
        roster = WantedHosts(parse(lines, "hosts") if lines else ())
        if file is not None:
            roster = WantedHosts.of(HostsFile(str(file)))
        self.gathering = StartingHosts(self, self.fleet, roster, way=self, watch=Watch(), **options)
        return self

    # What a job does.

    def say(self, text: str) -> None:
        self.said.append(text)

    def spare(self, pid: int) -> None:
        self.pids[self.started[-1]] = pid
        self.serving.add(pid)

    def ended(self, pid: int) -> None:
        self.serving.remove(pid)

    def asked(self, workers: int) -> None:
        self.wanted.append(workers)

    def too_few(self, why: str) -> None:
        self.too_few_are_there = why

    # What a way does.

    def command(self, host: HostLine, folder: str, options: Sequence[str] = ()) -> list[str]:
        self.started.append(host.name)
        command = self.commands.get(host.name, COMES)
        return [*command, host.name, str(host.slots)] if command == COMES else command

    def failure(self, host: HostLine, code: int, said: str, folder: str) -> str:
        return f"{host.name} ended with {code}: {said.strip()}"

    # What a test does.

    @property
    def there(self) -> set[str]:
        return {host.name for host in self.fleet.hosts}

    def turn_until(self, done: Callable[[], Any]) -> Any:
        """Let things happen until this is so; return it."""
        deadline = self.clock.now() + LIMIT
        while not (found := done()):
            assert self.clock.now() < deadline, (self.there, self.said)
            self.turn()
        return found

    def turn(self) -> None:
        self.loop.turn(0.05)
        self.fleet.hear()

    def pass_by(self, seconds: int) -> None:
        """Let so much time go by, in which the head is awake: it looks each second."""
        for _ in range(seconds):
            self.clock.ahead += 1
            self.loop.turn(0)
            self.fleet.hear()

    def begin(self) -> list[str]:
        """Wait until the job begins; return its hosts."""
        hosts: list[str] = self.turn_until(self.gathering.complete)
        return hosts

    def lose(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)
        self.turn_until(lambda: name not in self.there)

    def come(self, name: str, slots: int) -> None:
        """A host comes by itself."""
        token = secrets.token_bytes(NONCE_BYTES)
        agent = subprocess.Popen(
            [*COMES, name, str(slots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(f"{token.hex()}\n".encode())
        agent.stdin.flush()
        ends = os.dup(agent.stdout.fileno()), os.dup(agent.stdin.fileno())
        agent.stdin.close()
        agent.stdout.close()
        seal = Seal(Role.HEAD, token, secrets.token_bytes(NONCE_BYTES))
        self.fleet.meet(ends, seal, LIMIT, pytest.fail)
        self.uninvited.append(agent)
        self.turn_until(lambda: name in self.there)

    def close(self) -> None:
        for agent in [*self.gathering._running.values(), *self.uninvited]:
            agent.kill()
            agent.wait()
            if agent.stderr is not None:
                agent.stderr.close()
        self.fleet.dismiss()
        for host in self.fleet.hosts:
            host.trunk.close()
        self.loop.close()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    clock = Clock()
    made = Hosts(clock)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    yield made
    made.close()


# The beginning.


def test_a_job_begins_when_all_are_there_in_the_order_of_its_file(
    hosts: Hosts, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    hosts.commands["h1"] = ["sh", "-c", f'read x < {tmp_path}/gate; exec "$0" "$@"', *COMES]
    hosts.commands["h1"] += ["h1", "2"]
    hosts.gather("h1 slots=2", "h2")
    hosts.turn_until(lambda: hosts.there == {"h2"})
    assert hosts.gathering.complete() is None
    (tmp_path / "gate").write_text("go\n")
    assert hosts.begin() == ["h1", "h2"]
    assert hosts.said == []
    assert hosts.wanted == [3]


def test_a_host_that_fails_at_once_is_not_waited_for_and_its_command_says_why(
    hosts: Hosts,
) -> None:
    hosts.commands |= {"h2": FAILS, "h3": NO_PROGRAM}
    assert hosts.gather("h1", "h2 slots=2", "h3").begin() == ["h1"]
    assert set(hosts.said[:2]) == {
        "h2 ended with 3: no route",
        "h3: /nonexistent cannot be run (No such file or directory)",
    }
    assert hosts.said[2:] == ["starting with 1 of 4 workers"]
    assert hosts.wanted == [4]


def test_a_command_that_hangs_though_its_agent_is_gone_holds_nothing_up(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has beats to send: it waits for no process."""
    hosts.commands["h2"] = HANGS
    hosts.gather("h1", "h2")
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", lambda *_: pytest.fail("it waits"))
        assert hosts.begin() == ["h1"]
    assert hosts.said == [
        "the agent on h2 was refused: the connection was closed",
        "starting with 1 of 2 workers",
    ]


def test_a_host_that_never_answers_is_waited_for_half_a_minute(hosts: Hosts) -> None:
    hosts.commands["h2"] = SILENT
    hosts.gather("h1", "h2")
    hosts.turn_until(lambda: hosts.there)
    assert hosts.gathering.complete() is None
    hosts.clock.ahead = 30
    assert hosts.gathering.complete() == ["h1"]
    assert hosts.said == ["h2 did not answer within 30 s", "starting with 1 of 2 workers"]


def test_with_too_few_nothing_begins(hosts: Hosts) -> None:
    hosts.commands["h2"] = FAILS
    hosts.gather("h1", "h2 slots=2", min_workers=2)
    hosts.turn_until(lambda: hosts.gathering.complete() or hosts.too_few_are_there)
    assert (
        hosts.too_few_are_there
        == "of 3 workers only 1 can be started, and --min-workers asks for 2"
    )


def test_those_that_come_by_themselves_are_counted_and_waited_for(hosts: Hosts) -> None:
    hosts.gather(door=3)
    hosts.come("b", 2)
    assert hosts.gathering.complete() is None
    hosts.clock.ahead = 1000
    assert hosts.gathering.complete() is None
    hosts.come("a", 2)
    assert hosts.gathering.complete() == ["b", "a"]
    assert hosts.said == ["b is here: 2 of 3 workers", "a is here: 4 of 3 workers"]
    assert hosts.wanted == [4]


def test_after_a_loss_at_the_start_it_begins_with_fewer_in_the_end(hosts: Hosts) -> None:
    hosts.gather(door=3, start=Start.AGAIN, min_workers=2)
    hosts.come("b", 1)
    assert hosts.gathering.complete() is None
    hosts.clock.ahead = 1000
    assert hosts.gathering.complete() is None
    hosts.come("a", 1)
    assert hosts.gathering.complete() == ["b", "a"]
    assert hosts.said[-1] == "starting with 2 of 3 workers"


def test_a_patient_job_waits_as_long_as_it_takes_and_tries_again(hosts: Hosts) -> None:
    hosts.commands |= {"h1": FAILS, "h2": SILENT}
    hosts.gather("h1", "h2", start=Start.PATIENT)
    hosts.pass_by(31)
    hosts.turn_until(lambda: hosts.gathering._missing.keys() == {"h1", "h2"})
    assert hosts.gathering.complete() is None
    hosts.commands["h1"] = COMES
    hosts.loop.again()
    assert hosts.started == ["h1", "h2", "h1", "h2"]
    assert hosts.begin() == ["h1"]
    assert hosts.wanted == [2]


def test_a_host_that_is_on_its_way_when_a_patient_job_begins_still_comes(hosts: Hosts) -> None:
    """The half minute is over by then, but not that of its last try."""
    hosts.commands |= {"h1": FAILS, "h2": SILENT}
    hosts.gather("h1", "h2", start=Start.PATIENT)
    hosts.pass_by(31)
    hosts.turn_until(lambda: hosts.gathering._missing.keys() == {"h1", "h2"})
    hosts.commands["h1"] = COMES
    hosts.loop.again()
    assert hosts.begin() == ["h1"]
    hosts.loop.again()
    assert hosts.started == ["h1", "h2", "h1", "h2"]


# While the job runs.


def test_a_late_host_is_tried_again_until_it_comes(hosts: Hosts) -> None:
    hosts.commands["h2"] = FAILS
    hosts.gather("h1", "h2").begin()
    for _ in range(2):
        hosts.loop.again()
        hosts.turn_until(lambda: hosts.gathering._missing)
    hosts.commands["h2"] = COMES
    hosts.loop.again()
    hosts.turn_until(lambda: hosts.there == {"h1", "h2"})
    hosts.loop.again()
    assert hosts.started == ["h1", "h2", "h2", "h2", "h2"]


def test_a_host_on_its_way_is_left_alone_until_its_time_is_up(hosts: Hosts, ended) -> None:
    hosts.commands["h2"] = FAILS
    hosts.gather("h1", "h2").begin()
    hosts.commands["h2"] = SILENT
    for _ in range(3):
        hosts.loop.again()
    assert hosts.started == ["h1", "h2", "h2"]
    late = hosts.pids["h2"]
    hosts.pass_by(31)
    hosts.turn_until(lambda: hosts.gathering._missing)
    hosts.commands["h2"] = COMES
    hosts.loop.again()
    assert ended(late)
    hosts.turn_until(lambda: "h2" in hosts.there)


def test_a_host_that_is_lost_comes_back(hosts: Hosts) -> None:
    hosts.gather("h1", "h2").begin()
    for times in (1, 2):
        hosts.lose("h2")
        hosts.loop.again()
        hosts.turn_until(lambda: "h2" in hosts.there)
        assert hosts.fleet.times["h2"] == times + 1
        assert hosts.serving == set(hosts.pids.values())  # and none of those before
    hosts.loop.again()
    assert hosts.started == ["h1", "h2", "h2", "h2"]


def test_a_host_that_is_to_be_taken_away_rests(hosts: Hosts) -> None:
    hosts.gather("h1", "h2").begin()
    hosts.gathering.rest("h2", 100)
    hosts.lose("h2")
    hosts.clock.ahead = 99
    hosts.loop.again()
    assert hosts.started == ["h1", "h2"]
    hosts.clock.ahead = 101
    hosts.loop.again()
    hosts.turn_until(lambda: "h2" in hosts.there)


# Hosts that are asked for.


def test_a_host_that_is_asked_for_is_tried_at_once(hosts: Hosts) -> None:
    hosts.gather("h1").begin()
    assert hosts.gathering.add(HostLine("h2", slots=2)) == "h2 is asked for 2 workers"
    assert hosts.gathering.news("h2") == ""
    hosts.turn_until(lambda: "h2" in hosts.there)
    assert hosts.gathering.news("h2").startswith("h2 is here")
    assert hosts.wanted == [1, 3]
    with pytest.raises(UsageError, match="h2 is one of the job's hosts already"):
        hosts.gathering.add(HostLine("h2"))
    assert hosts.wanted == [1, 3]


def test_a_host_that_is_asked_for_twice_counts_once_and_is_told_of_the_first_try(
    hosts: Hosts,
) -> None:
    hosts.commands["h2"] = FAILS
    hosts.gather("h1").begin()
    hosts.gathering.add(HostLine("h2", slots=2))
    hosts.turn_until(lambda: hosts.gathering._running["h2"].poll() and hosts.gathering._missing)
    said = hosts.gathering.add(HostLine("h2", slots=3))
    assert said == (
        "h2 is being tried already, every 5 s (the last time: h2 ended with 3: no route); "
        "it is asked for 3 workers in all"
    )
    assert hosts.wanted == [1, 3, 4]


def test_who_asked_for_a_host_hears_why_the_first_try_failed(hosts: Hosts) -> None:
    hosts.commands["h2"] = FAILS
    hosts.gather("h1").begin()
    hosts.gathering.add(HostLine("h2"))
    assert hosts.gathering.news("h2") == ""
    hosts.turn_until(lambda: hosts.gathering._running["h2"].poll() and hosts.gathering._missing)
    with pytest.raises(UsageError, match="h2 ended with 3: no route; it is tried every 5 s"):
        hosts.gathering.news("h2")


def test_why_a_host_that_was_asked_for_does_not_come_is_said_once(hosts: Hosts) -> None:
    hosts.commands["h2"] = FAILS
    hosts.gather("h1").begin()
    hosts.gathering.add(HostLine("h2"))
    for _ in range(3):
        hosts.turn_until(lambda: hosts.gathering._running["h2"].poll() and hosts.gathering._missing)
        hosts.loop.again()
    assert hosts.said == ["h2 ended with 3: no route; it is tried every 5 s"]


def test_a_host_that_rests_and_is_asked_for_is_tried_at_once(hosts: Hosts) -> None:
    hosts.gather("h1", "h2").begin()
    hosts.gathering.rest("h2", 100)
    hosts.lose("h2")
    hosts.gathering.add(HostLine("h2"))
    hosts.turn_until(lambda: "h2" in hosts.there)
    assert hosts.wanted == [2, 2]


# The file changes.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A hosts file of two hosts."""
    file = tmp_path / "hosts"
    file.write_text("h1\nh2\n")
    return file


def again_and_again(hosts: Hosts) -> list[str]:
    """Until a file that was changed is read; returns what was said of it."""
    before = len(hosts.said)
    hosts.loop.again()
    hosts.loop.again()
    return hosts.said[before:]


def test_the_host_of_a_new_line_is_asked_for_its_workers(hosts: Hosts, file: Path) -> None:
    hosts.gather(file=file).begin()
    file.write_text("h1\nh2\nh3 slots=2\n")
    assert again_and_again(hosts) == [f"{file} was read again; asked for 2 workers: h3"]
    hosts.turn_until(lambda: "h3" in hosts.there)
    assert hosts.wanted == [2, 4]


def test_the_host_of_a_new_line_that_cannot_be_reached_is_named(hosts: Hosts, file: Path) -> None:
    hosts.commands["h3"] = FAILS
    hosts.gather(file=file).begin()
    file.write_text("h1\nh2\nh3\n")
    again_and_again(hosts)
    hosts.turn_until(lambda: hosts.gathering._running["h3"].poll() and hosts.gathering._missing)
    assert again_and_again(hosts) == ["h3 ended with 3: no route; it is tried every 5 s"]


def test_the_host_of_a_line_that_is_gone_stays_and_does_not_come_back(
    hosts: Hosts, file: Path
) -> None:
    hosts.gather(file=file).begin()
    file.write_text("h1\n")
    (said,) = again_and_again(hosts)
    assert "not tried again when they are not there: h2" in said
    assert hosts.there == {"h1", "h2"}
    hosts.lose("h2")
    again_and_again(hosts)
    assert hosts.started == ["h1", "h2"]
    file.write_text("h1\nh2\n")
    again_and_again(hosts)
    hosts.turn_until(lambda: "h2" in hosts.there)


@pytest.mark.parametrize("command", [SILENT, FAILS, NO_PROGRAM])
def test_the_host_of_a_line_that_is_gone_is_not_tried_any_more(
    hosts: Hosts, file: Path, command: list[str], ended
) -> None:
    hosts.gather(file=file).begin()
    hosts.commands["h3"] = command
    hosts.gathering.add(HostLine("h3"))
    hosts.turn()
    file.write_text("h1\nh2\nh3\n")
    again_and_again(hosts)
    file.write_text("h1\nh2\n")
    again_and_again(hosts)
    if command != NO_PROGRAM:
        assert ended(hosts.pids["h3"])
    hosts.turn_until(lambda: not hosts.fleet.guests)
    started = len(hosts.started)
    again_and_again(hosts)
    assert len(hosts.started) == started
    assert hosts.gathering._missing == {}


def test_slots_that_changed_hold_from_the_next_time(hosts: Hosts, file: Path) -> None:
    hosts.gather(file=file).begin()
    file.write_text("h1\nh2 slots=3\n")
    again_and_again(hosts)
    assert [host.slots for host in hosts.fleet.hosts] == [1, 1]
    hosts.lose("h2")
    hosts.loop.again()
    hosts.turn_until(lambda: [host.slots for host in hosts.fleet.hosts] == [1, 3])
    assert hosts.wanted == [2, 4]


def test_a_file_that_is_wrong_changes_nothing_and_is_said_once(hosts: Hosts, file: Path) -> None:
    hosts.gather(file=file).begin()
    file.write_text("h3\nh4 slot=2\n")
    (said,) = again_and_again(hosts)
    assert said.startswith(f"{file}, line 2: 'slot=2' is not understood; write name")
    assert said.endswith("; until it is put right the hosts stay as they are")
    assert again_and_again(hosts) == []
    assert hosts.started[2:] == []


# More workers on a host that is there.


def slots(hosts: Hosts) -> dict[str, int]:
    return {host.name: host.slots for host in hosts.fleet.hosts}


def test_a_host_that_is_there_gets_more_workers_and_has_them_when_it_comes_again(
    hosts: Hosts,
) -> None:
    hosts.gather("h1 slots=2", "h2").begin()
    said = hosts.gathering.widen("h1", 3)
    assert said == "3 workers more on h1: they join while the others train"
    assert slots(hosts) == {"h1": 5, "h2": 1}
    assert hosts.wanted == [3, 6]
    hosts.lose("h1")
    hosts.loop.again()
    hosts.turn_until(lambda: slots(hosts) == {"h1": 5, "h2": 1})


def test_of_several_hosts_one_must_be_named_and_the_only_one_need_not(hosts: Hosts) -> None:
    hosts.gather("h1", "h2").begin()
    with pytest.raises(UsageError, match=r"the job has 2 hosts; say by --host which .*: h1, h2"):
        hosts.gathering.widen(None, 1)
    with pytest.raises(UsageError, match="h3 is not there"):
        hosts.gathering.widen("h3", 1)
    hosts.lose("h2")
    hosts.gathering.widen(None, 1)
    assert slots(hosts) == {"h1": 2}
    hosts.lose("h1")
    with pytest.raises(UsageError, match="its host is not there"):
        hosts.gathering.widen(None, 1)


def test_a_host_that_came_by_itself_gets_more_workers_too(hosts: Hosts) -> None:
    hosts.gather(door=2)
    hosts.come("a", 2)
    hosts.begin()
    hosts.gathering.widen(None, 1)
    assert slots(hosts) == {"a": 3}
    assert hosts.wanted == [2, 3]


def test_a_host_has_only_so_many_workers(hosts: Hosts) -> None:
    hosts.gather("h1 slots=4096").begin()
    with pytest.raises(UsageError, match="h1 would have 4097 workers; 4096 are most"):
        hosts.gathering.widen(None, 1)


def test_many_more_on_the_head_s_own_host_are_judged(hosts: Hosts, monkeypatch) -> None:
    monkeypatch.setattr(crowd, "memory", lambda: crowd.Memory(10**10, 10**9))
    hosts.gather("localhost", "h2").begin()
    assert hosts.gathering.widen("localhost", 50).partition("\n")[2] == crowd.judged(51, 50) != ""
    assert "\n" not in hosts.gathering.widen("h2", 50)  # nobody here knows its cores
    with pytest.raises(UsageError, match="251 workers need 12 GB of memory"):
        hosts.gathering.widen("localhost", 200)
    monkeypatch.setattr(processes, "few_descriptors", lambda workers: f"too few for {workers}")
    with pytest.raises(UsageError, match="too few for 103"):
        hosts.gathering.widen("localhost", 1)


def test_a_job_on_one_host_gets_no_other(hosts: Hosts) -> None:
    hosts.gather("h1", alone=True).begin()
    with pytest.raises(UsageError, match="this job was started with -n, for this host alone"):
        hosts.gathering.add(HostLine("h2"))
