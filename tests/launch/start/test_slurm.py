"""What a Slurm job says of its nodes, and how agents are started on them. (Slurm: tests/slurm.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch.start import slurm
from spotmpi.launch.start.hosts_file import HostLine

TRAINING = Path(__file__).parents[1] / "scripts" / "training.py"
JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2,1"}


def programs(folder: Path, **said: str) -> str:
    """A PATH on which these programs come first, as shell scripts."""
    folder.mkdir()
    for name, script in said.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,16(x2),4(x1)", [4, 16, 16, 4])],
)
def test_tasks_per_node_are_read_as_slurm_writes_them(counts: str, expected: list[int]) -> None:
    assert slurm.tasks(counts) == expected


@pytest.mark.parametrize(
    "counts", ["", "0", "2,", "2(x0)", "2(3)", "2(x3", "-1", "1 ", "²", "1_0", "9999999"]
)
def test_anything_else_is_not_understood(counts: str) -> None:
    with pytest.raises(UsageError, match="is not understood"):
        slurm.tasks(counts)


def test_each_node_has_as_many_workers_as_tasks() -> None:
    expected = (HostLine("a", slots=2), HostLine("b", slots=2), HostLine("c", slots=1))
    assert slurm.hosts(["a", "b", "c"], "2(x2),1") == expected
    with pytest.raises(UsageError, match="is about 3 nodes, but the job has 2"):
        slurm.hosts(["a", "b"], "2(x2),1")


def test_slurm_spells_out_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = 'test "$*" = "show hostnames n[1-2]" && printf "n1\\nn2\\n"'
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", scontrol=says))
    found = slurm.find(JOB)
    assert found == slurm.Allocation("12", (HostLine("n1", slots=2), HostLine("n2", slots=1)))
    assert str(found) == "job 12: 3 workers (n1 2, n2 1)"


@pytest.mark.parametrize(
    ("changed", "script", "said"),
    [
        ({"SLURM_TASKS_PER_NODE": ""}, "echo n1", "does not say on which nodes it runs"),
        ({"SLURM_JOB_NODELIST": ""}, "echo n1", "does not say on which nodes it runs"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "echo n1", "srun has started this command 4 times"),
        ({}, "echo bad >&2; exit 1", r"names no node \(bad\)"),
        ({}, "exit 0", r"names no node \(it said nothing\)"),
    ],
)
def test_what_cannot_be_understood_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    script: str,
    said: str,
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", scontrol=script))
    with pytest.raises(UsageError, match=said):
        slurm.find(JOB | changed)


def test_without_slurm_s_commands_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="have Slurm's commands on PATH"):
        slurm.find(JOB)


def step(folder: str, python: str, srun: str, where: Path) -> subprocess.CompletedProcess[str]:
    """What became of the command of an agent, with ``srun`` for a program."""
    command = slurm.Allocation("12", ()).command(HostLine("n1", slots=2, python=python), folder)
    environ = {**os.environ, "PATH": programs(where / "bin", srun=srun), "SLURM_LABELIO": "1"}
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


AS_A_STEP = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'


@pytest.mark.parametrize(
    ("folder", "python", "code", "said"),
    [
        ("/nonexistent", sys.executable, 90, "there is no folder /nonexistent on n1"),
        ("/", "/nonexistent", 91, "there is no /nonexistent on n1; name another"),
        ("/", "/bin/false", 1, "no agent could be started on n1 by srun (it said nothing, code 1"),
    ],
)
def test_what_is_missing_on_a_node_is_named(
    tmp_path: Path, folder: str, python: str, code: int, said: str
) -> None:
    done = step(folder, python, AS_A_STEP, tmp_path)
    assert done.returncode == code
    host = HostLine("n1", python=python)
    what = slurm.Allocation("12", ()).failure(host, code, "", folder)
    assert what.startswith(said)


def test_srun_s_own_reason_is_passed_on() -> None:
    said = "srun: error: Task launch failed on node n1: No route\nsrun: Job step aborted\n"
    assert slurm.Allocation("12", ()).failure(HostLine("n1"), 233, said, "/") == (
        "no agent could be started on n1 by srun (srun: error: Task launch failed on node n1: "
        "No route; srun: Job step aborted, code 233); `srun --overlap --jobid=12 -N1 -n1 -w n1 "
        "true` must work in this job"
    )


def test_a_step_hears_nothing_of_the_job_s_tasks(tmp_path: Path) -> None:
    told = step("/", "python", 'env; printf "%s\\n" "$@"', tmp_path).stdout.splitlines()
    assert not [line for line in told if line.startswith("SLURM_LABELIO")]
    assert {"--unbuffered", "--overlap", "--mpi=none", "--nodelist=n1", "--no-kill"} <= set(told)


@pytest.mark.matrix
def test_srun_is_asked_for_where_nobody_said_where_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start
) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    path = programs(tmp_path / "bin", scontrol="echo n1; echo n2", srun=AS_A_STEP)
    monkeypatch.setenv("PATH", path)
    running = start("run", TRAINING)
    assert running.wait() == 0, running.output
    assert "[2] worker 2 trained with 3" in running.output


@pytest.mark.parametrize("words", [("-n", "2"), ("--hosts", "hosts")])
def test_whoever_says_where_to_train_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start, words: tuple[str, str]
) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    path = programs(tmp_path / "bin", scontrol="exit 1", srun="exit 1")
    monkeypatch.setenv("PATH", path)
    running = start("run", *words, TRAINING)
    assert running.wait() == 0, running.output
    assert "worker 1 trained with 2" in running.output


def test_an_option_that_would_do_nothing_is_refused_in_a_job_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start
) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", scontrol="echo n1; echo n2"))
    running = start("run", "--token-file", "token", TRAINING)
    assert running.wait() == 2
    assert "--token-file is for agents that come by themselves" in running.output


@pytest.mark.parametrize(
    ("script", "said", "code"),
    [
        ("echo n1; echo n2", "job 12: 3 workers (n1 2, n2 1)", 0),
        ("exit 1", "names no node", 1),
    ],
)
def test_doctor_says_what_a_run_in_a_job_would_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start,
    script: str,
    said: str,
    code: int,
) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    path = programs(tmp_path / "bin", scontrol=script, srun="exit 0")
    monkeypatch.setenv("PATH", path)
    running = start("doctor")
    assert running.wait() == code, running.output
    assert said in running.output
