"""How an agent is started on a host: by ssh, or on the launcher's own host as a child. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from spotmpi.launch.hosts import Host

__all__ = ["command", "failure"]

_NO_FOLDER, _NO_PYTHON, _NO_SPOTMPI = 90, 91, 92
_SSH = 255
"""ssh's own exit code, when it could not get there."""

# In one process: a second interpreter would cost its start again on a small machine.
_PROGRAM = f"""\
import importlib.util, runpy, sys
if importlib.util.find_spec("spotmpi") is None: sys.exit({_NO_SPOTMPI})
sys.argv[0] = "spotmpi"
runpy.run_module("spotmpi", run_name="__main__", alter_sys=True)
"""


def command(host: Host, folder: str, options: Sequence[str] = ()) -> list[str]:
    """The command whose input and output lead to a new agent of ``host``, run in ``folder``.

    ``options`` are more of ``spotmpi agent``'s.
    """
    arguments = ["agent", "--pipe", "--name", host.name, "--slots", str(host.slots), *options]
    if host.local:
        return [_python(host), "-c", _PROGRAM, *arguments]
    python = shlex.quote(_python(host))
    program = shlex.join(["-c", _PROGRAM, *arguments])
    remote = (
        f"cd {shlex.quote(folder)} || exit {_NO_FOLDER}; "
        f"command -v {python} >/dev/null || exit {_NO_PYTHON}; "
        f"exec {python} {program}"
    )
    settings = ["BatchMode=yes", "ConnectTimeout=10", "StrictHostKeyChecking=accept-new"]
    # Somebody else's shared connection must not carry, and so delay, the heartbeats.
    settings += ["ControlPath=none", "LogLevel=ERROR"]
    return ["ssh", "-T", *(f"-o{one}" for one in settings), "--", host.name, remote]


def failure(host: Host, code: int, said: str, folder: str) -> str:
    """Why there is no agent on ``host``: its command ended with ``code`` and ``said`` this."""
    last = said.strip().rpartition("\n")[2]
    name, python = host.name, _python(host)
    if code == _SSH:
        return (
            f"{name} cannot be reached by ssh ({last or 'ssh gives no reason'}); "
            f"`ssh -o BatchMode=yes {name} true` must work without a question"
        )
    if code == _NO_FOLDER:
        return f"there is no folder {folder} on {name}; the working directory must exist there"
    if code == _NO_PYTHON:
        return f"there is no {python} on {name}; name another: {name} python=/path/to/python"
    if code == _NO_SPOTMPI:
        return f"spotmpi is not installed for {python} on {name}: pip install it there"
    return f"the agent on {name} ended with code {code} ({last or 'it said nothing'})"


def _python(host: Host) -> str:
    return host.python or sys.executable
