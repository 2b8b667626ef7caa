"""What mpirun is told, by its command line and by its environment."""

from __future__ import annotations

from pathlib import Path

from spotmpi.launch.start import mpi_variables, mpirun
from spotmpi.launch.start.installation import Installation
from spotmpi.settings import Settings

SITE = Installation(
    prefix=Path("/opt/mpi"),
    mpirun=Path("/opt/mpi/bin/mpirun"),
    libmpi=Path("/opt/mpi/lib/libmpi.so.40"),
    version="5.0.3",
    thread_multiple=True,
    bundled=False,
)
FOLDER = Path("/dev/shm/spotmpi-x")


def environment(workers: int = 2, cores: int = 4, **environ: str) -> dict[str, str]:
    settings = Settings(job="spotmpi-x", job_dir=FOLDER, trace=Path("/t"))
    return mpirun.environment(SITE, workers, settings, environ, cores)


def test_nothing_of_the_script_is_on_mpirun_s_command_line() -> None:
    command = mpirun.command(SITE, 3, mpirun.stand_in(FOLDER))
    assert command[0] == "/opt/mpi/bin/mpirun"
    assert command[-1] == str(FOLDER)
    assert command[command.index("-n") + 1] == "3"
    assert command[command.index("--with-ft") + 1] == "ulfm"


def test_every_file_of_the_job_goes_to_its_folder() -> None:
    told = environment()
    for name in (
        "PRTE_MCA_prte_tmpdir_base",
        "OMPI_MCA_btl_sm_backing_directory",
        "OMPI_MCA_osc_sm_backing_directory",
        "SPOTMPI_JOB_DIR",
    ):
        assert told[name] == str(FOLDER)


def test_workers_get_the_settings_of_this_job_and_no_other() -> None:
    told = environment(SPOTMPI_RESUME="1", SPOTMPI_TRACE="/other", HOME="/home/me")
    assert told["SPOTMPI_TRACE"] == "/t"
    assert told["SPOTMPI_JOB"] == "spotmpi-x"
    assert told["HOME"] == "/home/me"
    assert "SPOTMPI_RESUME" not in told


def test_variables_of_an_outer_mpi_job_are_dropped_and_those_of_the_user_kept() -> None:
    assert environment(OMPI_MCA_x="mine")["OMPI_MCA_x"] == "mine"
    told = environment(PMIX_RANK="0", OMPI_MCA_num_procs="4", PRTE_LAUNCHED="1")
    assert not {"PMIX_RANK", "OMPI_MCA_num_procs", "PRTE_LAUNCHED"} & told.keys()


def test_a_worker_on_another_host_has_its_own_places_and_mpirun_s_word() -> None:
    given = mpi_variables.of_mpi(
        {
            "PMIX_RANK": "3",
            "OMPI_MCA_btl": "self,tcp",
            "PRTE_MCA_prte_tmpdir_base": "/on/the/head",
            "PMIX_PREFIX": "/on/the/head",
            "HOME": "/on/the/head",
        }
    )
    settings = Settings(job="spotmpi-x", job_dir=FOLDER)
    told = mpirun.on_host(SITE, 2, settings, {"HOME": "/here"}, given, 4)
    assert told["PMIX_RANK"] == "3"
    assert told["OMPI_MCA_btl"] == "self,tcp"
    assert told["SPOTMPI_JOB_DIR"] == str(FOLDER)
    assert told["HOME"] == "/here"
    assert not any("/on/the/head" in value for value in told.values())


def test_workers_yield_where_they_share_cores() -> None:
    name = "OMPI_MCA_mpi_yield_when_idle"
    assert name not in environment(workers=4, cores=4)
    assert environment(workers=5, cores=4)[name] == "1"
    assert environment(workers=5, cores=4, **{name: "0"})[name] == "0"


def test_those_that_started_together_share_memory_and_others_join_through_the_loopback() -> None:
    settings = Settings(job="spotmpi-x", job_dir=FOLDER)
    told = mpirun.environment(SITE, 2, settings, {}, 4, "sm,tcp")
    assert told["OMPI_MCA_btl"] == "self,sm,tcp"
    assert told["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert "OMPI_MCA_btl_tcp_if_include" not in environment()


def test_the_cores_are_divided_among_the_workers_threads() -> None:
    assert environment(workers=2, cores=8)["OMP_NUM_THREADS"] == "4"
    assert environment(workers=9, cores=8)["OMP_NUM_THREADS"] == "1"
    assert environment(OMP_NUM_THREADS="3")["OMP_NUM_THREADS"] == "3"
