"""How an agent is started on a host: by ssh, or on the launcher's own host as a child. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.launch.start import agent_command
from spotmpi.launch.start.hosts_file import HostLine

__all__ = ["command", "ends_by_itself", "failure"]

ends_by_itself = False
"""ssh would wait for a host that is gone, too."""

_SSH = 255
"""ssh's own exit code, when it could not get there."""


def command(host: HostLine, folder: str, options: Sequence[str] = ()) -> list[str]:
    """The command whose input and output lead to a new agent of ``host``, run in ``folder``.

    ``options`` are more of ``spotmpi agent``'s.
    """
    if host.local:
        return agent_command.direct(host, options)
    settings = ["BatchMode=yes", "ConnectTimeout=5", "StrictHostKeyChecking=accept-new"]
    # Somebody else's shared connection must not carry, and so delay, the heartbeats.
    settings += ["ControlPath=none", "LogLevel=ERROR"]
    there = agent_command.shell(host, folder, options)
    return ["ssh", "-T", *(f"-o{option}" for option in settings), "--", host.name, there]


def failure(host: HostLine, code: int, said: str, folder: str) -> str:
    """Why there is no agent on ``host``: its command ended with ``code`` and ``said`` this."""
    last = said.strip().rpartition("\n")[2]
    name = host.name
    if code == _SSH:
        return (
            f"{name} cannot be reached by ssh ({last or 'ssh gives no reason'}); "
            f"`ssh -o BatchMode=yes {name} true` must work without a question"
        )
    if (missing := agent_command.lacking(host, code, folder)) is not None:
        return missing
    return f"the agent on {name} ended with code {code} ({last or 'it said nothing'})"
