"""The forked child that runs the user's script or module, and tells the launcher if it raises."""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import runpy
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, TextIO, cast

from spotmpi.errors import EXIT_REQUEUE, ScriptError, UsageError
from spotmpi.launch.host import crashes
from spotmpi.launch.start.program import AS_MODULE, Program
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.settings import TORCH_PROCESS, Settings

__all__ = ["TASK", "main"]

_LOG = logging.getLogger(__name__)

TASK = "task"
"""File in the job folder: the words of a `Program`, as a JSON list."""

_LONGEST = 8000
"""Characters of a traceback that are sent, the last ones: each may take 6 bytes in JSON."""

_TO_BE_ENDED = 5.0
"""Seconds that a worker with an error waits for the launcher to end it."""

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


def main(folder: Path, channel: int, report: int) -> NoReturn:
    """Run the script of a job's folder as ``python SCRIPT ARGS`` would, or the module as
    ``python -m MODULE ARGS``, and end this process.

    ``channel`` is the descriptor that leads to the launcher, ``report`` is for what is to be read
    of it after a crash (`crashes`).

    MPI is not finalised: that can hang after a failure, and nobody needs it.
    """
    program = Program.of(json.loads((folder / TASK).read_text()))
    for stream in (sys.stdout, sys.stderr):
        cast(io.TextIOWrapper, stream).reconfigure(line_buffering=True)
    crashes.write_to(report)
    if program.is_module:
        sys.argv[:] = [AS_MODULE, *program.arguments]  # its path, as soon as that is known
        sys.path.insert(0, os.getcwd())
    else:
        sys.argv[:] = program.task
        sys.path.insert(0, os.path.dirname(os.path.realpath(program.name)))
    os.environ.update(Settings(channel_fd=channel).to_environ())
    worker = os.getpid()
    os.environ.update(_for_torch(Settings.from_environ(), worker))
    launcher = LauncherChannel.open(Settings(job_dir=folder, channel_fd=channel))
    _LOG.info("process %d runs %s", worker, program.called)
    tell_warnings(launcher)
    code = _run(program, launcher)
    _LOG.info("process %d ends with code %d", os.getpid(), code)
    # What the interpreter does at its end, up to the point where it would finalise MPI.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    if code not in (0, EXIT_REQUEUE) and os.getpid() == worker:
        # Over TCP the others would see this process end, and recover from what is a bug. So the
        # launcher is to end them first, and this one with them.
        launcher.tell("left", code=code)
        time.sleep(_TO_BE_ENDED)
    os._exit(code)


def _for_torch(given: Settings, process: int) -> dict[str, str]:
    """Return what torchrun would tell this worker. The rest, of its host, its agent has told it."""
    if not given.torch:
        return {}
    rank, size = given.rank or 0, given.world_size or 1
    if given.newcomer is not None:  # it gets a rank when it comes to the others
        rank, size = given.newcomer, given.began_with or 1
    return {
        "RANK": f"{rank}",
        "WORLD_SIZE": f"{size}",
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),  # the job does not ask there
        "MASTER_PORT": os.environ.get("MASTER_PORT", "29500"),
        TORCH_PROCESS: f"{process}",
        # Lightning takes the ranks from here if this is set. If not, it asks MPI, and a newcomer
        # must not start MPI so early.
        "TORCHELASTIC_RUN_ID": given.job or "",
    }


def tell_warnings(channel: LauncherChannel) -> None:
    """From now on what spotmpi warns of goes to the launcher, which says it once for all workers.

    The script's own warnings, and those of other libraries, stay what they are.
    """
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is None and _is_ours(sys._getframe(1)):
            channel.tell("says", text=str(message))
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def _is_ours(frame: FrameType | None) -> bool:
    """Whether it is spotmpi that warns, wherever it says that the fault lies."""
    while frame is not None and frame.f_code.co_filename == warnings.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_PACKAGE)


def _run(program: Program, channel: LauncherChannel) -> int:
    worker = os.getpid()
    try:
        if program.is_module:
            runpy.run_module(program.name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program.name, run_name="__main__")
    except SystemExit as leaving:
        sys.last_value = leaving  # as the interpreter keeps other exceptions for exit functions
        if leaving.code is None or isinstance(leaving.code, int):
            return (leaving.code or 0) & 0xFF
        failure = f"{leaving.code}\n"  # sys.exit("a message")
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # noqa: BLE001 - whatever a script raises is told
        sys.last_value = error
        failure = describe(error)
        _LOG.info("the script raised %r", error)
    else:
        return 0
    _flush()
    if os.getpid() == worker:
        # For the launcher to show once, not once per worker.
        channel.tell("failed", traceback=failure[-_LONGEST:])
    else:
        sys.stderr.write(failure)  # a child that the script forked, and not for us to judge
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # It may be closed or replaced by the script, or nobody reads it any more.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def describe(error: BaseException) -> str:
    """Return the traceback of a script's exception without the frames of those who ran it."""
    trace = _own_frames(error.__traceback__, isinstance(error, UsageError | ScriptError))
    return "".join(traceback.format_exception(type(error), error.with_traceback(trace), trace))


def _own_frames(trace: TracebackType | None, of_script: bool) -> TracebackType | None:
    """Drop our frames at the top; where we say what is wrong in the script also those below it."""
    runners = (__file__, "<frozen runpy>", runpy.__file__)
    while trace is not None and trace.tb_frame.f_code.co_filename in runners:
        trace = trace.tb_next
    if trace is None or not of_script:
        return trace
    kept = []
    step: TracebackType | None = trace
    while step is not None and not step.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        kept.append(step)
        step = step.tb_next
    below: TracebackType | None = None
    for frame in reversed(kept):
        below = TracebackType(below, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return below
