"""mpirun's command line and environment for a job on this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotmpi.launch.installation import Installation
from spotmpi.settings import Settings

__all__ = [
    "admission",
    "command",
    "environment",
    "name",
    "of_mpi",
    "on_host",
    "stand_in",
    "wrapper",
]

_WRAPPER = Path(__file__).with_name("wrapper.py")
_STAND_IN = Path(__file__).with_name("standin.py")
_PLACES = (
    "PRTE_MCA_prte_tmpdir_base",
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
)
"""Everything that the job puts on a host lies in its folder there."""
_MPI_VARIABLES = ("OMPI_", "PMIX_", "PRTE_", "PMI_")


def wrapper(folder: Path) -> list[str]:
    """Return the program that mpirun starts for each worker of the job with this folder.

    The script and its arguments are not part of it: mpirun would take a lone ``:`` among them
    for the beginning of another program.
    """
    return [sys.executable, str(_WRAPPER), str(folder)]


def stand_in(folder: Path) -> list[str]:
    """Return the program that mpirun starts for each worker that lives on another host."""
    return [sys.executable, str(_STAND_IN), str(folder)]


def command(installation: Installation, workers: int, program: Sequence[str]) -> list[str]:
    """Return the command that starts ``workers`` times the ``program``, on this host."""
    return [
        str(installation.mpirun),
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *("--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"),
        # Inside a batch allocation mpirun would start its daemons on the other nodes.
        *("--prtemca", "ras", "^slurm,pbs,tm,lsf,gridengine", "--prtemca", "plm", "ssh"),
        *("--host", f"localhost:{workers}", "-n", str(workers)),
        *program,
    ]


def environment(
    installation: Installation,
    workers: int,
    settings: Settings,
    environ: Mapping[str, str],
    cores: int,
    transport: str = "sm",
) -> dict[str, str]:
    """Return the environment of mpirun, and so of all workers. ``environ`` is the launcher's.

    ``transport`` carries the workers' data: "sm" opens no port and starts faster, but takes all
    workers to be on one host.
    """
    assert settings.job_dir is not None
    folder = str(settings.job_dir)
    result = {name: value for name, value in environ.items() if not name.startswith("SPOTMPI_")}
    if "PMIX_RANK" in environ:
        # This launcher runs inside some other MPI job, whose variables are not about ours.
        result = {k: v for k, v in result.items() if not k.startswith(_MPI_VARIABLES)}
    result = installation.environment(result)
    result |= {
        **dict.fromkeys(_PLACES, folder),
        "OMPI_MCA_btl": f"self,{transport}",
        # Members of a merged communicator may decide differently in `han`: it hangs.
        "OMPI_MCA_coll": "^han,cuda",
        # It declares workers dead that merely compute; the wrappers see deaths at once.
        "OMPI_MCA_mpi_ft_detector": "0",
        **settings.to_environ(),
    }
    if workers > cores:
        # A worker that spins while it waits keeps the one that it waits for from the core:
        # small all-reduces of 8 workers on 2 cores take 0.8 ms with this, 4 ms without.
        result.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    # One worker's BLAS threads would otherwise fight with those of all the others.
    result.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))
    return result


def of_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """What mpirun told a stand-in, and its worker must know; where things lie differs by host."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_MPI_VARIABLES) and not name.endswith("_PREFIX")
    }


def name(given: Mapping[str, str]) -> tuple[str, int] | None:
    """As whom MPI knows the worker whose stand-in was told this, by `of_mpi`."""
    space, rank = given.get("PMIX_NAMESPACE"), given.get("PMIX_RANK", "")
    return (space, int(rank)) if space and rank.isdecimal() else None


def admission(given: Mapping[str, str]) -> dict[str, str]:
    """What a newcomer takes over of what its stand-in was told, by `of_mpi`."""
    return {name: value for name, value in given.items() if name not in _PLACES}


def on_host(
    installation: Installation,
    slots: int,
    settings: Settings,
    environ: Mapping[str, str],
    given: Mapping[str, str],
    cores: int,
) -> dict[str, str]:
    """Return the environment of a worker on an agent's host.

    ``installation`` and ``environ`` are the agent's, ``given`` is the stand-in's, by `of_mpi`.
    """
    own = environment(installation, slots, settings, environ, cores, "tcp")
    return own | dict(given) | {name: own[name] for name in _PLACES}
