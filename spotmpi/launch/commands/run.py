"""``spotmpi run``: its arguments, and what is wrong with them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from spotmpi import job_folder
from spotmpi.errors import CheckpointError, UsageError
from spotmpi.exit_codes import EXIT_NOT_STARTED, MEANINGS
from spotmpi.launch import job_token, notices
from spotmpi.launch.commands import publishing
from spotmpi.launch.commands.agent import parse_address
from spotmpi.launch.commands.doctor import problems
from spotmpi.launch.head import launching
from spotmpi.launch.head.agent_listener import bind
from spotmpi.launch.head.job import STALL_TIMEOUT, JobOptions
from spotmpi.launch.head.launching import JobPlan, ListenOptions
from spotmpi.launch.head.wanted_hosts import HostsFile, WantedHosts
from spotmpi.launch.limits import Limits
from spotmpi.launch.liveness import CALM, MOST
from spotmpi.launch.start import crowd, slurm, ssh
from spotmpi.launch.start.agent_command import AgentStarter
from spotmpi.launch.start.hosts_file import HostLine
from spotmpi.launch.start.installation import search
from spotmpi.launch.start.job_files import JobFiles
from spotmpi.launch.start.program import AS_MODULE, Program
from spotmpi.launch.wording import count
from spotmpi.locks import InUse
from spotmpi.options import exit_codes
from spotmpi.settings import DETECT_MS, Settings, check, parse_revocation
from spotmpi.trace import records
from spotmpi.training.keeping import checkpoint_folder

__all__ = ["add_arguments", "main"]

_USUAL = Limits()

_DESCRIPTION = """\
Train with N workers on this host, or on the hosts of a file; inside a Slurm job, if neither is
given, on the job's nodes. SCRIPT is an ordinary Python script, MODULE the name of a module, as
`python -m` takes it; what stands after it is for the script. When workers are revoked (SIGKILL,
SIGTERM, a lost host), the others train on."""

_EPILOG = """\
example:
  spotmpi run -n 8 --revoke 2,5@40 train.py --passes 10
  spotmpi run --hosts hosts.txt --min-workers 4 --checkpoint /shared/run1 train.py

