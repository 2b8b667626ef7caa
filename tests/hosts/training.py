"""The training of these tests: it lasts until a test has seen what it wanted to see."""

from __future__ import annotations

import sys

from spotmpi.bench.measuring.network import Network
from spotmpi.trace.records import read
from tests import learning
from tests.patience import NEVER_SILENT
from tests.running import Running


class Training:
    """On the hosts of a network, or on those that are named; ``slots`` workers on each.

    Each computes its gradients ``work`` times over. ``hurried``: limits are over soon. A host may
    be silent for ever, unless ``options`` say something else.
    """

    def __init__(
        self,
        network: Network,
        *options: object,
        of: tuple[str, ...] = (),
        slots: int = 1,
        work: int = 1,
        hurried: bool = False,
    ) -> None:
        self.network = network
        self.trace = network.folder / "trace.jsonl"
        self._running: list[Running] = []
        hosts = network.hosts_file(*(f"{name} slots={slots}" for name in of or network.names))
        self.job = self.command(
            *("run", "--hosts", hosts, "--trace", self.trace, *NEVER_SILENT),
            *(*options, learning.SCRIPT, work),
            program="tests.hurried" if hurried else "spotmpi",
        )

    def command(self, *arguments: object, program: str = "spotmpi") -> Running:
        """A command on the head."""
        command = self.network.in_head(sys.executable, "-m", program, *arguments)
        self._running.append(Running(command, self.network.folder, environ=self.network.environ))
        return self._running[-1]

    @property
    def steps(self) -> int:
        """In the trace so far."""
        return learning.steps(self.trace)

    @property
    def causes(self) -> dict[int, str]:
        """Why workers are gone, by the trace."""
        told = [record for record in read(self.trace) if record["event"] == "cause"]
        return {record["worker"]: record["cause"] for record in told}

    def until_step(self, step: int) -> Training:
        """Wait until the trace has so many."""
        while self.steps < step:
            assert self.job.alive, f"{self.job.wait()}: {self.job.output}"
        return self

    def go_on(self) -> Training:
        """Wait for a hundred steps more."""
        return self.until_step(self.steps + 100)

    def finish(self) -> int:
        """Let it end after this pass over the data, and return its exit code.

        No pass ends without those who have to take part in it: a worker that is not known to be
        lost is still waited for.
        """
        (self.network.folder / "enough").touch()
        return self.job.wait()

    def check(self, *survivors: int) -> None:
        """They finish, with equal replicas; every sample counted once in each pass."""
        assert self.finish() == 0, self.job.output
        learning.check(self.job.output, self.trace, survivors)

    def close(self) -> None:
        """Let go of all commands."""
        for running in self._running:
            running.close()
