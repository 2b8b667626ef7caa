"""Slurm: which nodes this job has been given, and how an agent is started on each of them.

An agent is one step of one task on one node, beside whatever else the job runs there. Slurm's own
word on a step is never relied on: `srun` notices the loss of a node after half a minute, and calls
it a success; the trunk notices it at once.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotmpi.errors import UsageError
from spotmpi.launch.start import agent_command
from spotmpi.launch.start.hosts_file import HostLine

__all__ = ["Allocation", "find", "hosts", "inside", "tasks"]

_FOR_NAMES = 30.0
"""Seconds for scontrol to spell out the nodes' names: it asks nobody."""

_STEP = (
    # The trunk needs its bytes as they are, as soon as they are there.
    *("--unbuffered", "--input=all", "--output=all", "--error=all"),
    *("--overlap", "--mpi=none", "--export=ALL", "--cpu-bind=none"),
    *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
    *("--no-kill", "--kill-on-bad-exit=0", "--wait=0"),
)

_OF_TASKS = (
    # What the job says of its tasks: an agent would get the cores and GPUs of one task for all of
    # its workers.
    *("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET"),
    *("SLURM_NTASKS_PER_TRES", "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_THREADS_PER_CORE"),
    *("SLURM_CORE_SPEC", "SLURM_EXACT", "SLURM_EXCLUSIVE"),
    # It would write a number before each line of the trunk.
    "SLURM_LABELIO",
)


@dataclass(frozen=True)
class Allocation:
    """The nodes of the Slurm job that this process runs in; a `agent_command.Way` to them."""

    job: str
    hosts: tuple[HostLine, ...]

    @property
    def ends_by_itself(self) -> bool:
        """It ends with its agent, which ends at the end of its input.

        If srun was killed, Slurm would kill the step, and the agent could not clear up.
        """
        return True

    def command(self, host: HostLine, folder: str, options: Sequence[str] = ()) -> list[str]:
        """The command whose input and output lead to a new agent of ``host``, run in ``folder``.

        ``options`` are more of ``spotmpi agent``'s.
        """
        without = [word for name in _OF_TASKS for word in ("-u", name)]
        step = ["srun", f"--jobid={self.job}", f"--nodelist={host.name}", *_STEP]
        return [
            "env",
            *without,
            *step,
            "--",
            "sh",
            "-c",
            agent_command.shell(host, folder, options),
        ]

    def failure(self, host: HostLine, code: int, said: str, folder: str) -> str:
        """Why there is no agent on ``host``: its step ended with ``code`` and ``said`` this."""
        if (missing := agent_command.lacking(host, code, folder)) is not None:
            return missing
        last = "; ".join(said.strip().splitlines()[-3:])  # it gives the reason first
        return (
            f"no agent could be started on {host.name} by srun ({last or 'it said nothing'}, "
            f"code {code}); `srun --overlap --jobid={self.job} -N1 -n1 -w {host.name} true` must "
            "work in this job"
        )

    def __str__(self) -> str:
        workers = sum(host.slots for host in self.hosts)
        nodes = ", ".join(f"{host.name} {host.slots}" for host in self.hosts)
        return f"job {self.job}: {workers} workers ({nodes})"


def inside(environ: Mapping[str, str]) -> bool:
    """Whether this process runs in a Slurm job. Pure."""
    return bool(environ.get("SLURM_JOB_ID"))


def find(environ: Mapping[str, str]) -> Allocation:
    """The nodes of the job that this process runs `inside`.

    Blocking, for some milliseconds. Raises UsageError for what cannot be understood.
    """
    copies = environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if copies != "1":
        raise UsageError(
            f"srun has started this command {copies} times; start it once, without srun: it "
            "starts what it needs on each node by itself"
        )
    job = environ["SLURM_JOB_ID"]
    nodes = environ.get("SLURM_JOB_NODELIST")
    counts = environ.get("SLURM_TASKS_PER_NODE")
    if not nodes or not counts:
        raise UsageError(
            f"Slurm job {job} does not say on which nodes it runs how many tasks "
            "(SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE): give -n N or --hosts FILE"
        )
    return Allocation(job, hosts(_spell_out(nodes), counts))


def hosts(names: Sequence[str], counts: str) -> tuple[HostLine, ...]:
    """A host for each node, with a worker for each task. Pure. Raises UsageError."""
    slots = tasks(counts)
    if len(slots) != len(names):
        raise UsageError(
            f"SLURM_TASKS_PER_NODE={counts} is about {len(slots)} nodes, but the job has "
            f"{len(names)} ({' '.join(names)}): give -n N or --hosts FILE"
        )
    return tuple(HostLine(name, slots=count) for name, count in zip(names, slots, strict=True))


def tasks(counts: str) -> list[int]:
    """What ``2(x3),1`` stands for: tasks on each node, here 2, 2, 2, 1. Pure. Raises UsageError."""
    result: list[int] = []
    for part in counts.split(","):
        found = re.fullmatch(r"([1-9]\d{0,5})(?:\(x([1-9]\d{0,5})\))?", part, re.ASCII)
        if found is None:
            raise UsageError(
                f"SLURM_TASKS_PER_NODE={counts} is not understood, it should be like 2(x3),1: "
                "give -n N or --hosts FILE"
            )
        result += [int(found[1])] * int(found[2] or 1)
    return result


def _spell_out(nodes: str) -> list[str]:
    # Only Slurm knows all that may stand in brackets.
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_FOR_NAMES,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else "no answer"
        raise UsageError(
            f"`{' '.join(command)}` cannot be run ({why}): have Slurm's commands on PATH, or give "
            "-n N or --hosts FILE"
        ) from error
    names = done.stdout.split()
    if done.returncode != 0 or not names:
        raise UsageError(
            f"`{' '.join(command)}` names no node ({done.stderr.strip() or 'it said nothing'}): "
            "give -n N or --hosts FILE"
        )
    return names
