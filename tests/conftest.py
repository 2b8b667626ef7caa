"""pytest support: a clean environment, nothing left behind, no silent skips, ``run_spotmpi``.

What it adds to every test:

* The environment: one thread for each process, no ``SPOTMPI_*`` of the caller, no notices from a
  cloud that CI may run in, the checkout importable from any folder, and a private ``TMPDIR`` for
  whatever the test starts.
* After the test, :func:`nothing_left_behind`: a process, a shared-memory file, a temporary file or
  a network namespace that the test left is an error, and is removed so that the next test starts
  clean.
* What was left out, and why, is said in one line. With ``SPOTMPI_NO_SKIPS=1`` (CI) a run that
  skipped a test fails.
* ``SPOTMPI_FAILURES=FILE`` (CI): what failed, and whether it had started processes, is written
  there, for .ci/again.py.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import hypothesis
import pytest

from tests import promises

ROOT = Path(__file__).resolve().parent.parent
SHM = Path("/dev/shm")
SPACES = Path("/run/netns")
GRACE = 60.0
"""Seconds in which what a test has ended may finish dying: busy cores need some. It takes no longer
than the dying does."""

NO_SKIPS = os.environ.get("SPOTMPI_NO_SKIPS") == "1"
FAILURES = os.environ.get("SPOTMPI_FAILURES")
for name in [name for name in os.environ if name.startswith("SPOTMPI_")]:
    del os.environ[name]
# CI may run in a cloud, which is none of a test's business unless the test asks for it.
os.environ["SPOTMPI_NOTICE"] = "none"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"  # two cores, up to sixteen workers
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Many containers set it. Then each of a thousand processes would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Under nohup, or in a script's background, signals are ignored, and children inherit that.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _cut_off(number: int, frame: FrameType | None) -> None:
    """Who is cut off (`timeout`, a CI service) ends by its fixtures, which leave nothing behind,
    and gives nobody time to die."""
    global GRACE
    GRACE = 1.0
    signal.default_int_handler(number, frame)


signal.signal(signal.SIGTERM, _cut_off)

# pytest keeps its own folders (tmp_path) where they always are, for a look after a failure.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
PRIVATE_TMP = Path(tempfile.mkdtemp(prefix="spotmpi-"))
os.environ["TMPDIR"] = tempfile.tempdir = str(PRIVATE_TMP)

# Every process started from here inherits this, however often it is reparented: the private
# folder's name, which no other run has.
MARK = f"TMPDIR={PRIVATE_TMP}".encode()

hypothesis.settings.register_profile(
    "spotmpi",
    deadline=None,  # machines are shared and noisy; hangs are faulthandler_timeout's business
    max_examples=40,  # all tests are to take ten minutes; without CI each run draws others
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("spotmpi")


def pytest_configure() -> None:
    """Refuse a tree whose symlinks got lost (some zip tools): imports would fail one by one."""
    lost = [n for n in ("bench", "jobs", "kernels") if not (ROOT / "spotmpi" / n).is_dir()]
    if lost:
        repair = " ".join(f"../{n}" for n in lost)
        raise pytest.UsageError(
            f"this copy of the project lost its symlinks {', '.join(f'spotmpi/{n}' for n in lost)}"
            f"; restore them: (cd spotmpi && ln -sfn -t . {repair})"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what is only one more combination to the matrix, before marks choose."""
    promises.sort(items)


def pytest_collection_finish() -> None:
    """Keep what was imported out of the collector's way: it is there to the end, and to walk it
    takes a fifth of a second each time. Let it walk the rest seldom, too."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_unconfigure() -> None:
    """Remove the private temporary folder."""
    shutil.rmtree(PRIVATE_TMP, ignore_errors=True)


# --- nothing is left behind ---------------------------------------------------------------------


def _pids() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def _status(pid: int) -> tuple[str, int] | None:
    """State letter and parent of ``pid``; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent, *_ = stat.rpartition(")")[2].split()
    return state, int(parent)


def _is_ours(pid: int) -> bool:
    """Whether a live process comes from this one.

    It carries our mark, or (forked without exec, it has our own first environment) it descends
    from us or is in our process group.
    """
    try:
        if MARK in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
        if os.getpgid(pid) == os.getpgid(0):
            return True
    except OSError:
        return False
    ancestor = pid
    while ancestor > 1:
        status = _status(ancestor)
        if status is None:
            return False
        ancestor = status[1]
        if ancestor == os.getpid():
            return True
    return False


def _started_since(before: set[int]) -> list[int]:
    """Our processes that were not there ``before`` and run (zombies hold nothing)."""
    found = []
    for pid in _pids() - before - {os.getpid()}:
        status = _status(pid)
        if status is not None and status[0] not in "ZX" and _is_ours(pid):
            found.append(pid)
    return found


