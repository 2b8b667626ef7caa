"""The environment says what a worker is to do; nonsense in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.errors import UsageError
from spotmpi.settings import (
    NOTICES,
    Revocation,
    Settings,
    Watch,
    check,
    check_alone,
    parse_revocation,
)

FULL = Settings(
    job="spotmpi-1",
    job_dir=Path("/dev/shm/spotmpi-1"),
    channel_fd=7,
    trace=Path("/t/trace.jsonl"),
    checkpoint=Path("/c"),
    checkpoint_every=50,
    resume=True,
    min_workers=2,
    revoke=(Revocation(40, (2, 5)), Revocation(60, (1,))),
)


@pytest.mark.parametrize("settings", [Settings(), FULL])
def test_what_the_launcher_writes_the_worker_reads(settings: Settings) -> None:
    assert Settings.from_environ(settings.to_environ()) == settings


def test_an_empty_variable_is_an_absent_one() -> None:
    assert Settings.from_environ(dict.fromkeys(FULL.to_environ(), "")) == Settings()


def test_rank_and_world_are_mpirun_s() -> None:
    found = Settings.from_environ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"})
    assert (found.world_size, found.rank) == (4, 0)


def test_the_process_s_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", "/x")
    assert Settings.from_environ().checkpoint == Path("/x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPOTMPI_CHANNEL", "x"),
        ("SPOTMPI_CHECKPOINT_EVERY", "0"),
        ("SPOTMPI_CHECKPOINT_EVERY", "1.5"),
        ("SPOTMPI_MIN_WORKERS", "0"),
        ("SPOTMPI_MIN_WORKERS", "1_0"),
        ("SPOTMPI_RESUME", "yes"),
        ("SPOTMPI_REVOKE", "2@4;nonsense"),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        Settings.from_environ({name: value})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2,5@40", Revocation(40, (2, 5))), ("0@0", Revocation(0, (0,)))],
)
def test_a_revocation_can_be_written_and_read(text: str, expected: Revocation) -> None:
    assert parse_revocation(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text", ["", "2", "2@", "@4", "2@-1", "-1@2", "a@1", "1,@2", "1@2@3", "²@1"]
)
def test_a_revocation_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"W\[,W..\]@STEP"):
        parse_revocation(text)


def test_sensible_settings_pass() -> None:
    check(FULL, 6)
    check(Settings(revoke=(Revocation(3, (0, 1)),)), 2)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (Settings(revoke=(Revocation(1, (4,)),)), "there is no worker 4; .* workers 0 to 3"),
        (Settings(revoke=(Revocation(1, (2,)), Revocation(5, (2,)))), "worker 2 is named twice"),
        (Settings(revoke=(Revocation(1, (2, 2)),)), "worker 2 is named twice"),
        (Settings(min_workers=5, checkpoint=Path("/c")), "at least 5 workers .* starts with 4"),
        (Settings(min_workers=2), "needs --checkpoint DIR"),
        (Settings(resume=True), "resuming needs --checkpoint DIR"),
        (Settings(checkpoint_every=5), "needs --checkpoint DIR"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Settings, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check(settings, 4)


@pytest.mark.parametrize("source", NOTICES)
def test_what_counts_as_a_notice_is_read(source: str) -> None:
    environ = {"SPOTMPI_NOTICE": source, "SPOTMPI_NOTICE_ENDPOINT": "http://127.0.0.1:80"}
    assert Watch.from_environ(environ) == Watch(source, "http://127.0.0.1:80")


def test_without_a_word_about_notices_the_host_s_own_cloud_counts() -> None:
    assert Watch.from_environ({}) == Watch("auto", None)
    assert Watch.from_environ({"SPOTMPI_NOTICE": "", "SPOTMPI_NOTICE_ENDPOINT": ""}) == Watch()


@pytest.mark.parametrize(
    "endpoint", ["http://a", "http://a.b-c:65535", "http://[fd00:ec2::254]:80/", "http://1.2.3.4/"]
)
def test_an_address_of_a_service_is_taken(endpoint: str) -> None:
    assert Watch("ec2", endpoint).endpoint == endpoint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPOTMPI_NOTICE", "aws"),
        ("SPOTMPI_NOTICE", "EC2"),
        ("SPOTMPI_NOTICE_ENDPOINT", "1.2.3.4:80"),
        ("SPOTMPI_NOTICE_ENDPOINT", "https://1.2.3.4"),
        ("SPOTMPI_NOTICE_ENDPOINT", "http://1.2.3.4:65536"),
        ("SPOTMPI_NOTICE_ENDPOINT", "http://1.2.3.4:"),
        ("SPOTMPI_NOTICE_ENDPOINT", "http://user@1.2.3.4"),
        ("SPOTMPI_NOTICE_ENDPOINT", "http://1.2.3.4/path"),
        ("SPOTMPI_NOTICE_ENDPOINT", "http://a b"),
        ("SPOTMPI_NOTICE_ENDPOINT", "http://a\n"),
    ],
)
def test_nonsense_about_notices_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}: "):
        Watch.from_environ({name: value})


@pytest.mark.parametrize(
    "environ",
    [
        {"PMI_SIZE": "8", "PMI_RANK": "0"},  # MPICH, Intel MPI
        {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "0"},  # srun -n 8
        {"PMIX_RANK": "3"},
        {"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "0"},
        {"ALPS_APP_PE": "1"},
        {"MV2_COMM_WORLD_SIZE": "4"},
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0"},  # torchrun --nproc-per-node 2
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"},  # --nnodes 2
    ],
)
def test_one_of_several_processes_must_not_train_alone(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"one of several processes.*spotmpi run"):
        check_alone(environ)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        # In a batch script of `sbatch --ntasks=8`, and in `srun -n 1` there.
        {"SLURM_NTASKS": "8", "SLURM_NPROCS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"},
        {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"PMI_SIZE": "1", "PMI_RANK": "0"},
        {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "8", "RANK": "0"},  # said by many who start processes one by one
        {"PMI_SIZE": "", "FLUX_JOB_SIZE": "many"},
    ],
)
def test_one_process_may_train_alone(environ: dict[str, str]) -> None:
    check_alone(environ)
