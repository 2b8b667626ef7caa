"""``spotmpi bench joins``: how many newcomers do not come in, of many, on busy cores.

PMIx's server (5.0) has bugs with clients that go: it hangs at times, or does not see the next one.
So hosts of several workers come to a training, their newcomers join one after the other, the host
is killed, and the next one comes, while other processes keep the cores busy. All agents are on this
machine. Counted are the newcomers that came to train, those that were given up (the launcher says
why, and tries another one), and jobs in which nobody came in any more.

Each ``--variant`` is a setting of the environment, as in "PMIX_MCA_psensor=^file EVENT_NOEPOLL=1";
they are tried by turns, so that all have the same of what else happens on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from spotmpi.bench.join import Job
from spotmpi.bench.measuring import launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.errors import UsageError
from spotmpi.launch import processes
from spotmpi.launch.start import temporary_job

__all__ = ["Count", "add_arguments", "main", "page"]

_PARAMS = 1_000_000
_WORKERS = 2
_NICE = 10


@dataclass
class Count:
    """What became of the newcomers of one variant."""

    variant: str
    seconds: list[float] = field(default_factory=list)
    """From the start of the host until each of its newcomers trains."""
    given_up: list[str] = field(default_factory=list)
    """Why newcomers did not join, though another one was tried."""
    stuck: list[str] = field(default_factory=list)
    """Jobs in which nobody came in any more."""

    @property
    def tried(self) -> int:
        """Newcomers of whom it is known."""
        return len(self.seconds) + len(self.given_up) + len(self.stuck)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the bench."""
    parser.description = __doc__.split("\n\n")[0] if __doc__ else ""
    parser.add_argument(
        "--joins", type=int, default=200, metavar="N", help="newcomers of each variant (200)"
    )
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="newcomers of a host (4)")
    parser.add_argument("--hosts", type=int, default=5, metavar="N", help="hosts of a job (5)")
    parser.add_argument(
        "--busy", type=int, default=4, metavar="N", help="niced processes that compute (4)"
    )
    parser.add_argument(
        "--variant", action="append", default=[], metavar="SETTINGS", help="environment to try"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples to FILE")


def main(options: argparse.Namespace) -> int:
    """Try until there are enough, print the counts, write what was asked for. Blocking."""
    if min(options.joins, options.slots, options.hosts) < 1 or options.busy < 0:
        raise UsageError("--joins, --slots and --hosts are 1 or more, --busy 0 or more")
    head = {"bench": "joins", **machine.describe()}
    counts = [Count(variant) for variant in options.variant or [""]]
    environs = [_settings(count.variant) for count in counts]
    with temporary_job.ended_by_signals(), _busy(options.busy):
        while any(count.tried < options.joins for count in counts):
            for count, environ in zip(counts, environs, strict=True):
                if count.tried < options.joins:
                    _try(count, environ, options.hosts, options.slots)
                    print(_row(count), flush=True)
                    if options.json:  # again and again: it may be ended before it is through
                        results = {**head, "busy": options.busy, "counts": counts}
                        options.json.write_text(json.dumps(results, indent=1, default=asdict))
    print("", *page(counts), sep="\n")
    return 1 if any(count.stuck for count in counts) else 0


def page(counts: list[Count]) -> list[str]:
    """The table."""
    return ["  trained  given up  stuck | median s   max s | variant", *map(_row, counts)]


def _row(count: Count) -> str:
    times = count.seconds or [0.0]
    return (
        f"{len(count.seconds):9} {len(count.given_up):9} {len(count.stuck):6} |"
        f" {median(times):8.1f} {max(times):7.1f} | {count.variant or 'as it is'}"
    )


def _settings(variant: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in variant.split()]
    if not all(name and equals for name, equals, _ in pairs):
        raise UsageError(f"--variant {variant!r} is not of the form NAME=VALUE NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _try(count: Count, environ: dict[str, str], hosts: int, slots: int) -> None:
    """One job, with so many hosts one after the other."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(Path(name), _WORKERS, _PARAMS, environ)
        try:
            job.agent("first", _WORKERS)
            job.until_steps(20)
            for number in range(1, hosts + 1):
                begin = time.monotonic()
                host = job.agent(f"later{number}", slots)
                for joined in range(slots):
                    job.until("has joined", begin, times=(number - 1) * slots + joined + 1)
                    count.seconds.append(time.monotonic() - begin)
                host.kill()
                host.wait()
                job.until(f"on later{number} was revoked", begin, times=slots)
        except JobFailed as failed:
            count.stuck.append(str(failed))
            print(f"STUCK {failed}", flush=True)
        finally:
            count.given_up += re.findall("did not join: (.*)", job.said())
            job.end()


@contextmanager
def _busy(number: int) -> Iterator[None]:
    """Keep the cores busy with processes that matter less than all others."""
    script = launching.SCRIPTS / "load.py"

    def prepare(parent: int) -> None:
        processes.die_with_parent(parent)
        os.nice(_NICE)

    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(one)], preexec_fn=partial(prepare, os.getpid())
        )
        for one in range(number)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
