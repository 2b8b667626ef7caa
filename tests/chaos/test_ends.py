"""Workers are killed while others are out of the last build, and want to go: nobody hangs."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from spotmpi.strategies.names import NAMES
from tests.hosts.conftest import network  # noqa: F401
from tests.launch.conftest import start  # noqa: F401
from tests.patience import NEVER_SILENT
from tests.running import Running

SCRIPT = Path(__file__).with_name("ends.py")
WORKERS, FEW = 8, 6
"""Workers of a job; of one that is to be quick."""


class End:
    """One end of `ends.py`: as soon as some workers are out of the last build, some of those who
    are not are killed, and maybe one that is."""

    def __init__(self, folder: Path, seed: int, workers: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._workers = range(workers)
        self._first = self._chance.randint(1, workers - 1)
        """So many are out when others are killed."""
        self.killed: set[int] = set()
        self.left: set[int] = set()
        """Who came out of its block."""
        for name in ("said", *self._workers):
            os.mkfifo(folder / str(name))

    def watch(self) -> None:
        """Until nobody is there any more."""
        within, out = set(self._workers), set[int]()
        with (self._folder / "said").open() as lines:
            for what, worker in map(str.split, lines):
                if what == "gone":
                    self.left.add(int(worker))
                if what == "out":
                    within.discard(int(worker))
                    out.add(int(worker))
                    if len(out) == self._first:
                        self._kill(sorted(within), sorted(out))

    def _kill(self, within: list[int], out: list[int]) -> None:
        dead = self._chance.sample(within, self._chance.randint(1, len(within)))
        if len(out) > 1 and self._chance.random() < 0.25:
            dead.append(self._chance.choice(out))
        for worker in dead:
            with suppress(OSError):  # it has gone by now: that is said, and was not read yet
                os.close(os.open(self._folder / str(worker), os.O_WRONLY | os.O_NONBLOCK))
                self.killed.add(worker)


def comes(
    tmp_path: Path, seed: int, run: Callable[..., Running], workers: int = WORKERS
) -> set[int]:
    """A job in which that happens comes to its end. ``run`` starts it; returns who was killed."""
    (folder := tmp_path / f"end-{seed}").mkdir()
    strategy = [*NAMES][seed % len(NAMES)]
    end = End(folder, seed, workers)
    job = run(SCRIPT, folder, strategy)
    end.watch()
    assert job.wait() == 0, (seed, strategy, end.killed, end.left, job.output)
    assert end.left >= {*range(workers)} - end.killed, (seed, strategy, end.killed, job.output)
    return end.killed


def comes_with_deaths(tmp_path: Path, seed: int, run: Callable[..., Running]) -> None:
    """The same, until somebody was killed: on a busy machine all may be gone before it is tried."""
    while not comes(tmp_path, seed, run, FEW):
        seed += len(NAMES)


@pytest.fixture
def on_hosts(network, tmp_path: Path) -> Iterator[Callable[..., Running]]:  # noqa: F811
    """``on_hosts(workers, script, ..)`` runs it on two hosts."""
    there = network(2)
    with ExitStack() as after:

        def run(workers: int, *script: object) -> Running:
            hosts = there.hosts_file(*(f"{name} slots={workers // 2}" for name in there.names))
            command = (sys.executable, "-m", "spotmpi", "run", "--hosts", hosts, "--no-replace")
            whole = there.in_head(*command, *NEVER_SILENT, *script)
            job = Running(whole, tmp_path, environ=there.environ)
            after.callback(job.close)
            return job

        yield run


@pytest.mark.promise("deaths while others are through with the end")
def test_whoever_dies_while_others_are_through_the_rest_ends_too(start, tmp_path: Path) -> None:  # noqa: F811
    comes_with_deaths(tmp_path, 4, partial(start, "run", "-n", FEW))


@pytest.mark.promise("deaths while others are through with the end, on hosts")
def test_what_is_sent_to_the_dead_of_another_host_keeps_nobody(on_hosts, tmp_path: Path) -> None:
    comes_with_deaths(tmp_path, 1, partial(on_hosts, FEW))


HUNDREDS = [range(first, first + 10) for first in range(0, 150, 10)]


@pytest.mark.campaign
@pytest.mark.parametrize("seeds", HUNDREDS, ids=str)
def test_hundreds_of_ends(start, seeds: range, tmp_path: Path) -> None:  # noqa: F811
    for seed in seeds:
        comes(tmp_path, seed, partial(start, "run", "-n", WORKERS))


@pytest.mark.campaign
@pytest.mark.parametrize("seeds", HUNDREDS, ids=str)
def test_hundreds_of_ends_on_hosts(on_hosts, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        comes(tmp_path, seed, partial(on_hosts, WORKERS))
