"""The ways to a host: by which command an agent starts there, and why none did. Pure.

Whichever way it is, the command's input and output lead to the agent, and what the host's own
shell finds missing is said through the same exit codes.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Protocol

from spotmpi.launch.start.hosts_file import HostLine

__all__ = ["AgentStarter", "direct", "lacking", "python", "shell"]

_NO_FOLDER, _NO_PYTHON, _NO_SPOTMPI = 90, 91, 92

# In one process: a second interpreter would cost its start again on a small machine.
_PROGRAM = f"""\
import importlib.util, runpy, sys
if importlib.util.find_spec("spotmpi") is None: sys.exit({_NO_SPOTMPI})
sys.argv[0] = "spotmpi"
runpy.run_module("spotmpi", run_name="__main__", alter_sys=True)
"""


class AgentStarter(Protocol):
    """How agents are started on the hosts of one job."""

    @property
    def ends_by_itself(self) -> bool:
        """Whether the command ends once the launcher is gone; else it is killed then."""

    def command(self, host: HostLine, folder: str, options: Sequence[str] = ()) -> list[str]:
        """The command whose input and output lead to a new agent of ``host``, in ``folder``.

        ``options`` are more of ``spotmpi agent``'s.
        """

    def failure(self, host: HostLine, code: int, said: str, folder: str) -> str:
        """Why there is no agent: its command ended with ``code`` and ``said`` this."""


def direct(host: HostLine, options: Sequence[str] = ()) -> list[str]:
    """The agent's own command."""
    arguments = ["agent", "--pipe", "--name", host.name, "--slots", str(host.slots), *options]
    near = ["--near"] if host.local else []
    return [python(host), "-c", _PROGRAM, *arguments, *near]


def shell(host: HostLine, folder: str, options: Sequence[str] = ()) -> str:
    """What the host's shell runs to become the agent; see `lacking` for its exit codes."""
    interpreter = shlex.quote(python(host))
    return (
        f"cd {shlex.quote(folder)} || exit {_NO_FOLDER}; "
        f"command -v {interpreter} >/dev/null || exit {_NO_PYTHON}; "
        f"exec {shlex.join(direct(host, options))}"
    )


def lacking(host: HostLine, code: int, folder: str) -> str | None:
    """What ``host`` lacks, by the exit code; None if that says nothing of the kind."""
    name, interpreter = host.name, python(host)
    if code == _NO_FOLDER:
        return f"there is no folder {folder} on {name}; the working directory must exist there"
    if code == _NO_PYTHON:
        return (
            f"there is no {interpreter} on {name}; name another in a hosts file "
            f"({name} python=/path/to/python), or have it at this path there"
        )
    if code == _NO_SPOTMPI:
        return f"spotmpi is not installed for {interpreter} on {name}: pip install it there"
    return None


def python(host: HostLine) -> str:
    """The interpreter that has spotmpi there."""
    return host.python or sys.executable
