"""What the surroundings of a worker say: the one reader of ``os.environ``.

``spotmpi run`` writes these variables and its workers read them; whoever starts workers with plain
``mpirun`` sets the same ones by hand. Nothing else in the package looks at the environment for
settings of spotmpi.

=======================  =====================================================================
SPOTMPI_TRACE            file that the trace goes to
SPOTMPI_CHECKPOINT       folder of the checkpoints
SPOTMPI_CHECKPOINT_EVERY steps between two checkpoints
SPOTMPI_RESUME           1: go on from the newest usable checkpoint
SPOTMPI_MIN_WORKERS      with fewer workers than this, write a checkpoint and stop with code 75
SPOTMPI_STRATEGY         how workers synchronise, in the place of what the script says
SPOTMPI_POLICY           what chooses how workers synchronise, in the place of what the script says
SPOTMPI_REVOKE           rehearsed revocations, as in ``2,5@40;1@60``: workers @ step
SPOTMPI_DETECT_MS        milliseconds after which what is silent or stopped counts as lost; without
                         it that is found out (``--detect-ms auto``)
SPOTMPI_TORCH            0: ``torch.distributed.init_process_group`` is left alone (``--torch off``)
SPOTMPI_NOTICE           what is a notice, as ``--notice`` has it, where the option is not given
SPOTMPI_NOTICE_ENDPOINT  who is asked for notices in place of the cloud's own service: its address
SPOTMPI_JOB              set by ``spotmpi run`` only: the job's name, in every process of the job
SPOTMPI_JOB_DIR          set by ``spotmpi run`` only: the job's private folder
SPOTMPI_CHANNEL          set by ``spotmpi run`` only: descriptor that leads to the launcher
SPOTMPI_LOG              set by ``spotmpi run`` only: 1: the launcher keeps log lines
SPOTMPI_NEWCOMER         set by ``spotmpi run`` only: the id of a worker that joins a running job
SPOTMPI_BEGAN_WITH       set by ``spotmpi run`` only, for such a worker: the number of workers that
                         the job began with
SPOTMPI_STAND_IN         set by ``spotmpi run`` only: what MPI starts on the head for a newcomer,
                         a JSON list
=======================  =====================================================================
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spotmpi.errors import UsageError

TORCH_PROCESS = "SPOTMPI_TORCH_PROCESS"
"""Variable that a worker sets for `spotmpi.torch_autoload`: the number of its process. A child of
it has the variable, and another number."""

__all__ = [
    "DETECT_MS",
    "NOTICES",
    "Revocation",
    "Settings",
    "Watch",
    "check",
    "check_alone",
    "parse_revocation",
]

DETECT_MS = 200
"""Milliseconds for which a worker may be stopped, unless told otherwise."""

NOTICES = ("auto", "ec2", "gce", "azure", "signal", "none")
"""What may be a notice that a host is to be taken away."""


_ENDPOINT = re.compile(r"http://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?/?", re.ASCII)


@dataclass(frozen=True)
class Revocation:
    """Workers that are to die together, by SIGKILL, during the all-reduce of a step."""

    step: int
    workers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{','.join(map(str, self.workers))}@{self.step}"


@dataclass(frozen=True)
class Settings:
    """The settings of one process. ``world_size`` and ``rank`` are None without MPI."""

    job: str | None = None
    job_dir: Path | None = None
    channel_fd: int | None = None
    log: bool = False
    newcomer: int | None = None
    began_with: int | None = None
    """For a newcomer: workers at the start."""
    stand_in: tuple[str, ...] = ()
    trace: Path | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    resume: bool = False
    min_workers: int = 1
    strategy: str | None = None
    """By its name and options."""
    policy: str | None = None
    """By its name, its options and its strategies."""
    revoke: tuple[Revocation, ...] = ()
    detect_ms: int | None = None
    """None: found out by trying, link by link."""
    torch: bool = True
    """True if the job takes the place of torch's process group."""
    world_size: int | None = None
    rank: int | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables above and Open MPI's. Local; raises UsageError naming the variable.

        An empty variable counts as absent, because shell scripts write ``SPOTMPI_TRACE=$TRACE``.
        """
        # Read at the call, not at import: a script may set variables before it trains.
        found = {k: v for k, v in (os.environ if environ is None else environ).items() if v}
        return cls(
            job=found.get("SPOTMPI_JOB"),
            job_dir=_path(found, "SPOTMPI_JOB_DIR"),
            channel_fd=_integer(found, "SPOTMPI_CHANNEL", least=0),
            log=_flag(found, "SPOTMPI_LOG"),
            newcomer=_integer(found, "SPOTMPI_NEWCOMER", least=0),
            began_with=_integer(found, "SPOTMPI_BEGAN_WITH", least=1),
            stand_in=tuple(json.loads(found.get("SPOTMPI_STAND_IN", "[]"))),
            trace=_path(found, "SPOTMPI_TRACE"),
            checkpoint=_path(found, "SPOTMPI_CHECKPOINT"),
            checkpoint_every=_integer(found, "SPOTMPI_CHECKPOINT_EVERY", least=1),
            resume=_flag(found, "SPOTMPI_RESUME"),
            min_workers=_integer(found, "SPOTMPI_MIN_WORKERS", least=1) or 1,
            strategy=found.get("SPOTMPI_STRATEGY"),
            policy=found.get("SPOTMPI_POLICY"),
            revoke=_revocations(found, "SPOTMPI_REVOKE"),
            detect_ms=_integer(found, "SPOTMPI_DETECT_MS", least=1),
            torch=_flag({"SPOTMPI_TORCH": "1", **found}, "SPOTMPI_TORCH"),
            world_size=_integer(found, "OMPI_COMM_WORLD_SIZE", least=1),
            rank=_integer(found, "OMPI_COMM_WORLD_RANK", least=0),
        )

    def of_training(self, number: int) -> Settings:
        """The settings of a process's later training, counted from 0: each has files of its own."""
        if number == 0:
            return self
        trace, checkpoint = self.trace, self.checkpoint
        if trace is not None:
            trace = trace.with_name(f"{trace.stem}-{number + 1}{trace.suffix}")
        if checkpoint is not None:
            checkpoint = checkpoint / f"training-{number + 1}"
        return replace(self, trace=trace, checkpoint=checkpoint)

    def to_environ(self) -> dict[str, str]:
        """Return the SPOTMPI_* variables from which ``from_environ`` reads these settings.

        World size and rank are left out: they are mpirun's to set.
        """
        values = {
            "SPOTMPI_JOB": self.job,
            "SPOTMPI_JOB_DIR": self.job_dir,
            "SPOTMPI_CHANNEL": self.channel_fd,
            "SPOTMPI_LOG": 1 if self.log else None,
            "SPOTMPI_NEWCOMER": self.newcomer,
            "SPOTMPI_BEGAN_WITH": self.began_with,
            "SPOTMPI_STAND_IN": json.dumps(self.stand_in) if self.stand_in else None,
            "SPOTMPI_TRACE": self.trace,
            "SPOTMPI_CHECKPOINT": self.checkpoint,
            "SPOTMPI_CHECKPOINT_EVERY": self.checkpoint_every,
            "SPOTMPI_RESUME": 1 if self.resume else None,
            "SPOTMPI_MIN_WORKERS": self.min_workers if self.min_workers > 1 else None,
            "SPOTMPI_DETECT_MS": self.detect_ms,
            "SPOTMPI_TORCH": None if self.torch else 0,
            "SPOTMPI_STRATEGY": self.strategy,
            "SPOTMPI_POLICY": self.policy,
            "SPOTMPI_REVOKE": ";".join(map(str, self.revoke)) or None,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


_COUNTS = (
    *("PMI_SIZE", "SLURM_STEP_NUM_TASKS", "MV2_COMM_WORLD_SIZE"),
    *("FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE", "PALS_LOCAL_SIZE"),
    *("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "HOROVOD_SIZE"),
)
"""What starters of parallel programs say of how many they have started: MPICH and its relatives,
srun, MVAPICH, Flux, jsrun, PALS, torchrun (on this host, and of how many hosts), Horovod. Not
SLURM_NTASKS, which a batch script is told as well, where it starts one process by itself."""
_PLACES = (
    *("PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "MV2_COMM_WORLD_RANK", "FLUX_TASK_RANK"),
    *("JSM_NAMESPACE_RANK", "PALS_RANKID", "ALPS_APP_PE"),
)
"""What they say of which of them it is, counted from 0."""


def check_alone(environ: Mapping[str, str] | None = None) -> None:
    """Raise UsageError if this process is one of several that were started together. Local.

    For a process that is to train alone: several would each train a whole model, all with the same
    trace and the same folder of checkpoints.
    """
    found = os.environ if environ is None else environ
    for names, least in ((_COUNTS, 2), (_PLACES, 1)):
        for name in names:
            value = found.get(name, "")
            if value.isascii() and value.isdigit() and int(value) >= least:
                raise UsageError(
                    f"{name}={value} says that this is one of several processes, but it cannot "
                    "reach the others: each would train a copy of its own. Start the script once, "
                    "with `spotmpi run`, which starts the workers; or with the mpirun of an Open "
                    "MPI with ULFM (`spotmpi doctor` names it)"
                )


@dataclass(frozen=True)
class Watch:
    """What counts as a notice that this host is to be taken away. Raises UsageError.

    ``source`` is one of `NOTICES`; ``endpoint`` is asked in place of the cloud's own service.
    """

    source: str = NOTICES[0]
    endpoint: str | None = None

    def __post_init__(self) -> None:
        if self.source not in NOTICES:
            raise UsageError(
                f"{self.source!r} is no source of notices; give one of {', '.join(NOTICES)}"
            )
        found = _ENDPOINT.fullmatch(self.endpoint or "http://none")
        if found is None or int(found["port"] or 80) > 65535:
            raise UsageError(
                f"{self.endpoint!r} is no address of a service of notices; give http://HOST:PORT"
            )

    def to_options(self) -> list[str]:
        """Return the options of ``spotmpi agent`` that say the same."""
        asked = self.endpoint is not None and self.source not in ("signal", "none")
        return ["--notice", self.source, *(["--notice-endpoint", str(self.endpoint)] * asked)]

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Watch:
        """Read what the variables say. Local; raises UsageError naming the variable."""
        found = os.environ if environ is None else environ
        source = found.get("SPOTMPI_NOTICE") or NOTICES[0]
        endpoint = found.get("SPOTMPI_NOTICE_ENDPOINT") or None
        try:
            Watch(source)
        except UsageError as error:
            raise UsageError(f"SPOTMPI_NOTICE: {error}") from None
        try:
            return cls(source, endpoint)
        except UsageError as error:
            raise UsageError(f"SPOTMPI_NOTICE_ENDPOINT: {error}") from None


def parse_revocation(text: str) -> Revocation:
    """Read ``W[,W..]@STEP``, as in ``2,5@40``. Raises UsageError."""
    workers, at, step = text.partition("@")
    names = workers.split(",")
    # int() would take "1_0", " 1" and "²" as well; isascii and isdigit say what is meant here.
    if not at or not all(word.isascii() and word.isdigit() for word in [*names, step]):
        raise UsageError(
            f"revocation {text!r} is not of the form W[,W..]@STEP, as in 2,5@40: "
            "worker ids and a step, all counted from 0"
        )
    return Revocation(step=int(step), workers=tuple(map(int, names)))


def check(settings: Settings, workers: int) -> None:
    """Raise UsageError if ``settings`` make no sense for a job of ``workers`` workers. Local.

    The launcher asks before it starts anything, the trainer again for those without a launcher.
    """
    _check_victims(settings.revoke, workers)
    if settings.min_workers > workers:
        raise UsageError(
            f"at least {settings.min_workers} workers are asked for, but the job starts with "
            f"{workers}; start more workers or ask for fewer"
        )
    if settings.checkpoint is None:
        for asked, what in (
            (settings.min_workers > 1, f"stopping below {settings.min_workers} workers"),
            (settings.resume, "resuming"),
            (settings.checkpoint_every is not None, "writing a checkpoint every few steps"),
        ):
            if asked:
                raise UsageError(
                    f"{what} needs --checkpoint DIR (SPOTMPI_CHECKPOINT), "
                    "to have something to resume from"
                )


def _check_victims(revocations: Iterable[Revocation], workers: int) -> None:
    seen: set[int] = set()
    for revocation in revocations:
        for victim in revocation.workers:
            if victim >= workers:
                raise UsageError(
                    f"revocation {revocation}: there is no worker {victim}; "
                    f"a job of {workers} has the workers 0 to {workers - 1}"
                )
            if victim in seen:
                raise UsageError(
                    f"revocation {revocation}: worker {victim} is named twice, "
                    "but a worker dies only once"
                )
            seen.add(victim)


def _path(found: Mapping[str, str], name: str) -> Path | None:
    return Path(found[name]) if name in found else None


def _integer(found: Mapping[str, str], name: str, least: int) -> int | None:
    if name not in found:
        return None
    text = found[name]
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"{name}={text!r} is not a whole number of at least {least}")
    return int(text)


def _flag(found: Mapping[str, str], name: str) -> bool:
    value = found.get(name, "0")
    if value not in ("0", "1"):
        raise UsageError(f"{name}={value!r} is neither 0 nor 1")
    return value == "1"


def _revocations(found: Mapping[str, str], name: str) -> tuple[Revocation, ...]:
    try:
        return tuple(parse_revocation(part) for part in found.get(name, "").split(";") if part)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
