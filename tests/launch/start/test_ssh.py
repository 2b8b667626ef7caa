"""How agents are started, and what is said when one does not start."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.launch.start import ssh
from spotmpi.launch.start.hosts_file import HostLine

FOLDER = "/work here/it's"


def test_nothing_of_a_host_s_name_or_folder_is_taken_for_an_option_or_a_command() -> None:
    command = ssh.command(HostLine("h1", slots=2), FOLDER)
    assert command[0] == "ssh"
    assert command[-2] == "h1"
    assert command[-3] == "--"
    assert "-oBatchMode=yes" in command
    assert command[-1].startswith("cd '/work here/it'\"'\"'s' || exit 90; ")


def test_the_launcher_s_own_host_needs_no_ssh() -> None:
    command = ssh.command(HostLine("localhost", slots=3, python="/py"), FOLDER)
    assert command[:2] == ["/py", "-c"]
    assert command[3:] == ["agent", "--pipe", "--name", "localhost", "--slots", "3", "--near"]


def test_options_reach_an_agent_wherever_it_is() -> None:
    options = ["--notice-endpoint", "http://[::1]:80; reboot"]
    assert ssh.command(HostLine("localhost"), FOLDER, options)[-3:] == [*options, "--near"]
    assert shlex.split(ssh.command(HostLine("h1"), FOLDER, options)[-1])[-2:] == options


@pytest.mark.parametrize(
    ("python", "folder", "code", "said"),
    [
        (sys.executable, "/nonexistent", 90, "there is no folder /nonexistent on h1"),
        ("/nonexistent", "/", 91, "there is no /nonexistent on h1; name another"),
    ],
)
def test_what_is_missing_on_a_host_is_named(python: str, folder: str, code: int, said: str) -> None:
    host = HostLine("h1", python=python)
    remote = ssh.command(host, folder)[-1]  # what ssh hands to the shell there
    done = subprocess.run(["sh", "-c", remote], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert ssh.failure(host, done.returncode, done.stderr, folder).startswith(said)


def test_an_interpreter_without_spotmpi_is_named(tmp_path: Path) -> None:
    host = HostLine("h1")
    program = ssh.command(HostLine("localhost"), "/")[2]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=tmp_path, timeout=60, check=False
    )
    assert "spotmpi is not installed for" in ssh.failure(host, done.returncode, "", "/")


def test_ssh_s_own_reason_is_passed_on() -> None:
    said = "Warning: x\nroot@h1: Permission denied (publickey).\n"
    assert ssh.failure(HostLine("h1"), 255, said, "/") == (
        "h1 cannot be reached by ssh (root@h1: Permission denied (publickey).); "
        "`ssh -o BatchMode=yes h1 true` must work without a question"
    )
    assert "ended with code 3 (it said nothing)" in ssh.failure(HostLine("h1"), 3, "", "/")