"""

_COMPLETE = (
    "the training is complete: {kept.step} steps, in {kept.path}; nothing is left to do. "
    'spotmpi.load("{folder}") gives the model; to train anew, name an empty folder'
)
_ANEW = "there is no checkpoint in {folder} yet: training starts from the beginning"
_ON = "training goes on from step {kept.step}: {kept.path}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi run [-n N | --hosts FILE] [options] (SCRIPT | -m MODULE) [ARGS...]"
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG + exit_codes(MEANINGS)
    parser.add_argument("-n", "--workers", metavar="N", help="workers to start with, on this host")
    parser.add_argument(
        "--hosts",
        metavar="FILE",
        help="train on the hosts of this file, one a line: name [slots=2]; hosts of new lines join",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="wait at this address for N workers; `spotmpi agent` brings them",
    )
    parser.add_argument(
        "--token-file",
        metavar="F",
        help="the secret that these agents must know; made if the file is not there",
    )
    parser.add_argument(
        "--detect-ms",
        metavar="MS",
        default="auto",
        help="a host that is silent, or a worker stopped, for so long is lost (auto: a worker "
        f"{DETECT_MS}; a host {1e3 * MOST:.0f}, {1e3 * CALM:.0f} where its beats come on time)",
    )
    parser.add_argument(
        "--min-workers",
        metavar="M",
        default="1",
        help="when fewer than M remain, write a checkpoint and stop with code 75 (default: 1)",
    )
    parser.add_argument(
        "--torch",
        choices=["on", "off"],
        default="on",
        help="off: leave torch.distributed.init_process_group() of a PyTorch script alone",
    )
    parser.add_argument(
        "--strategy",
        metavar="NAME[:OPTION=N,..]",
        help="how workers synchronise, in the place of what the script says: ssgd, localsgd:h=8, "
        "diloco:h=64,outer=0.7,narrow=int8, ...",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME[:OPTION=N,..][/STRATEGY..]",
        help="what chooses the strategy during the training, in the place of what the script "
        "says: best/ssgd/diloco:h=16 (the quickest of these), throughputbelow:least=0.4/adpsgd "
        "and straggleraware/ssgd/adpsgd (from the first to the last), "
        "schedule/0=ssgd/900=localsgd:h=8, fixed/ssgd",
    )
    parser.add_argument(
        "--revoke",
        metavar="W[,W..]@STEP",
        action="append",
        default=[],
        help="a rehearsal: kill these workers in this step's all-reduce; both count from 0",
    )
    parser.add_argument(
        "--stall-timeout",
        metavar="S",
        default=str(STALL_TIMEOUT),
        help="a worker counts as revoked when others have waited for it, and it has done nothing, "
        f"for so many seconds ({STALL_TIMEOUT}; 0: never); a round that lasts longer ends the job",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="call the job spotmpi-NAME, for --job of `spotmpi status` and others (without it the "
        "job gets a name that no other has)",
    )
    parser.add_argument("--quiet", action="store_true", help="show only what spotmpi itself says")
    parser.add_argument(
        "--verbose", action="store_true", help="show what spotmpi does in all processes of the job"
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        help="append what each worker writes to DIR/worker-ID.log, and what spotmpi does to "
        "DIR/spotmpi.log",
    )
    parser.add_argument(
        "--replace",
        action=argparse.BooleanOptionalAction,
        help="start another worker where one is revoked on a host that stays, or start none; on "
        "one host (-n alone) none is started unless you give --replace, with which `spotmpi grow "
        "--workers` works, too",
    )
    parser.add_argument(
        "--spares",
        metavar="N",
        default="0",
        help="of all workers, N wait, started, until others are lost",
    )
    parser.add_argument(
        "--keep-alive",
        action="store_true",
        help="when every worker is lost, wait for hosts and start again from the newest checkpoint",
    )
    notices.add_arguments(parser)
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace to FILE: each step, each recovery"
    )
    publishing.add_arguments(parser)
    parser.add_argument("--checkpoint", metavar="DIR", help="keep checkpoints in DIR")
    parser.add_argument("--checkpoint-every", metavar="S", help="write a checkpoint every S steps")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest usable checkpoint in DIR, if there is one: the same command "
        "starts a training, goes on with it, and says when it is complete",
    )
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE [ARGS...]",
        nargs=argparse.REMAINDER,
        help="run a module as `python -m MODULE ARGS` does, in the place of a script",
    )
    parser.add_argument(
        "command", metavar="SCRIPT [ARGS...]", nargs=argparse.REMAINDER, help="what to run"
    )


def main(options: argparse.Namespace, limits: Limits = _USUAL) -> int:
    """Check everything that can be checked beforehand, then run the job. Blocking."""
    allocation = _allocation(options)
    roster = _roster(options, allocation)
    if options.workers is not None:
        workers = _whole("-n", options.workers, "workers")
    else:
        workers = roster.slots
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
        strategy=_strategy(options.strategy),
        policy=_policy(options.policy, options.strategy),
        revoke=tuple(map(parse_revocation, options.revoke)),
        log=options.verbose or options.log_dir is not None,
        detect_ms=(
            None
            if options.detect_ms == "auto"
            else _whole("--detect-ms", options.detect_ms, "milliseconds")
        ),
        torch=options.torch == "on",
    )
    spares = 0 if options.spares == "0" else _whole("--spares", options.spares, "workers")
    if spares >= workers:
        raise UsageError(f"--spares {spares} of {count(workers)}: leave one to train")
    check(settings, workers - spares)
    if options.name is not None and not job_folder.is_name(options.name):
        raise UsageError(
            f"--name {options.name}: give a word of at most 40 letters, digits and -_. that begins "
            "with a letter or a digit"
        )
    program = _program(options)
    if settings.trace is not None:
        if settings.trace.is_dir():
            raise UsageError(f"--trace {options.trace} is a folder; name a file in it")
        if not settings.trace.parent.exists():
            raise UsageError(f"--trace {options.trace}: there is no folder {settings.trace.parent}")
        _must_take_files(settings.trace.parent, f"--trace {options.trace}")
    if settings.checkpoint is not None:
        _must_take_files(settings.checkpoint, f"--checkpoint {options.checkpoint}")
    tensorboard = _absolute(options.tensorboard)
    if tensorboard is not None:
        _must_take_files(tensorboard, f"--tensorboard {options.tensorboard}")
    if settings.trace is not None:
        records.check(settings.trace)
    elsewhere = bool(roster.hosts) or options.listen is not None
    manner = _manner(options, elsewhere)
    found = search(os.environ)
    wrong = problems(found, workers, os.environ, elsewhere)
    if wrong or found.found is None:
        for problem in wrong:
            print(f"spotmpi run: {problem}", file=sys.stderr)
        return EXIT_NOT_STARTED
    if not elsewhere:
        if many := crowd.judged(workers):
            _say(many)
        roster = WantedHosts([HostLine("localhost", workers)])
    door = None if options.listen is None else _door(options, workers)
    way: AgentStarter = allocation or ssh
    try:
        with JobFiles(settings, program, _say) as files, ExitStack() as stack:
            resumed = None
            if settings.resume:
                kept = files.newest()
                if kept is not None and kept.finished:
                    _say(_COMPLETE.format(kept=kept, folder=options.checkpoint))
                    return 0
                _say((_ANEW if kept is None else _ON).format(kept=kept, folder=options.checkpoint))
                settings = replace(settings, resume=kept is not None)
                resumed = None if kept is None else kept.step
            elif settings.checkpoint is not None:
                checkpoint_folder.check_unused(settings.checkpoint)
            plan = JobPlan(
                program,
                roster,
                found.found,
                door,
                manner,
                way,
                alone=not elsewhere,
                limits=limits,
                files=files,
                published=publishing.opened(options, tensorboard, stack),
                name=options.name,
            )
            return launching.launch(plan, settings, resumed)
    except (CheckpointError, InUse) as error:
        print(f"spotmpi run: {error}", file=sys.stderr)
        return EXIT_NOT_STARTED


def _words(options: argparse.Namespace) -> list[str]:
    """What is run, as `Program.task` has it; empty if that was not said."""
    if options.module is not None:
        # Stuck to its option (-mMODULE), the arguments are not its.
        return [AS_MODULE, *options.module, *options.command]
    words: list[str] = options.command
    return words[1:] if words[:1] == ["--"] else words


def _program(options: argparse.Namespace) -> Program:
    """What is run. Raises UsageError if it is not there."""
    words = _words(options)
    if words in ([], [AS_MODULE]):
        raise UsageError(
            "the script to run is missing: spotmpi run -n N SCRIPT [ARGS...], or -m MODULE"
        )
    program = Program.of(words)
    if program.is_module:
        if program.missing(os.getcwd()) is not None:
            raise UsageError(
                f"there is no module {program.name} that can be run; give its name as `python -m` "
                "takes it, package.module"
            )
        return program
    script = Path(program.name)
    if not script.is_file():
        raise UsageError(f"there is no script {script}; give the path of a Python file")
    if not os.access(script, os.R_OK):
        raise UsageError(f"the script {script} may not be read; change its permissions")
    return program


def _say(sentence: str) -> None:
    print(f"spotmpi: {sentence}", file=sys.stderr, flush=True)


def _manner(options: argparse.Namespace, elsewhere: bool) -> JobOptions:
    limit = options.stall_timeout
    if limit != "0":
        _whole("--stall-timeout", limit, "seconds")
    log_dir = _absolute(options.log_dir)
    if log_dir is not None:
        _must_take_files(log_dir, f"--log-dir {options.log_dir}", mode=0o700)
    watch = notices.chosen(options)
    return JobOptions(
        quiet=options.quiet,
        verbose=options.verbose,
        log_dir=log_dir,
        stall_timeout=int(limit),
        spares=int(options.spares),
        # Where agents run workers listen anyway; on one host that is for the user to say (ADR 22).
        replace=elsewhere if options.replace is None else options.replace,
        replace_asked=options.replace is True,
        keep_alive=options.keep_alive,
        watch=watch,
    )


def _door(options: argparse.Namespace, workers: int) -> ListenOptions:
    if options.token_file is None:
        raise UsageError("--listen needs --token-file F: whoever has that file may run workers")
    host, port = parse_address(options.listen, "--listen")
    secret = job_token.of_file(Path(options.token_file), make=True)
    try:
        return ListenOptions(bind(host, port), secret, workers)
    except OSError as error:
        raise UsageError(
            f"--listen {options.listen}: {error.strerror}; choose another address or port"
        ) from error


def _allocation(options: argparse.Namespace) -> slurm.Allocation | None:
    """The nodes that Slurm has given, unless it was said where to train."""
    said = (options.workers, options.hosts, options.listen)
    if said != (None, None, None) or not slurm.inside(os.environ):
        return None
    return slurm.find(os.environ)


def _roster(options: argparse.Namespace, allocation: slurm.Allocation | None) -> WantedHosts:
    if options.listen is not None and options.workers is None and options.hosts is None:
        raise UsageError("--listen needs -n N: how many workers the job waits for")
    if allocation is None and (options.workers is None) == (options.hosts is None):
        _check_order(_words(options))
        raise UsageError("give either -n N, for workers on this host, or --hosts FILE")
    if options.token_file is not None and options.listen is None:
        raise UsageError("--token-file is for agents that come by themselves: give --listen too")
    if options.listen is not None and options.hosts is not None:
        raise UsageError("give either --hosts FILE or --listen HOST:PORT -n N")
    if options.hosts is None:
        return WantedHosts() if allocation is None else WantedHosts(allocation.hosts)
    return WantedHosts.of(HostsFile(options.hosts))


def _check_order(command: list[str]) -> None:
    """Raise UsageError if what is missing stands behind the script, and so is the script's."""
    what, first = "script", command[:1]
    if first == [AS_MODULE]:
        what, first = "module", command[:2]
    for option in ("-n", "--workers", "--hosts"):
        at = next((i for i, word in enumerate(command) if word.partition("=")[0] == option), 0)
        if at >= len(first) > 0:
            raise UsageError(
                f"{option} stands after the {what}, and so goes to the {what}: put options before "
                f"it, spotmpi run {' '.join(command[at : at + 2])} ... {' '.join(first)}"
            )


