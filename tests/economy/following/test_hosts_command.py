"""The user's command: what becomes of it when it works, fails, hangs or is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.economy.following.hosts_command import Done, HostsCommand
from spotmpi.errors import UsageError

Commands = list[HostsCommand]


@pytest.fixture
def commands() -> Iterator[Commands]:
    made: Commands = []
    yield made
    for one in made:
        one.close()


def command(commands: Commands, script: str, limit_s: float = 60.0) -> HostsCommand:
    commands.append(HostsCommand([sys.executable, "-c", script], limit_s))
    return commands[-1]


def done(one: HostsCommand) -> Done:
    while (found := one.look()) is None:
        pass
    return found


def test_it_gets_its_words_as_they_are_and_its_lines_are_names(commands: Commands) -> None:
    one = command(commands, "import sys; print(sys.argv[1:]); print(' h7 ')")
    one.begin("get", "a;b $(c)", "2", "spot")
    assert not one.ready
    found = done(one)
    assert found == Done(
        ["get", "a;b $(c)", "2", "spot"], "", ["['get', 'a;b $(c)', '2', 'spot']", "h7"]
    )
    assert one.ready


def test_one_that_fails_is_not_tried_again_at_once(commands: Commands) -> None:
    one = command(commands, "import sys; sys.exit('no capacity')")
    one.begin("get")
    assert done(one).problem == "it ended with code 1: no capacity"
    assert not one.ready


@pytest.mark.matrix
def test_one_that_hangs_is_ended_also_where_it_does_not_want_to(commands: Commands) -> None:
    ignoring = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)\n"
    for script in ("", ignoring):
        one = command(commands, f"{script}import signal\nwhile True: signal.pause()", limit_s=1.0)
        one.begin("get")
        assert done(one).problem.startswith("it took more than 1 s, and was ended")


def test_one_that_is_killed_says_so(commands: Commands) -> None:
    one = command(commands, "import os; os.kill(os.getpid(), 9)")
    one.begin("get")
    assert done(one).problem == "SIGKILL killed it"


def test_one_that_is_not_there_is_a_mistake(commands: Commands) -> None:
    one = HostsCommand(["/nowhere/hosts.sh"])
    with pytest.raises(UsageError, match=r"--apply /nowhere/hosts\.sh cannot be run: .*No such"):
        one.begin("get")


def test_what_it_leaves_running_does_not_hold_up_and_is_no_part_of_it(
    commands: Commands, tmp_path: Path
) -> None:
    """A host that was booted keeps the streams of the command open."""
    pid = tmp_path / "pid"
    boots = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', 'infinity'], start_new_session=True)\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\nprint('h9')"
    )
    one = command(commands, boots)
    one.begin("get")
    assert done(one).names == ["h9"]
    host = int(pid.read_text())
    os.kill(host, 0)  # it lives
    os.kill(host, signal.SIGKILL)
