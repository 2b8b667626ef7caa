"""``spotmpi plan --follow JOB --apply``: hosts are booted, join, and are returned."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.bench.measuring.network import Network

PROFILE = """\
model: ring
name: training
gradient_mb: 0.001
instances:
  node: {workers_per_host: 1, cores: 2, compute_s: 0.1, exchange_s_per_worker: 0, bandwidth_mbps: 9}
"""
COMMAND = """\
#!/bin/sh -e
echo "$@" > {folder}/asked
read answer < {folder}/answer
if [ "$1" = get ]; then
    {python} -m spotmpi grow --host h2 >&2
    echo h2
fi
"""


class Cloud:
    """Boots and ends h2 when the user's command asks it to."""

    def __init__(self, network: Network) -> None:
        self.asked: queue.Queue[str] = queue.Queue()
        self.command = network.folder / "hosts.sh"
        self._network, self._folder = network, network.folder
        self.command.write_text(COMMAND.format(folder=self._folder, python=sys.executable))
        self.command.chmod(0o755)
        self._asked, self._answer = (self._pipe(name) for name in ("asked", "answer"))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _pipe(self, name: str) -> int:
        """Open at both ends, so that nobody waits for another to open it."""
        os.mkfifo(self._folder / name)
        return os.open(self._folder / name, os.O_RDWR)

    def _serve(self) -> None:
        with os.fdopen(os.dup(self._asked)) as lines:
            while (words := lines.readline().strip()) != "end":
                self.asked.put(words)
                if words.startswith("get"):
                    self._network.start("h2")
                else:
                    self._network.kill("h2")
                os.write(self._answer, b"done\n")

    def close(self) -> None:
        os.write(self._asked, b"end\n")
        self._thread.join()
        os.close(self._asked)
        os.close(self._answer)


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "prices.csv").write_text("name,spot,on_demand,start,boot\nnode,1.0,3.0,5s,5s\n")
    (tmp_path / "profile.yaml").write_text(PROFILE)
    asked = {
        "profile": str(tmp_path / "profile.yaml"),
        "prices": str(tmp_path / "prices.csv"),
        "quota": "node:2",
        "deadline": "10h",
        "lifetime": "never",
        "runs": 10,
    }
    file = tmp_path / "cluster.yaml"
    file.write_text(json.dumps({"asked": asked}))
    return file


def test_a_host_is_booted_where_one_is_too_slow_and_returned_where_it_is_enough(
    train, plan: Path
) -> None:
    training = train(2, of=("h1",), work=60).until_step(50)
    cloud = Cloud(training.network)
    try:
        training.network.kill("h2")  # it is yet to boot
        status = training.command("status", "--json")
        assert status.wait() == 0
        job = json.loads(status.output)["job"]
        follow = ("plan", plan, "--follow", job, "--every", "1s")
        watch = training.command(*follow, "--iterations", "1e9", "--apply", cloud.command)
        watch.until("add node:1")
        watch.until("runs your command: get node 1 spot")
        training.job.until("worker 1 on h2 has joined")
        watch.until(r"on node:2; \$")
        assert cloud.asked.get(timeout=60) == "get node 1 spot"
        watch.close()

        # By this profile a second host makes the training hardly faster: one is cheaper.
        slow = plan.with_name("slow.yaml")
        slow.write_text(PROFILE.replace("bandwidth_mbps: 9", "bandwidth_mbps: 0.01"))
        less = ("--iterations", "1e6", "--profile", slow, "--apply", cloud.command)
        few = training.command(*follow, *less)
        few.until("drop node:1")
        few.until("the workers of h2 leave")
        training.job.until("worker 1 on h2 left before step")
        few.until("runs your command: return node spot h2")
        # The command has only begun when the next look is said.
        assert cloud.asked.get(timeout=60) == "return node spot h2"
        few.until(r"on node:1; \$")
        training.finish()
        assert few.wait() in (0, 3)
        assert "the job has ended with code 0" in few.output
        assert cloud.asked.empty()
    finally:
        cloud.close()