def _whole(option: str, text: str, what: str) -> int:
    # int() would take "1_0" and " 1" as well.
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UsageError(f"{option} {text}: give a number of {what}, 1 or more")
    return int(text)


def _strategy(text: str | None) -> str | None:
    """By its name, and all its options. Raises UsageError if there is none of that name."""
    if text is None:
        return None
    from spotmpi.strategies import named  # NumPy: only for those who name one

    named(text)
    return text


def _policy(text: str | None, strategy: str | None) -> str | None:
    """By its name, its options and its strategies. Raises UsageError if there is none such, or if a
    ``strategy`` was asked for as well."""
    if text is None:
        return None
    if strategy is not None:
        raise UsageError(f"--policy {text} and --strategy {strategy}: give one of them")
    from spotmpi.policies import named  # NumPy: only for those who name one

    named(text)
    return text


def _absolute(path: str | None) -> Path | None:
    # The script may change its working folder before it trains.
    if path is None:
        return None
    # Only what may be a step back through a link has to be looked up.
    return Path(os.path.realpath(path)) if ".." in Path(path).parts else Path(path).absolute()


def _must_take_files(folder: Path, option: str, mode: int = 0o777) -> None:
    """Make the folder if it is not there, and raise UsageError if no file can be written in it."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"{option}: no file can be written in {folder} ({error.strerror}); "
            "choose another folder or change its permissions"
        ) from error
