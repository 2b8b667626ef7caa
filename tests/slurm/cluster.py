"""A Slurm cluster of its own: munged and slurmctld on the head of a `Network`, a slurmd a host."""

from __future__ import annotations

import os
import platform
import secrets
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from spotmpi import job_folder
from spotmpi.bench.measuring import network as hosts
from spotmpi.launch import processes
from tests.running import LIMIT, Running
from tests.slurm import cgroups

__all__ = ["Cluster", "missing"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue")
_GRACE = 50
"""Seconds that a preempted job is left, or one that is told to end: enough on a loaded machine."""

_PAUSE = 0.05
"""Seconds between two questions to Slurm."""

_FOR_LEAVING = 5.0
"""Seconds for a daemon to end."""

_CONFIGURATION = """\
ClusterName=spot
SlurmctldHost={head}(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=5
KillWait={kill_wait}
SlurmdParameters=config_overrides
"""


def missing() -> str | None:
    """What keeps clusters from being made here; None if nothing does."""
    if (why := hosts.missing() or cgroups.missing()) is not None:
        return why
    lacking = [program for program in _PROGRAMS if _program(program) is None]
    if lacking:
        packages = "slurmctld, slurmd, slurm-client, munge"
        return f"{', '.join(lacking)} not found: install {packages}"
    return None


class Cluster:
    """Nodes h1, h2, .. of 4 CPUs, all idle. A context manager; ``folder`` takes jobs' files.

    Partition ``spot`` (the default), whose jobs get whole nodes, is preempted by ``demand``. With
    ``notice`` a preempted job gets the signal that it asked for. ``proctrack`` decides who is sent
    SIGTERM: a step's tasks (cgroup, which nearly all sites have) or all its processes (linuxproc);
    ``grace`` (seconds), when a preempted job is killed.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *,
        notice: bool = False,
        proctrack: str = "cgroup",
        grace: int = _GRACE,
    ) -> None:
        self.folder = folder
        self._notice = notice
        self._proctrack = proctrack
        self._grace = grace
        # Of its own, since sockets lie in it: their names are limited to 108 bytes.
        self._home = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._commands: list[Running] = []
        self._network: hosts.Network | None = None
        self._cgroups: cgroups.Cgroups | None = None
        try:
            self._cgroups = cgroups.Cgroups(self._home)
            self._network = hosts.Network(folder, nodes)
            self._configure()
            self._munge()
            self._daemon(*self._network.in_head(_program("slurmctld"), "-D", "-i"))
            for name in self._network.names:
                self._node(name)
            self.await_idle(*self._network.names)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def network(self) -> hosts.Network:
        """Its machines."""
        assert self._network is not None
        return self._network

    @property
    def environ(self) -> dict[str, str]:
        """For commands on the head."""
        path = f"{self.network.environ['PATH']}:/usr/sbin"
        configuration = str(self._home / "slurm.conf")
        # All nodes share this machine's cores.
        own = {"SLURM_CONF": configuration, "OMPI_MCA_mpi_yield_when_idle": "1"}
        return {**self.network.environ, "PATH": path, **own}

    def run(self, *command: object, environ: Mapping[str, str] | None = None) -> str:
        """Run a command on the head, which must succeed, and return what it says."""
        done = subprocess.run(
            self.network.in_head(*command),
            env={**self.environ, **(environ or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def start(self, *command: object, environ: Mapping[str, str] | None = None) -> Running:
        """Start a command on the head; it is ended with the cluster."""
        within = {**self.environ, **(environ or {})}
        self._commands.append(Running(self.network.in_head(*command), self.folder, environ=within))
        return self._commands[-1]

    def await_idle(self, *names: str) -> None:
        """Wait until these nodes can take jobs."""
        self.until(
            lambda: all(self.node(name) == "idle" for name in names), f"{names} are not idle"
        )

    def node(self, name: str) -> str:
        """A node's state, as sinfo has it."""
        return self.run("sinfo", "--noheader", "--nodes", name, "--format=%T").splitlines()[0]

    def submit(self, *words: object, environ: Mapping[str, str] | None = None) -> str:
        """Submit a batch job and return its number; its output is in `output`."""
        return self.run("sbatch", "--parsable", "--output=%j.out", *words, environ=environ)

    def job(self, number: str, what: str) -> str:
        """What Slurm says of a job: JobState, ExitCode, Restarts and so on."""
        shown = self.run("scontrol", "show", "job", "--oneliner", number)
        return next(w for w in shown.split() if w.startswith(f"{what}=")).partition("=")[2]

    def await_job(self, number: str, *states: str) -> None:
        """Wait until a job is in one of these states."""
        self.until(lambda: self.job(number, "JobState") in states, f"job {number}: not {states}")

    def start_soon(self, number: str) -> None:
        """Have a job that was queued again start in two seconds, and not in two minutes.

        Not at once: a node refuses what was issued in the second in which it was told to end it.
        """
        self.run("scontrol", "update", f"JobId={number}", "StartTime=now+2")

    def output(self, number: str) -> str:
        """What a batch job has written so far."""
        file = self.folder / f"{number}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def until(self, condition: Callable[[], bool], complaint: str) -> None:
        """Ask again and again until it is so."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{complaint}\n{self._logs()}")
            select.select([], [], [], _PAUSE)  # Slurm tells nobody: it must be asked

    def lose(self, name: str) -> None:
        """Kill a node with all that runs on it."""
        self.network.kill(name)

    def shared_memory(self, name: str) -> list[str]:
        """The files in a node's /dev/shm."""
        return self.run(*self.network.in_host(name, "ls", "-A", "/dev/shm")).split()

    def close(self) -> None:
        """Remove every trace of it."""
        for command in self._commands:
            command.close()
        for daemon in reversed(self._daemons):
            daemon.terminate()  # so that slurmctld waits for what it has forked
            try:
                daemon.wait(_FOR_LEAVING)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if self._network is not None:
            self._network.close()
        if self._cgroups is not None:
            self._cgroups.close()
        shutil.rmtree(self._home)
        job_folder.remove_abandoned()  # a launcher that was killed with all that would do it

    def _configure(self) -> None:
        home, names = self._home, self.network.names
        for name in ("state", *(f"spool-{name}" for name in names)):
            (home / name).mkdir()
        site = {
            "head": platform.node(),
            "folder": home,
            "proctrack": self._proctrack,
            "kill_wait": _GRACE,
        }
        lines = [_CONFIGURATION.format(**site)]
        if self._notice:
            lines.append("SlurmctldParameters=preempt_send_user_signal\n")
        for name in names:
            address = self.network.address(name)
            lines.append(f"NodeName={name} NodeAddr={address} CPUs=4 RealMemory=1000\n")
        every = ",".join(names)
        spot = f"Default=YES OverSubscribe=EXCLUSIVE PriorityTier=1 GraceTime={self._grace}"
        lines.append(f"PartitionName=spot Nodes={every} {spot}\n")
        lines.append(f"PartitionName=demand Nodes={every} PriorityTier=10 PreemptMode=OFF\n")
        (home / "slurm.conf").write_text("".join(lines))
        # Version 2 needs a systemd; and no file of the machine's own may be read instead.
        (home / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={home}\n")

    def _munge(self) -> None:
        key = self._home / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = (f"--{f}-file={self._home}/munge.{f}" for f in ("key", "pid", "log", "seed"))
        socket = f"--socket={self._home}/munge"
        self._daemon(_program("munged"), "--foreground", "--force", socket, *files)
        self.until((self._home / "munge").exists, "munged has no socket")

    def _node(self, name: str) -> None:
        assert self._cgroups is not None
        slurmd = self._cgroups.within(name, _program("slurmd"), "-D", "-N", name)
        self._daemon(*self.network.in_host(name, *slurmd))

    def _daemon(self, *command: object) -> None:
        self._daemons.append(
            subprocess.Popen(
                list(map(str, command)),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=partial(processes.die_with_parent, os.getpid()),
            )
        )

    def _logs(self) -> str:
        files = [*sorted(self.folder.glob("*.out")), *sorted(self._home.glob("*.log"))]
        said = "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in files)
        return said + "".join(f"\n--- a command\n{c.output}" for c in self._commands)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
