"""mpirun's command line and environment for a job on this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotmpi.launch.start.installation import Installation
from spotmpi.launch.start.mpi_variables import PLACES, without
from spotmpi.settings import Settings

__all__ = ["command", "environment", "on_host", "stand_in", "wrapper"]

_WRAPPER = Path(__file__).parents[1] / "host" / "wrapper.py"
_STAND_IN = Path(__file__).parents[1] / "host" / "stand_in.py"


def wrapper(folder: Path, worker: int, script: str) -> list[str]:
    """Return the program that an agent with this folder starts for a worker.

    Its last word is for people who look at processes.
    """
    return [sys.executable, str(_WRAPPER), str(folder), f"worker {worker} of {script}"]


def stand_in(folder: Path) -> list[str]:
    """Return the program that mpirun starts for each worker of the job with this folder.

    The script and its arguments are not part of it: mpirun would take a lone ``:`` among them
    for the beginning of another program.
    """
    # Without what a site adds to Python: there are as many of them as workers, all at once.
    return [sys.executable, "-S", str(_STAND_IN), str(folder)]


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

    ``transport`` carries the workers' data: "sm" opens no port and starts faster, but reaches only
    those that started together on one host; "sm,tcp" also those that join them there, through its
    loopback; "tcp" other hosts.
    """
    assert settings.job_dir is not None
    folder = str(settings.job_dir)
    result = {name: value for name, value in environ.items() if not name.startswith("SPOTMPI_")}
    if "PMIX_RANK" in environ:
        result = without(result)  # this launcher runs inside some other MPI job
    result = installation.environment(result)
    result |= {
        **dict.fromkeys(PLACES, folder),
        "OMPI_MCA_btl": f"self,{transport}",
        # Members of a merged communicator may decide differently in `han`: it hangs.
        "OMPI_MCA_coll": "^han,cuda",
        # It declares workers dead that merely compute; the wrappers see deaths at once.
        "OMPI_MCA_mpi_ft_detector": "0",
        **settings.to_environ(),
    }
    if transport == "sm,tcp":
        result["OMPI_MCA_btl_tcp_if_include"] = "lo"  # it is left out unless it is named
    if workers > cores:
        # A worker that spins while it waits keeps the one that it waits for from the core:
        # small all-reduces of 8 workers on 2 cores take 0.8 ms with this, 4 ms without.
        result.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    # One worker's BLAS threads would otherwise fight with those of all the others.
    result.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))
    return result


def on_host(
    installation: Installation,
    slots: int,
    settings: Settings,
    environ: Mapping[str, str],
    given: Mapping[str, str],
    cores: int,
) -> dict[str, str]:
    """Return the environment of a worker on an agent's host.

    ``installation`` and ``environ`` are the agent's, ``given`` is what its stand-in was given
    (`variables.of_mpi`).
    """
    own = environment(installation, slots, settings, environ, cores, "tcp")
    return own | dict(given) | {name: own[name] for name in PLACES}
