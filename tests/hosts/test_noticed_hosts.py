"""Hosts that are taken away after a word of warning, over ssh."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.bench.network import Network
from tests.running import Running

SCRIPT = Path(__file__).parent.parent / "chaos" / "script.py"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_host_s_notice_reaches_the_user_before_the_host_goes(
    network: Callable[[int], Network], number: signal.Signals
) -> None:
    there = network(2)
    hosts = there.hosts_file("h1 slots=2", "h2 slots=2")
    trace = there.folder / "trace.jsonl"
    command = there.in_head(
        *(sys.executable, "-m", "spotmpi", "run", "--hosts", hosts, "--notice", "auto"),
        *("--trace", trace, SCRIPT, "--passes", 60),
    )
    running = Running(command, there.folder, environ=there.environ)
    try:
        while not trace.exists() or trace.read_text().count('"step"') < 20:
            assert running.alive, running.output
        (agent,) = there.processes("h2", "--pipe")
        os.kill(agent, number)
        running.until(rf"^spotmpi: host h2 is to be taken away soon \({number.name}\)$")
        there.kill("h2")
        assert running.wait() == 0, running.output
        assert "worker 2 on h2 was revoked (host h2 was lost" in running.output
        finals = [line for line in running.output.splitlines() if "FINAL" in line]
        assert len(finals) == 2
    finally:
        running.close()
