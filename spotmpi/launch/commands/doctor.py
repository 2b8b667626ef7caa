"""What a run would use on this host, and what would keep it from working."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from spotmpi import __version__, job_folder
from spotmpi.errors import UsageError
from spotmpi.launch import processes
from spotmpi.launch.limits import Limits
from spotmpi.launch.liveness import CALM, MOST
from spotmpi.launch.start import crowd, private_network, slurm
from spotmpi.launch.start.installation import NO_MPI, Installation, InstallationSearch, search
from spotmpi.launch.wording import count
from spotmpi.options import exit_codes
from spotmpi.settings import DETECT_MS

__all__ = ["Report", "add_arguments", "examine", "main", "problems"]

_MIB = 1 << 20
_PER_WORKER = 16 * _MIB
"""Shared memory that one worker's MPI may come to use: Open MPI's btl_sm_segment_size."""

_FOR_THE_JOB = 8 * _MIB
"""Shared memory of mpirun itself, with something to spare."""

_DETECTOR = (
    "off: Open MPI's takes busy workers for dead; each worker's wrapper sees its death at once"
)
_LOST_AFTER = (
    f"a silent host: {MOST * 1e3:.0f} ms, and {CALM * 1e3:.0f} ms where its beats come on time; it "
    f"ends its own workers after {Limits().fence:.0f} s. A stopped worker: {DETECT_MS} ms "
    "(--detect-ms)"
)
_FENCED = "mpirun has a network of its own; only your workers are let in"
_EXPOSED = (
    "while a job runs any user of this host, and who reaches its ports, can run commands as you: "
    "mpirun gets no network of its own here ({}). Train where you are alone (docs/hosts.md)"
)
_FEW_THREADS = (
    "no MPI_THREAD_MULTIPLE: a run starts, but no worker can join it later, and gradients travel "
    "only after the backward pass"
)
_COMPILED_AGAIN = (
    "PYTHONDONTWRITEBYTECODE is set: unless they came compiled, each worker compiles the modules "
    "that it imports, 1 s of a core, or 4 s with PyTorch"
)
_PACKAGES = ("mpi4py", "numpy", "numba", "h5py")


@dataclass(frozen=True)
class Report:
    """Rows of (what, what was found), and sentences about what must be put right."""

    rows: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        width = max(len(what) for what, _ in self.rows)
        lines = [f"{what:<{width}}  {found}" for what, found in self.rows]
        if self.problems:
            lines += ["", "A run would not start:", *(f"- {problem}" for problem in self.problems)]
        else:
            lines += ["", "A run would start."]
        return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = "Show what `spotmpi run` would use on this host, and whether it works."
    parser.epilog = "example: spotmpi doctor -n 8\n\n" + exit_codes(
        {0: "a run would start", 1: "a run would not start", 2: "wrong arguments"}
    )
    parser.add_argument(
        "-n", "--workers", metavar="N", help="for N workers (default: one per core)"
    )


def main(options: argparse.Namespace) -> int:
    """Print the report; 1 if a run would not start."""
    workers = processes.cores()
    if options.workers is not None:
        if not options.workers.isdecimal() or int(options.workers) < 1:
            raise UsageError(f"-n {options.workers}: a job needs at least 1 worker")
        workers = int(options.workers)
    report = examine(workers, os.environ)
    print(report)
    return 1 if report.problems else 0


def problems(
    found: InstallationSearch, workers: int, environ: Mapping[str, str], elsewhere: bool = False
) -> list[str]:
    """Return why a run of ``workers`` workers would not start: what `run` checks before it does.

    ``elsewhere``: they run on other hosts, whose agents look by themselves.
    Blocking, some milliseconds; longer only for an mpi4py that cannot choose its MPI.
    """
    result = []
    if found.found is None:
        result.append(NO_MPI)
    where, package = job_folder.home(), _mpi4py()
    here = 1 if elsewhere else workers
    need, free = _shared_memory_needed(here), _free(where)
    if free < need:
        result.append(
            f"{where} has {_mib(free)} free, but {count(here)} may need {_mib(need)} of shared "
            f"memory: enlarge it (mount -o remount,size={_mib(2 * need, 'M')} {where}; for a "
            f"container --shm-size={_mib(2 * need, 'm')}) or start fewer workers"
        )
    result += filter(None, [processes.few_descriptors(workers), crowd.too_many(here)])
    if package is None:
        result.append("mpi4py is not installed: `python -m pip install mpi4py`")
    elif found.found is not None and not (package / "_mpiabi.py").exists():
        # This one was built for one MPI, and no environment variable may change its mind.
        result += _mismatch(found.found, _loaded(found.found, environ))
    return result


def examine(workers: int, environ: Mapping[str, str]) -> Report:
    """Look at everything. Blocking, about half a second."""
    found = search(environ)
    wrong = problems(found, workers, environ)
    rows = list(_mpi_rows(found))
    if found.found is not None and _mpi4py() is not None:
        loaded = _loaded(found.found, environ)
        rows.append(("mpi4py loads", loaded or "nothing: `import mpi4py.MPI` fails"))
        wrong += [one for one in _mismatch(found.found, loaded) if one not in wrong]
    where, cores, network = job_folder.home(), processes.cores(), private_network.erect()
    turns = ": they take turns" if workers > cores else ""
    need = _mib(_shared_memory_needed(workers))
    memory = f"{where}: {_mib(_free(where))} free, {workers} workers may need {need}"
    if slurm.inside(environ):
        row, problem = _slurm(environ)
        rows.append(("Slurm", row))
        wrong += problem
    rows += [
        ("shared memory", memory),
        ("lost after", _LOST_AFTER),
        ("who gets in", _EXPOSED.format(network.why) if network.why else _FENCED),
        ("cores", f"{cores} for {workers} workers{turns}"),
        *((("start", many),) if (many := crowd.judged(workers)) else ()),
        ("GPU", _gpu()),
        *_cuda_rows(found.found, environ),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        *((("modules", _COMPILED_AGAIN),) if environ.get("PYTHONDONTWRITEBYTECODE") else ()),
        ("spotmpi", __version__),
        *((package, _version(package)) for package in _PACKAGES),
    ]
    return Report(tuple(rows), tuple(wrong))


def _mpi_rows(found: InstallationSearch) -> list[tuple[str, str]]:
    skipped = [("passed over", f"{one.mpirun}: {one.reason}") for one in found.skipped]
    mpi = found.found
    if mpi is None:
        return [*skipped, ("MPI", "none"), ("ULFM", "no")]
    return [
        *skipped,
        ("MPI", f"Open MPI {mpi.version}"),
        ("where", f"{mpi.mpirun}{' (from this Python environment)' if mpi.bundled else ''}"),
        ("ULFM", "yes"),
        ("threads", "MPI_THREAD_MULTIPLE" if mpi.thread_multiple else _FEW_THREADS),
        ("failure detector", _DETECTOR),
    ]


def _slurm(environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """What `spotmpi run` without -n and --hosts would use, and why it cannot."""
    try:
        allocation = slurm.find(environ)
    except UsageError as error:
        return "a job that cannot be used", [str(error)]
    if shutil.which("srun", path=environ.get("PATH")) is None:
        return str(allocation), ["srun is not on PATH: it starts the agents on the job's nodes"]
    return str(allocation), []


def _mpi4py() -> Path | None:
    spec = importlib.util.find_spec("mpi4py")
    return Path(spec.origin).parent if spec and spec.origin else None


def _loaded(mpi: Installation, environ: Mapping[str, str]) -> str:
    """Return the libmpi that mpi4py loads in the environment of a job, empty if it cannot."""
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; import mpi4py.MPI\n"
        "for line in open('/proc/self/maps'):\n"
        "    if '/libmpi.so' in line: print(line.split(None, 5)[5]); break\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=mpi.environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def _mismatch(mpi: Installation, loaded: str) -> list[str]:
    if loaded and Path(loaded).resolve() == mpi.libmpi.resolve():
        return []
    sentence = (
        f"mpi4py loads {loaded or 'no MPI at all'}, but {mpi.mpirun} belongs to {mpi.libmpi}: "
        "install mpi4py's wheel, which can load either "
        "(`python -m pip install --force-reinstall --only-binary mpi4py mpi4py`)"
    )
    return [sentence]


def _shared_memory_needed(workers: int) -> int:
    return workers * _PER_WORKER + _FOR_THE_JOB


def _free(where: Path) -> int:
    state = os.statvfs(where)
    return state.f_bavail * state.f_frsize


def _mib(size: int, unit: str = " MiB") -> str:
    return f"{size // _MIB}{unit}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cuda_rows(mpi: Installation | None, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """What workers with CuPy arrays would find; nothing where there is no CuPy."""
    if importlib.util.find_spec("cupy") is None:
        return []
    told = _ask([sys.executable, "-m", "spotmpi.launch.commands.cuda_probe"], environ)
    try:
        rows = [(str(what), str(found)) for what, found in json.loads(told)]
    except ValueError:
        rows = [("CUDA", "CuPy is installed, and `import cupy` fails or does not answer")]
    if mpi is not None:
        info = [str(mpi.mpirun.parent / "ompi_info"), "--parsable", "--all"]
        aware = re.search(
            r"_built_with_cuda_support:value:true$", _ask(info, mpi.environment(environ)), re.M
        )
        how = "knows CUDA" if aware else "was built without CUDA"
        rows.append(("MPI and CUDA", f"{how}; spotmpi gives it nothing but memory of the host"))
    return rows


def _ask(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """What it prints; nothing if it fails."""
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _gpu() -> str:
    names = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.*)$", information.read_text(), re.MULTILINE)
        names.append(found[1] if found else "NVIDIA")
    if not names and shutil.which("nvidia-smi"):
        try:
            told = subprocess.run(
                ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=20,
                text=True,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return "nvidia-smi does not answer"
        names = told.stdout.split("\n")[:-1] if told.returncode == 0 else []
    return ", ".join(names) or "none"
