"""What a build holds, and that one module is one module, however the project got here."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import spotmpi

ROOT = Path(__file__).resolve().parent.parent
LINKS = ("bench", "jobs", "kernels")
PYPROJECT = (ROOT / "pyproject.toml").read_text()
README_COMMANDS = (
    "python -m pip install '.[demo]' && spotmpi demo",
    "python -m pip install '.[test]' && python -m pytest",
)
BUILD = "import sys, setuptools.build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"


def copy_project(to: Path, *, links: bool) -> Path:
    """The project as an export would have it; without ``links``, as a zip tool that knows none."""
    dirt = shutil.ignore_patterns(
        ".git", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", ".venv"
    )
    shutil.copytree(ROOT, to, symlinks=True, ignore=dirt)
    if not links:
        for name in LINKS:
            link = to / "spotmpi" / name
            target = os.readlink(link)
            link.unlink()
            link.write_text(target)
    return to


def build(hook: str, source: Path, out: Path) -> Path:
    """One build by the backend's own hook (what pip and build call), in this environment."""
    out.mkdir()
    subprocess.run(
        [sys.executable, "-c", BUILD, hook, out],
        cwd=source,
        check=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    (made,) = out.iterdir()
    return made


def unpack(archive: Path, to: Path) -> Path:
    """The files of a wheel, as an installation has them, or of a source distribution."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(to)
        return to
    with tarfile.open(archive) as sdist:
        # Python 3.11.3 and older know no filters, 3.12 and newer want to be told one.
        sdist.extraction_filter = getattr(tarfile, "data_filter", None)
        sdist.extractall(to)
    (project,) = to.iterdir()
    return project


# This environment may have spotmpi as well, perhaps editable: the folder under test comes first,
# and so does the finder that an editable install put there.
ISOLATE = """
import site, sys
finders = list(sys.meta_path)
for module in [module for module in sys.modules if module.startswith("__editable__")]:
    del sys.modules[module]
sys.path.insert(0, {site!r})
site.addsitedir({site!r})
sys.meta_path.sort(key=lambda finder: finder in finders)
"""


def run_isolated(site: Path, code: str, cwd: Path) -> str:
    """What ``code`` prints where ``site`` is the site folder that holds spotmpi."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", ISOLATE.format(site=str(site)) + code],
        cwd=cwd,
        timeout=120,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def expected_files() -> set[str]:
    """Every module and data file that the tree holds, under its installed name."""
    found = {"spotmpi/py.typed"}
    for folder, installed in [("spotmpi", "spotmpi"), *((n, f"spotmpi/{n}") for n in LINKS)]:
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT / folder)
            through_link = folder == "spotmpi" and inside.parts[0] in LINKS
            data = {"data", "grafana", "mpirun", "slurm"} & {*inside.parts}
            wanted = path.suffix in (".py", ".cu", ".css") or data
            if path.is_file() and wanted and not through_link and "__pycache__" not in path.parts:
                found.add(f"{installed}/{inside}")
    return found


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build("build_wheel", copy_project(folder / "spotmpi", links=True), folder / "out")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(wheel, tmp_path_factory.mktemp("site"))


@pytest.mark.matrix
def test_the_wheel_holds_every_module_and_script_and_nothing_else(wheel: Path) -> None:
    names = contents(wheel)
    assert {name for name in names if ".dist-info/" not in name} == expected_files()