def _wait_for_end(pids: Sequence[int], seconds: float) -> None:
    """Block until all ``pids`` have ended, at most ``seconds``."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            os.close(fd)


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    _wait_for_end(pids, GRACE)


def _describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        command = "(ended meanwhile)"
    return f"process {pid}: {command[:300]}"


def _shared_memory() -> set[str]:
    return set(os.listdir(SHM)) if SHM.is_dir() else set()


def _spaces() -> set[str]:
    return set(os.listdir(SPACES)) if SPACES.is_dir() else set()


def _in_use(names: set[str]) -> set[str]:
    """Those of ``names`` in /dev/shm that a live process maps or holds open.

    After the test's own processes have ended these belong to another run on this machine.
    """
    used: set[str] = set()
    for pid in _pids():
        holds = ""
        with contextlib.suppress(OSError):
            holds = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    holds += f"{fd.readlink()}\n"
        used.update(name for name in names if f"{SHM}/{name}" in holds)
    return used


def _of_others(space: str) -> bool:
    """Whether a network namespace is of a live process of another run on this machine."""
    maker = re.match(r"spot(\d+)n", space)  # as `spotmpi.bench.measuring.network` names them
    if maker is None:
        return False
    pid = int(maker[1])
    return pid != os.getpid() and _status(pid) is not None and not _is_ours(pid)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """An error for whatever the test left: processes, shared memory, temporary files, networks."""
    processes, shared, spaces = _pids(), _shared_memory(), _spaces()
    yield
    _wait_for_end(_started_since(processes), GRACE)
    running = _started_since(processes)
    left = [_describe(pid) for pid in running]
    _kill(running)
    if files := _shared_memory() - shared:
        # Another run's may have come and gone meanwhile: those that are gone are nobody's.
        for name in sorted((files - _in_use(files)) & _shared_memory()):
            left.append(f"shared memory {SHM / name}")
            _remove(SHM / name)
    for path in sorted(PRIVATE_TMP.iterdir()):
        left.append(f"temporary {path.name}")
        _remove(path)
    for name in sorted(one for one in _spaces() - spaces if not _of_others(one)):
        left.append(f"network namespace {name}")
        subprocess.run(["ip", "netns", "delete", name], check=False)
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def descriptors() -> Callable[[], list[str]]:
    """Tells which ones this process has open; those that earlier tests forgot are closed by now."""
    gc.collect()
    gc.freeze()  # what is still there stays: the next test that asks need not walk it again
    return lambda: os.listdir("/proc/self/fd")


@pytest.fixture(autouse=True)
def first_training() -> Iterator[None]:
    """Each test is a process of its own, as far as trainings go that one process had before."""
    yield
    if (process := sys.modules.get("spotmpi.training.process")) is not None:
        process._process = process.Process()


# --- what failed, and what was left out -----------------------------------------------------------

_STARTED = ("processes", "started")
"""What a report says of a test that has started a process."""

_starts = 0
"""Processes that the test at hand has started."""


def _count_starts(event: str, _arguments: object) -> None:
    global _starts
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        _starts += 1


sys.addaudithook(_count_starts)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note on a test's reports that it has started a process."""
    global _starts
    if _starts and _STARTED not in item.user_properties:
        item.user_properties.append(_STARTED)
    if call.when == "teardown":
        _starts = 0


def _skipped(config: pytest.Config) -> Counter[str]:
    """How many tests were skipped, by reason."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return Counter(one.longrepr[2].removeprefix("Skipped: ") for one in reports)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With ``SPOTMPI_NO_SKIPS=1`` a run that skipped a test has failed."""
    if NO_SKIPS and _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was left out and why; write what failed."""
    if skipped := _skipped(config):
        left_out = "; ".join(f"{count} ({why})" for why, count in skipped.most_common())
        failed = ", so this run has failed: all must run" if NO_SKIPS else ""
        terminalreporter.write_line(f"Tests left out: {left_out}{failed}", red=NO_SKIPS)
    if FAILURES:
        reports = [
            *terminalreporter.stats.get("failed", []),
            *terminalreporter.stats.get("error", []),
        ]
        found: dict[str, dict[str, object]] = {}
        for one in reports:
            entry = found.setdefault(one.nodeid, {"test": one.nodeid, "output": ""})
            entry["processes"] = _STARTED in map(tuple, getattr(one, "user_properties", ()))
            entry["output"] = f"{entry['output']}{one.longreprtext}\n"
            for title, text in one.sections:
                entry["output"] += f"--- {title}\n{text}\n"
        Path(FAILURES).write_text(json.dumps(list(found.values())))


# --- the command line as a user has it -----------------------------------------------------------

RunSpotmpi = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_spotmpi(tmp_path: Path) -> RunSpotmpi:
    """``run_spotmpi(args, timeout=60)``: run ``python -m spotmpi ARGS``, return code and output.

    Blocks until the command and all that writes to its output have ended. Runs in ``tmp_path``
    (or ``cwd``), standard input empty, ``env`` added to the environment. Past ``timeout`` seconds
    all processes that it started are killed and the test fails with the output so far.
    """

    def run(
        args: Sequence[str | os.PathLike[str]],
        *,
        timeout: float = 60,
        cwd: Path = tmp_path,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        before = _pids()
        command = [sys.executable, "-m", "spotmpi", *map(os.fspath, args)]
        with subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                # Workers have process groups of their own, and their launcher may be the one
                # that hangs: the mark finds them all.
                running = _started_since(before)
                _kill(running)
                out, err = process.communicate()
                pytest.fail(
                    f"still running after {timeout} s: spotmpi {' '.join(command[3:])}\n"
                    f"--- {len(running)} processes were killed\n"
                    f"--- stdout\n{out}\n--- stderr\n{err}",
                    pytrace=False,
                )
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run
