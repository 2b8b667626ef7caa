"""``spotmpi run``: its arguments, and what is wrong with them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from spotmpi.errors import UsageError
from spotmpi.launch.doctor import problems
from spotmpi.launch.installation import search
from spotmpi.launch.local import launch
from spotmpi.launch.verdict import EXIT_NOT_STARTED
from spotmpi.settings import Settings, check, parse_revocation

__all__ = ["add_arguments", "main"]

_DESCRIPTION = """\
Train with N workers on this host. SCRIPT is an ordinary Python script; whatever stands after it
is for the script. Workers that are revoked (SIGKILL, SIGTERM) are trained without."""

_EPILOG = """\
example:
  spotmpi run -n 8 --revoke 2,5@40 train.py --passes 10

exit codes:
  0    the workers that were not revoked finished
  1    the script is wrong: it raised, crashed, ended with a code of its own or left early
  2    wrong arguments
  69   every worker was revoked
  71   the job could not start
  75   stopped below --min-workers, with a checkpoint to --resume from
  130  Ctrl-C"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi run -n N [options] SCRIPT [ARGS...]"
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("-n", "--workers", metavar="N", required=True, help="workers to start with")
    parser.add_argument(
        "--min-workers",
        metavar="M",
        default="1",
        help="with fewer than M left, write a checkpoint and stop with code 75 (default: 1)",
    )
    parser.add_argument(
        "--revoke",
        metavar="W[,W..]@STEP",
        action="append",
        default=[],
        help="rehearse: kill these workers during this step's all-reduce; both count from 0",
    )
    parser.add_argument("--trace", metavar="FILE", help="write what happens to FILE")
    parser.add_argument("--checkpoint", metavar="DIR", help="keep checkpoints in DIR")
    parser.add_argument("--checkpoint-every", metavar="S", help="write a checkpoint every S steps")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest usable checkpoint in DIR"
    )
    parser.add_argument(
        "command", metavar="SCRIPT [ARGS...]", nargs=argparse.REMAINDER, help="what to run"
    )


def main(options: argparse.Namespace) -> int:
    """Check everything that can be checked beforehand, then run the job. Blocking."""
    workers = _whole("-n", options.workers, "workers")
    settings = Settings(
        trace=_absolute(options.trace),
        checkpoint=_absolute(options.checkpoint),
        checkpoint_every=(
            None
            if options.checkpoint_every is None
            else _whole("--checkpoint-every", options.checkpoint_every, "steps")
        ),
        resume=options.resume,
        min_workers=_whole("--min-workers", options.min_workers, "workers"),
        revoke=tuple(map(parse_revocation, options.revoke)),
    )
    check(settings, workers)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        raise UsageError("the script to run is missing: spotmpi run -n N SCRIPT [ARGS...]")
    name, *arguments = options.command
    script = Path(name)
    if not script.is_file():
        raise UsageError(f"there is no script {name}; give the path of a Python file")
    if not os.access(script, os.R_OK):
        raise UsageError(f"the script {name} may not be read; change its permissions")
    if settings.trace is not None:
        if settings.trace.is_dir():
            raise UsageError(f"--trace {options.trace} is a folder; name a file in it")
        _must_take_files(settings.trace.parent, f"--trace {options.trace}")
    if settings.checkpoint is not None:
        _must_take_files(settings.checkpoint, f"--checkpoint {options.checkpoint}")
        if not settings.resume:
            from spotmpi.checkpoint import check_unused  # HDF5: only for those who need it

            check_unused(settings.checkpoint)
    found = search(os.environ)
    wrong = problems(found, workers, os.environ)
    if wrong or found.found is None:
        for problem in wrong:
            print(f"spotmpi run: {problem}", file=sys.stderr)
        return EXIT_NOT_STARTED
    return launch(script, arguments, workers, settings, found.found)


def _whole(option: str, text: str, what: str) -> int:
    # int() would take "1_0" and " 1" as well.
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UsageError(f"{option} {text}: give a number of {what}, 1 or more")
    return int(text)


def _absolute(path: str | None) -> Path | None:
    # The script may change its working folder before it trains.
    return None if path is None else Path(path).absolute()


def _must_take_files(folder: Path, option: str) -> None:
    """Make the folder if it is not there, and raise UsageError if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"{option}: no file can be written in {folder} ({error.strerror}); "
            "choose another folder or change its permissions"
        ) from error