def test_the_wheel_claims_one_global_name(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in contents(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"spotmpi"}


def test_the_wheel_carries_the_licence_and_the_command(wheel: Path) -> None:
    names = contents(wheel)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
    parser = configparser.ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        parser.read_string(archive.read(entry_points).decode())
    assert dict(parser["console_scripts"]) == {"spotmpi": "spotmpi.cli:main"}


def test_a_wheel_from_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    sdist = build("build_sdist", copy_project(tmp_path / "spotmpi", links=True), tmp_path / "out")
    source = unpack(sdist, tmp_path / "unpacked")
    assert (source / "tests" / "conftest.py").is_file(), "the sdist holds the tests"
    assert contents(build("build_wheel", source, tmp_path / "wheel")) == contents(wheel)


def test_a_wheel_from_an_export_that_lost_the_symlinks_is_the_same(
    wheel: Path, tmp_path: Path
) -> None:
    source = copy_project(tmp_path / "spotmpi", links=False)
    assert contents(build("build_wheel", source, tmp_path / "out")) == contents(wheel)


def test_the_symlinks_are_relative_and_lead_to_the_folders() -> None:
    links = {name: os.readlink(ROOT / "spotmpi" / name) for name in LINKS}
    assert links == {name: f"../{name}" for name in LINKS}


ONCE = """
import sys
import spotmpi.bench, spotmpi.jobs, spotmpi.kernels.cpu
twice = [n for n in sys.modules if n.split(".")[0] in ("bench", "jobs", "kernels")]
assert not twice, twice
print(spotmpi.__file__, spotmpi.kernels.cpu.__file__)
"""


def test_an_installed_wheel_imports_from_any_folder(installed: Path, tmp_path: Path) -> None:
    where = run_isolated(installed, ONCE, tmp_path)
    assert where == f"{installed}/spotmpi/__init__.py {installed}/spotmpi/kernels/cpu.py"


def test_an_editable_install_imports_the_checkout(tmp_path: Path) -> None:
    source = copy_project(tmp_path / "spotmpi", links=True)
    site = unpack(build("build_editable", source, tmp_path / "out"), tmp_path / "site")
    where = run_isolated(site, ONCE, tmp_path)
    assert where == f"{source}/spotmpi/__init__.py {source}/spotmpi/kernels/cpu.py"


def test_a_bare_checkout_imports_without_an_install(tmp_path: Path) -> None:
    source = copy_project(tmp_path / "spotmpi", links=True)
    where = run_isolated(source, ONCE, tmp_path)
    assert where == f"{source}/spotmpi/__init__.py {source}/spotmpi/kernels/cpu.py"


def test_these_tests_know_each_module_under_one_name() -> None:
    twice = [name for name in sys.modules if name.split(".")[0] in LINKS]
    assert not twice


def test_the_command_is_installed_and_the_module_runs(installed: Path, tmp_path: Path) -> None:
    ask = "import runpy, sys; sys.argv[1:] = ['--help']\n"
    command = ask + "from spotmpi.cli import main; sys.exit(main())"
    module = ask + "runpy.run_module('spotmpi', run_name='__main__', alter_sys=True)"
    assert "usage: spotmpi" in run_isolated(installed, command, tmp_path)
    assert "usage: spotmpi" in run_isolated(installed, module, tmp_path)


def test_importing_spotmpi_starts_nothing(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys, threading, spotmpi\n"
        "heavy = {'mpi4py', 'numba', 'h5py', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "print(sorted(heavy), threading.active_count())"
    )
    assert run_isolated(installed, code, tmp_path) == "[] 1"


def test_what_is_installed_has_the_version_that_it_says(installed: Path, tmp_path: Path) -> None:
    said = "import spotmpi, importlib.metadata as m; print(m.version('spotmpi'))"
    assert run_isolated(installed, said, tmp_path) == spotmpi.__version__


@pytest.mark.parametrize("command", README_COMMANDS)
def test_the_readme_gives_the_command_on_a_line_of_its_own(command: str) -> None:
    lines = [line.strip() for line in (ROOT / "README.md").read_text().splitlines()]
    assert lines.count(command) == 1


def test_a_release_is_one_command_and_ci_runs_it() -> None:
    release = (ROOT / ".ci" / "release").read_text()
    assert "bash .ci/release " in (ROOT / ".ci" / "run").read_text()
    assert "bash .ci/release" in (ROOT / "CONVENTIONS.md").read_text()
    needed = re.search(r'^requires = \["(setuptools[^"]*)"\]', PYPROJECT, re.MULTILINE)
    assert needed is not None, "where the release reads with what to build"
    assert "readme_command demo" in release
