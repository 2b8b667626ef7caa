"""A job inside a command of ours leaves nothing, whatever becomes of either."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from spotmpi.launch.start import temporary_job
from tests.running import LIMIT

# It says that it is there, and so does a child that left its session; then both wait.
LASTING = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
                         start_new_session=True)
print(child.pid, flush=True)
{also}
signal.pause()
"""


def lasting(also: str = "") -> list[str]:
    return [sys.executable, "-c", LASTING.format(also=also)]


def first_word(at: int) -> int:
    """The number that the job says first, once it has said it."""
    while not (said := os.pread(at, 100, 0)).endswith(b"\n"):
        os.sched_yield()
    return int(said.split()[0])


def ended(process: int, within: float = 0.0) -> bool:
    """Whether the process of a pidfd is dead within some seconds, be it a zombie still."""
    return bool(select.select([process], [], [], within)[0])


@pytest.mark.parametrize("also", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_what_still_runs_is_ended_with_all_that_it_started(also: str) -> None:
    command = lasting(also + "\nprint('ready', flush=True)")
    with temporary_job.private_folder(1) as at:
        end = signal.SIGTERM
        with temporary_job.started(command, os.environ, at, end=end, patience_s=0.5) as (
            process,
            said,
        ):
            child = os.pidfd_open(first_word(said.fileno()))
            assert not ended(child)
        assert process.returncode in (-signal.SIGTERM, -signal.SIGKILL)
        # It has been killed, and holds nothing any more; to die it needs a core.
        assert ended(child, LIMIT)
    os.close(child)
    assert not at.exists()


def test_its_last_words_are_kept() -> None:
    command = [sys.executable, "-c", "import sys; print('x' * 5000); sys.exit('the end')"]
    with (
        temporary_job.private_folder(1) as at,
        temporary_job.started(command, os.environ, at, end=signal.SIGTERM, patience_s=5) as (
            process,
            said,
        ),
    ):
        assert process.wait(LIMIT) == 1
        words = temporary_job.last_words(said)
    assert words.endswith("the end")
    assert len(words) <= 1500


def test_a_silent_one_has_none() -> None:
    command = [sys.executable, "-c", ""]
    with (
        temporary_job.private_folder(1) as at,
        temporary_job.started(command, os.environ, at, end=signal.SIGTERM, patience_s=5) as (
            process,
            said,
        ),
    ):
        process.wait(LIMIT)
        assert temporary_job.last_words(said) == "(none)"


SIGNALLED = """
import os
from spotmpi.launch.start import temporary_job as inner
with inner.ended_by_signals():
    try:
        os.kill(os.getpid(), {number})
    finally:
        print("cleared up")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_passes_through_what_clears_up(number: signal.Signals) -> None:
    program = SIGNALLED.format(number=int(number))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (128 + number, "cleared up\n")
