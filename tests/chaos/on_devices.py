"""Trainings on arrays of a device in which workers die: what is done, and what must come of it.

The tests beside this run them on a device that is none, those in tests/gpu on a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos.test_revocations import HERE, TIMEOUT, Job


class Case(NamedTuple):
    """A training."""

    workers: int
    revoked: Sequence[str] = ()
    chaos: str = ""
    args: Sequence[str] = ()
    plane: str = "Node"
    strategy: str = "ssgd"


CASES = {
    "the first of four die one after the other": Case(4, ["0@6", "1@12", "2@18"]),
    "gradients are computed in place": Case(4, ["0@6"], "2:Rebuild:1", ["--in-place", "--late"]),
    "gradients come one by one": Case(4, (), "2:Start:15,0:Send:2", ["--pieces", "--late"]),
    "some go on by the record of others": Case(4, ["1@9"], "3:Share:1", ["--late"]),
    "hosts die, and parts of them": Case(5, ["1,2@10", "4@20"], plane="Hosts"),
    "sums are narrowed between hosts": Case(
        5, ["2@12"], "3:Rebuild:1", ["--late"], "Hosts", "narrowly"
    ),
    "sums would be narrowed if there were hosts": Case(3, ["1@5"], strategy="narrowly"),
    "pieces travel between hosts": Case(5, (), "1:Proceed:5,3:Rebuild:1", ["--pieces"], "Hosts"),
}


def check(case: Case, library: str, run_spotmpi: Callable[..., object], path: Path) -> None:
    """Run it with arrays of this library; all that holds of NumPy's holds of them, to the bit."""
    options = [part for one in case.revoked for part in ("--revoke", one)]
    program = [HERE / "script.py", "--passes", "3", "--wide", "--plane", case.plane]
    program += ["--arrays", library, "--strategy", case.strategy]
    done = run_spotmpi(
        ["run", "-n", str(case.workers), *options, "--trace", path, *program, *case.args],
        timeout=TIMEOUT,
        env={"CHAOS": case.chaos},
    )
    job = Job(done, path, 3, wide=True)
    job.check(case.strategy)
    dead = {int(worker) for one in case.revoked for worker in one.split("@")[0].split(",")}
    may_be_dead = {int(death.split(":")[0]) for death in case.chaos.split(",") if death}
    everybody = set(range(case.workers))
    assert everybody - dead - may_be_dead <= job.survivors <= everybody - dead
