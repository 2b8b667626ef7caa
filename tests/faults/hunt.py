"""What finds a fault: each gets a copy of the checkout, and pytest runs there.

A test finds it if it fails, and does not fail in a copy without any fault. A run that does not come
to its end finds it too, whatever test it was in.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from spotmpi import job_folder
from tests.faults.planted import Fault

GRACE = 20.0
"""Seconds in which a run that is cut off may clean up, if it is not isolated."""


class Run(NamedTuple):
    """What came of the tests in one copy."""

    ended: bool
    seconds: Counter[str]
    """Of each test."""
    failed: set[str]


class Copy:
    """A copy of the checkout, in which pytest runs until `end`."""

    def __init__(
        self, root: Path, files: Sequence[str], fault: Fault | None, pytest: Sequence[str], at: Path
    ) -> None:
        """``at``: a folder that no other copy has meanwhile. What Numba has compiled stays there,
        and serves the next copy."""
        self.fault, self.at, self.began = fault, at, time.monotonic()
        self._copy, self._temporary, self._report = at / "copy", at / "tmp", at / "report.xml"
        self._temporary.mkdir(parents=True, exist_ok=True)
        for name in files:
            (self._copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, self._copy / name, follow_symlinks=False)
        if fault is not None:
            text = (self._copy / fault.file).read_text()
            (self._copy / fault.file).write_text(text.replace(fault.old, fault.new))
        given = ["-o", "junit_family=xunit1", f"--junit-xml={self._report}", *pytest]
        folders = {"TMPDIR": self._temporary, "PYTEST_DEBUG_TEMPROOT": self._temporary}
        folders |= {"PYTHONPATH": self._copy, "NUMBA_CACHE_DIR": at / "numba"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        # Jobs of the same name may run in two copies at a time.
        alone = root / ".ci" / "alone"
        self._isolated = os.geteuid() == 0 and alone.exists()
        python = [str(alone)] if self._isolated else [sys.executable]
        with (at / "output").open("wb") as output:
            self._pytest = subprocess.Popen(
                [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *given],
                cwd=self._copy,
                env=os.environ | {name: str(at) for name, at in folders.items()} | {"PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.over = os.pidfd_open(self._pytest.pid)
        """Can be read once pytest has ended."""

    def end(self) -> Run:
        """What came of it. If it still runs it is cut off; nothing of it stays but its output."""
        os.close(self.over)
        if not self._isolated:  # else its namespaces end with it, and what its tests have made
            self._pytest.terminate()  # tests/conftest.py then removes what its tests have made
            with suppress(subprocess.TimeoutExpired):
                self._pytest.wait(GRACE)
        while found := [*self._processes()]:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        code = self._pytest.wait()
        job_folder.remove_abandoned()
        run = Run(code in (0, 1) and self._report.exists(), Counter(), set())
        if self._report.exists():
            for case in ElementTree.parse(self._report).iter("testcase"):
                name = f"{case.get('file', '')}::{case.get('name')}"
                run.seconds[name] += float(case.get("time", 0))
                if case.find("failure") is not None or case.find("error") is not None:
                    run.failed.add(name)
            self._report.unlink()
        shutil.rmtree(self._copy)
        shutil.rmtree(self._temporary, ignore_errors=True)
        return run

    def _processes(self) -> Iterator[int]:
        """All that it has started: their environment tells."""
        mark = f"\0TMPDIR={self._temporary}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in b"\0" + (entry / "environ").read_bytes():
                    yield int(entry.name)


def hunt(
    root: Path,
    files: Sequence[str],
    faults: Sequence[Fault],
    pytest: Sequence[str],
    limit: float,
    jobs: int,
    tell: Callable[[str], None],
) -> list[Run]:
    """The run without a fault, and one with each of them. ``files``: what is copied of ``root``,
    links as links. ``limit``: seconds of a run; ``jobs``: runs at a time. Raises SystemExit if the
    tests do not end without a fault or, with ``-x``, if one of them fails."""
    waiting = [None, *faults]
    done: dict[Fault | None, Run] = {}
    running: dict[int, Copy] = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        places = [Path(scratch, str(number)) for number in range(jobs)]
        try:
            while waiting or running:
                while waiting and places:
                    copy = Copy(root, files, waiting.pop(0), pytest, places.pop())
                    running[copy.over] = copy
                left = min(copy.began for copy in running.values()) + limit - time.monotonic()
                over, _, _ = select.select(running, [], [], max(0.0, left))
                for copy in [*running.values()]:
                    if copy.over not in over and time.monotonic() < copy.began + limit:
                        continue
                    del running[copy.over]
                    run = done[copy.fault] = copy.end()
                    places.append(copy.at)
                    # With -x a test that fails in any case would end each run.
                    if copy.fault is None and (not run.ended or ("-x" in pytest and run.failed)):
                        said = (copy.at / "output").read_text(errors="replace")[-2000:]
                        what = "all pass" if run.ended else "end"
                        raise SystemExit(f"without a fault the tests do not {what}:\n{said}")
                    tell(f"{copy.fault.name if copy.fault else 'no fault'}: {_said(run)}")
        finally:
            for copy in running.values():
                copy.end()
    return [done[None], *map(done.__getitem__, faults)]


def _said(run: Run) -> str:
    lines = [f"{len(run.seconds)} tests took {run.seconds.total():.0f} s"]
    lines += ["the run did not end"] * (not run.ended)
    lines += [f"failed in {run.seconds[name]:.2f} s: {name}" for name in sorted(run.failed)]
    return "\n  ".join(lines)


def compared(faults: Sequence[Fault], runs: Sequence[Run]) -> dict[str, Any]:
    """What `hunt` came to, as JSON has it: of each fault the tests that find it and their seconds,
    the cheapest one first; the ``missed`` ones; the seconds of modules of tests, and which of them
    are in ``vain``: they find nothing that a cheaper one does not find too."""
    sound, *planted = runs
    found, finds, modules = {}, {}, Counter[str]()
    for fault, run in zip(faults, planted, strict=True):
        tests = sorted(run.failed - sound.failed, key=run.seconds.__getitem__)
        cost = {name: run.seconds[name] for name in tests}
        found[fault.name] = {"of": fault.of, "file": fault.file, "ended": run.ended, "tests": cost}
        finds[fault.name] = {_module(name) for name in tests}
    for name, took in sound.seconds.items():
        modules[_module(name)] += took
    vain, known = {}, set[str]()
    for module, took in sorted(modules.items(), key=lambda one: one[1]):
        new = {name for name, where in finds.items() if module in where} - known
        known |= new
        if not new:
            vain[module] = took
    missed = [name for name, one in found.items() if one["ended"] and not one["tests"]]
    return {"faults": found, "missed": missed, "modules": modules, "vain": vain}


def table(known: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{'fault':<66} tests  seconds  the cheapest"]
    for name, one in known["faults"].items():
        cheapest, took = next(iter(one["tests"].items()), ("", 0.0))
        end = "" if one["ended"] else "the run did not end  "
        lines.append(f"{name:<66} {len(one['tests']):5} {took:8.2f}  {end}{cheapest}")
    lines += ["", "Found by nothing:", *(f"  {name}" for name in known["missed"])]
    if "vain" in known:
        lines += ["", "Modules that find nothing that a cheaper one does not find too:"]
        lines += [f"  {took:8.2f} s  {name}" for name, took in known["vain"].items()]
    return "\n".join(lines)


def _module(test: str) -> str:
    return test.partition("::")[0]
