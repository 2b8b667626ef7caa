"""A job of a bench on hosts that are made for it on this machine, of one script."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotmpi.bench.measuring import launching
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.network import Network
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job

__all__ = ["UNLIMITED", "check_rate", "needed", "times_of"]

UNLIMITED = "unlimited"
"""In the place of a rate: nothing limits the links."""

_BITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
_TO_END = 10.0
"""Seconds that a job gets to end by itself, once it has been told to."""


def check_rate(rate: str) -> None:
    """UsageError for what is no rate."""
    if rate != UNLIMITED and not re.fullmatch(r"\d+[kmg]?bit", rate):
        raise UsageError(f"--rates: {rate} is no rate; write 1gbit, or unlimited")


def needed(hosts: int, rate: str, size: int) -> float:
    """Seconds that the line needs for the sum of so many bytes over so many hosts: no all-reduce
    sends less than 2 (n - 1) / n of them over each link."""
    number, unit = re.fullmatch(r"(\d+)([kmg]?)bit", rate).groups()  # type: ignore[union-attr]
    return 2 * (hosts - 1) / hosts * size * 8 / (float(number) * _BITS[unit])


def times_of(
    workers: Sequence[int],
    rate: str,
    script: str,
    arguments: Sequence[object],
    limit: float,
    options: Sequence[str] = (),
) -> Any:
    """What ``script`` of this folder has written, as JSON, to the file that is its first argument:
    a job with so many workers on each host. ``options``: further ones of ``spotmpi run``. Raises
    JobFailed; leaves nothing behind."""
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder), len(workers)) as network:
        if rate != UNLIMITED:
            network.limit(rate)
        file = network.folder / "times.json"
        slots = zip(network.names, workers, strict=True)
        hosts_file = network.hosts_file(*(f"{name} slots={count}" for name, count in slots))
        command = network.in_head(
            *(sys.executable, "-m", "spotmpi", "run", "--hosts", hosts_file),
            *(*launching.NOBODY_SILENT, *options, launching.SCRIPTS / script, file, *arguments),
        )
        end, environ = signal.SIGTERM, network.environ
        with temporary_job.started(
            command, environ, network.folder, end=end, patience_s=_TO_END
        ) as (process, said):
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                last = temporary_job.last_words(said)
                raise JobFailed(
                    f"still runs after {limit:.0f} s; its last words:\n{last}"
                ) from None
            if code != 0:
                last = temporary_job.last_words(said)
                raise JobFailed(f"ended with code {code}; its last words:\n{last}")
        return json.loads(file.read_text())
