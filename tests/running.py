"""A command that is watched while it runs."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

LIMIT = 60.0
"""Seconds that anything that is waited for may take, on a loaded machine."""


def unnamed(output: str) -> str:
    """What workers wrote, without the names that stand before their lines."""
    return re.sub(r"^\[\d+\] ", "", output, flags=re.MULTILINE)


class Running:
    """A ``spotmpi`` command that runs. Its output is read as the test asks for it."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        ignore: Sequence[int] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        def set_up() -> None:
            for number in ignore:
                signal.signal(number, signal.SIG_IGN)

        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=set_up,
        )
        self.pid = self._process.pid
        self.output = ""

    def until(self, pattern: str, times: int = 1) -> list[re.Match[str]]:
        """Read on until the output has ``times`` matches of ``pattern``; return them."""
        deadline = time.monotonic() + LIMIT
        while True:
            found = list(re.finditer(pattern, self.output, re.MULTILINE))
            if len(found) >= times:
                return found
            if not self._read(deadline):
                pytest.fail(f"{pattern!r} did not come {times} times:\n{self.output}")

    @property
    def alive(self) -> bool:
        """Whether the command still runs; what it has said by now is read."""
        assert self._process.stdout is not None
        while select.select([self._process.stdout.fileno()], [], [], 0.02)[0]:
            if not self._read(time.monotonic() + LIMIT):
                break
        return self._process.poll() is None

    def stop_reading(self) -> None:
        """Close the reading end of the output."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait(self) -> int:
        """Read on to the end of the output, and return the command's exit code."""
        deadline = time.monotonic() + LIMIT
        assert self._process.stdout is not None
        while not self._process.stdout.closed and self._read(deadline):
            pass
        try:
            return self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {LIMIT} s:\n{self.output}")

    def children(self, of: int) -> list[int]:
        """The process ids of a process's children, from the kernel."""
        found: list[int] = []
        with suppress(OSError):  # it has ended meanwhile
            for file in Path(f"/proc/{of}/task").glob("*/children"):
                found += map(int, file.read_text().split())
        return found

    def started(self, program: str) -> int:
        """A process below the command whose own command line matches, once there is one."""
        while True:
            found = [self.pid]
            for pid in found:
                found += self.children(pid)
                with suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                    if pid != self.pid and re.search(program, words):
                        return pid
            assert self.alive, self.wait()

    @property
    def mpirun(self) -> int:
        """mpirun's process id."""
        return self._child("prterun", "mpirun")

    @property
    def agent(self) -> int:
        """The process id of the agent on the launcher's own host."""
        return self._child("agent")

    def _child(self, *words: str) -> int:
        """The launcher's child that has one of these words in its command line."""
        (pid,) = (
            pid
            for pid in self.children(self.pid)
            if {Path(word).name for word in self.command_line(pid)}.intersection(words)
        )
        return pid

    def command_line(self, pid: int) -> list[str]:
        """The words that a process was started with."""
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")

    @property
    def wrappers(self) -> list[int]:
        """The wrappers' process ids."""
        children = self.children(self.agent)
        return [pid for pid in children if any("wrapper.py" in w for w in self.command_line(pid))]

    @property
    def stand_ins(self) -> list[int]:
        """The process ids of what mpirun started."""
        return self.children(self.mpirun)

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self.stop_reading()

    def _read(self, deadline: float) -> bool:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            pytest.fail(f"nothing came for {LIMIT} s:\n{self.output}")
        data = os.read(descriptor, 1 << 16)
        self.output += data.decode(errors="replace")
        return bool(data)
