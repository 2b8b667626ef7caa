"""Real hosts on one machine: namespaces with addresses, names, pids and shared memory of their own.

Each host is one process tree below an ``unshare``, with an sshd in it: to kill that process revokes
the host, to set its link down cuts it off silently. The head is a namespace as well, so that the
machine's own network is never touched. Needs root, iproute2 and openssh-server.
"""

from __future__ import annotations

import itertools
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

from spotmpi.launch import processes
from spotmpi.launch.start import temporary_job

__all__ = ["Network", "missing"]

_ROOT = Path(sys.modules["spotmpi"].__path__[0]).parent
_BRIDGE = "02:00:00:00:00:01"
"""The link-layer address of the head's bridge; no host has it."""
_numbers = itertools.count()


def missing() -> str | None:
    """What keeps networks from being made here; None if nothing does."""
    if os.geteuid() != 0:
        return "hosts are made by root only"
    lacking = [tool for tool in ("ip", "ssh", "ssh-keygen", "unshare") if not shutil.which(tool)]
    if _sshd() is None:
        lacking.append("sshd")
    if lacking:
        return f"{', '.join(lacking)} not found: install iproute2, openssh-client, openssh-server"
    return None


def run(*command: object) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


class Network:
    """A head and hosts h1, h2, .. on one bridge, with an sshd on each. A context manager.

    ``folder`` takes keys and logs. Everything is gone afterwards, also after SIGKILL once another
    network is made.
    """

    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder = folder
        self._prefix = f"spot{os.getpid()}n{next(_numbers)}"
        self.names = [f"h{number}" for number in range(1, hosts + 1)]
        self._trees: dict[str, subprocess.Popen[bytes]] = {}
        self._spaces: list[str] = []
        try:
            _remove_abandoned()
            self._make_head()
            self._make_keys()
            for name in self.names:
                self.start(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What may happen to it.

    def in_head(self, *command: object) -> list[str]:
        """The command, run on the head."""
        return ["ip", "netns", "exec", self._space("head"), *map(str, command)]

    def in_host(self, name: str, *command: object) -> list[str]:
        """The command, run on a host that is up; it dies with the host."""
        tree = self._trees[name].pid
        (init,) = Path(f"/proc/{tree}/task/{tree}/children").read_text().split()
        spaces = ("--mount", "--uts", "--net", "--pid")
        return ["nsenter", "--target", init, *spaces, *map(str, command)]

    @staticmethod
    def address(name: str) -> str:
        """A host's; the head's is 10.77.0.1."""
        return f"10.77.0.{10 + int(name[1:])}"

    @property
    def environ(self) -> dict[str, str]:
        """For commands on the head: ssh finds the hosts and their key, and Python this spotmpi."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**temporary_job.environment(os.environ), "PATH": path}

    def hosts_file(self, *lines: str) -> Path:
        """A hosts file with these lines."""
        file = self.folder / "hosts"
        file.write_text("".join(f"{line}\n" for line in lines))
        return file

    def kill(self, name: str) -> None:
        """Revoke a host, at once and whole. Blocks until all of its processes are gone."""
        self._end(self._trees[name])

    def link(self, name: str, state: str) -> None:
        """Set a host's link ``up`` or ``down``, at the head's end: the host hears only silence."""
        run("ip", "-n", self._space("head"), "link", "set", f"to-{name}", state)

    def limit(self, rate: str, burst: str = "256kb") -> None:
        """Give every host a link of this rate both ways, as tc says it: ``1gbit``. An idle link
        lets so many bytes of a ``burst`` through at once."""
        shape = ("root", "tbf", "rate", rate, "burst", burst, "latency", "20ms")
        for name in self.names:
            run("tc", "-n", self._space("head"), "qdisc", "add", "dev", f"to-{name}", *shape)
            run("tc", "-n", self._space(name), "qdisc", "add", "dev", "eth0", *shape)

    def rift(self, *pair: str) -> None:
        """Two hosts do not reach each other any more, and notice nothing; the head reaches both."""
        for name, other in (pair, pair[::-1]):
            run(
                *("ip", "-n", self._space(name), "neigh", "replace", self.address(other)),
                *("lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0"),
            )

    def separate(self, *names: str) -> None:
        """Partition: these hosts reach each other, and nobody else does."""
        head = self._space("head")
        run("ip", "-n", head, "link", "add", "apart", "type", "bridge")
        run("ip", "-n", head, "link", "set", "apart", "up")
        for name in names:
            run("ip", "-n", head, "link", "set", f"to-{name}", "master", "apart")

    def stutter(self, seconds: float, *names: str) -> None:
        """Let nothing through between these hosts and all others, for so long.

        As a switch or a hypervisor does that stops for a while: the host's own card notices
        nothing. (If a card loses its carrier the kernel forgets its neighbours, and asks for them
        again only a second after it has asked in vain: no silence is shorter then.)
        """
        away = ["link add away type bridge", "link set away up"]
        away += [f"link set to-{name} master away" for name in names]
        back = [f"link set to-{name} master bridge" for name in names]
        steps = "\n".join(away), "\n".join([*back, "link del away"])
        # In two batches: one command for each host would cut one off for longer than another.
        ip = f"ip -n {self._space('head')} -batch -"
        command = f'echo "$1" | {ip}; sleep {seconds}; echo "$2" | {ip}'
        run("sh", "-ec", command, "stutter", *steps)

    def keep_datagrams(self, name: str) -> None:
        """Let no UDP out of a host any more, as a firewall does; all else goes on."""
        run("ip", "-n", self._space(name), "rule", "add", "ipproto", "udp", "blackhole")

    @staticmethod
    def pause(seconds: float, *processes: int) -> None:
        """Stop processes (SIGSTOP), and so much later let them go on."""
        pids = " ".join(map(str, processes))
        run("sh", "-ec", f"kill -STOP {pids}\nsleep {seconds}\nkill -CONT {pids}")

    def processes(self, name: str, mark: str) -> list[int]:
        """The processes of a host whose command line holds ``mark``."""
        found = []
        for pid in self._below(self._trees[name].pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if mark in words:
                found.append(pid)
        return found

    def start(self, name: str) -> None:
        """Bring up a host, with an sshd that answers."""
        space = self._space(name)
        if space not in self._spaces:
            self._add_space(space)
            head = self._space("head")
            run("ip", "-n", head, "link", "add", f"to-{name}", "type", "veth", "peer", "eth0",
                "netns", space)  # fmt: skip
            run("ip", "-n", head, "link", "set", f"to-{name}", "master", "bridge", "up")
            run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
        shell = (
            f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && mkdir -p /run/sshd && "
            f"echo up && exec {_sshd()} -D -e -f {self.folder}/sshd_config"
        )
        log = (self.folder / f"sshd-{name}.log").open("ab")
        tree = subprocess.Popen(
            ["ip", "netns", "exec", space, "unshare", "--uts", "--pid", "--mount", "--fork",
             "--kill-child", "--mount-proc", "bash", "-c", shell],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=partial(processes.die_with_parent, os.getpid()),
        )  # fmt: skip
        log.close()
        self._trees[name] = tree
        assert tree.stdout is not None
        assert tree.stdout.readline() == b"up\n"
        self._await_ssh(name)

    def close(self) -> None:
        """Remove every trace of it."""
        for tree in self._trees.values():
            self._end(tree)
        for space in self._spaces:
            listed = subprocess.run(
                ["ip", "netns", "pids", space], capture_output=True, timeout=30, check=False
            )
            for pid in listed.stdout.split():  # on the head, which is no tree of its own
                processes.kill(int(pid))
            subprocess.run(["ip", "netns", "del", space], check=False, timeout=30)

    # Its making.

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _add_space(self, space: str) -> None:
        run("ip", "netns", "add", space)
        self._spaces.append(space)
        run("ip", "-n", space, "link", "set", "lo", "up")

    def _make_head(self) -> None:
        head = self._space("head")
        self._add_space(head)
        # It would take the address of one of its ports. If that port is then moved to another
        # bridge (`stutter`, `separate`), what its host sends to the head would still come in there.
        run("ip", "-n", head, "link", "add", "bridge", "address", _BRIDGE, "type", "bridge")
        run("ip", "-n", head, "addr", "add", "10.77.0.1/24", "dev", "bridge")
        run("ip", "-n", head, "link", "set", "bridge", "up")

    def _make_keys(self) -> None:
        for key in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key)
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/user.pub\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nUseDNS no\n"
            f"SetEnv PYTHONPATH={_ROOT} TMPDIR={tempfile.gettempdir()} OMP_NUM_THREADS=1"
            " OMPI_MCA_mpi_yield_when_idle=1\n"  # all hosts share this machine's cores
        )
        (self.folder / "ssh_config").write_text(
            f"IdentityFile {self.folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile /dev/null\n"
            + "".join(f"Host {n}\n  HostName {self.address(n)}\n" for n in self.names)
        )
        ssh = self.folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)

    def _await_ssh(self, name: str) -> None:
        for _ in range(50):
            done = subprocess.run(
                self.in_head("ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=no", name, "true"),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=30,
            )
            if done.returncode == 0:
                return
        raise RuntimeError(f"{name} does not answer: {done.stderr.decode()}")

    def workers(self, name: str) -> list[int]:
        """The processes of a host's workers: what wrappers have forked."""
        wrappers = set(self.processes(name, "wrapper.py"))
        return [pid for pid in wrappers if _parent(pid) in wrappers]

    def _end(self, tree: subprocess.Popen[bytes]) -> None:
        if tree.returncode is not None:
            return
        # The host's first process dies with its parent, and all others with it. On a busy machine
        # that takes long enough for a training to end.
        first = [os.pidfd_open(pid) for pid in self._below(tree.pid)[1:2]]
        tree.kill()
        tree.wait()
        for gone in first:
            select.select([gone], [], [])
            os.close(gone)
        assert tree.stdout is not None
        tree.stdout.close()

    def _below(self, pid: int) -> list[int]:
        found = [pid]
        for one in found:
            with suppress(OSError):  # it has ended meanwhile
                for file in Path(f"/proc/{one}/task").glob("*/children"):
                    found += map(int, file.read_text().split())
        return found


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _parent(pid: int) -> int:
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def _remove_abandoned() -> None:
    """Remove the namespaces of runs that were killed."""
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, timeout=30, check=True
    )
    for space in re.findall(r"^spot\d+n\S+", listed.stdout, re.MULTILINE):
        owner = re.match(r"spot(\d+)n", space)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            subprocess.run(["ip", "netns", "del", space], check=False, timeout=30)
