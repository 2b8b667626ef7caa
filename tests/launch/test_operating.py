"""Users look at real jobs while they run, stop them, take workers out; nothing is left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi import job_folder
from spotmpi.launch.commands import client
from spotmpi.launch.commands.client import ask, until_end
from spotmpi.launch.control_messages import AskStop, Said
from spotmpi.launch.head.control_socket import DESK
from tests.launch.asking import folder_of, states, step, until
from tests.running import LIMIT

TRAINER = Path(__file__).parent / "scripts" / "trainer.py"


def test_a_job_says_how_it_stands(start) -> None:
    running = start("run", "-n", 3, TRAINER, "say:0@20", "hang:2@30", "\udcff")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    assert (folder / DESK).stat().st_mode & 0o777 == 0o600
    seen = until(folder, step(30))
    assert seen.job == folder.name
    assert seen.script == str(TRAINER)
    assert seen.launcher == running.pid
    assert states(seen) == ["training"] * 3
    seen = until(folder, lambda now: (now.workers[2].awaited_seconds or 0) > 1)
    assert [worker.doing for worker in seen.workers] == ["round", "round", "script"]
    shown = start("status", "--job", folder.name)
    assert shown.wait() == 0
    assert "say:0@20 hang:2@30 \\udcff\n" in shown.output
    assert re.search(r"^ +2 +\d+ +training; others have waited \d+ s for it", shown.output, re.M)
    told = start("status", "--json", "--job", folder.name.removeprefix("spotmpi-"))
    assert told.wait() == 0
    assert json.loads(told.output)["workers"][1]["host"] == "localhost"
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


@pytest.mark.parametrize("where", ["here", "behind an agent"])
@pytest.mark.first("here")
def test_workers_that_are_asked_to_stop_keep_a_checkpoint(
    start, hosts: Path, tmp_path: Path, where: str
) -> None:
    place = ["-n", 2] if where == "here" else ["--hosts", hosts]
    running = start("run", *place, "--checkpoint", "kept", TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    stop = start("stop", "--job", folder_of(running).name)
    assert stop.wait() == 0, stop.output
    assert "the workers stop after this step, with a checkpoint" in stop.output
    assert "ended with code 75\nthe workers stopped on request" in stop.output
    assert "--min-workers" not in stop.output
    assert running.wait() == 75
    assert "spotmpi: the workers stopped on request (code 75)" in running.output
    (kept,) = (tmp_path / "kept").glob("*.h5")
    again = start("run", "-n", 1, "--checkpoint", "kept", "--resume", TRAINER, 3)
    assert again.wait() == 0
    (taken,) = re.findall(r"worker 0 took (\d+) steps with 1", again.output)
    assert int(taken) == 3 + int(kept.stem.rpartition("-")[2]) > 23


@pytest.mark.matrix
def test_a_job_without_checkpoints_is_ended_at_once(start) -> None:
    running = start("run", "-n", 2, TRAINER, "say:0@20", "hang:all@30")
    running.until("worker 0 at step 20")
    stop = start("stop", "--job", folder_of(running).name)
    assert stop.wait() == 0, stop.output
    assert "the job is ended at once: it has no --checkpoint" in stop.output
    assert "ended with code 130" in stop.output
    assert running.wait() == 130
    assert "spotmpi: spotmpi stop; the job was ended" in running.output


@pytest.mark.parametrize("where", ["here", "behind an agent"])
@pytest.mark.first("here")
def test_a_worker_is_taken_out_and_the_others_train_on(start, hosts: Path, where: str) -> None:
    place = ["-n", 2] if where == "here" else ["--hosts", hosts]
    running = start("run", *place, TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    shrink = start("shrink", "--worker", 1, "--job", folder.name)
    assert shrink.wait() == 0, shrink.output
    running.until(r"worker 1 on \S+ left before step \d+: 1 of 2 workers remains")
    seen = until(folder, lambda now: states(now)[1] == "left" and now.step is not None)
    assert seen.generation == 1
    assert states(seen) == ["training", "left"]
    until(folder, step(seen.step + 5))
    refused = start("shrink", "--worker", 0, "--job", folder.name)
    assert refused.wait() == 2
    assert "nobody would train on without worker 0" in refused.output
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 143


@pytest.mark.matrix
def test_a_launcher_that_is_stopped_by_a_key_says_so_and_goes_on_later(start) -> None:
    running = start("run", "-n", 2, TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    os.kill(running.pid, signal.SIGTSTP)
    os.waitid(os.P_PID, running.pid, os.WSTOPPED)
    running.until("Ctrl-Z stops the launcher alone; the workers go on")
    os.kill(running.pid, signal.SIGCONT)
    running.until("the launcher was stopped, and goes on")
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


def test_a_sigcont_to_a_launcher_that_was_not_stopped_says_nothing(start) -> None:
    """systemd, Slurm and timeout(1) send it behind SIGTERM."""
    running = start("run", "-n", 2, "--checkpoint", "kept", TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    os.kill(running.pid, signal.SIGTERM)
    os.kill(running.pid, signal.SIGCONT)
    assert running.wait() == 75
    assert "goes on" not in running.output


@pytest.mark.matrix
def test_watching_ends_with_the_job(start) -> None:
    running = start("run", "-n", 2, "--checkpoint", "kept", TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    watch = start("status", "--watch", "--job", folder.name)
    watch.until("^job .*trainer.py", times=2)
    ask(folder, AskStop(), Said)
    assert watch.wait() == 0, watch.output
    assert running.wait() == 75
    last = watch.output.rpartition("\njob ")[2]
    assert "ended       code 75: stopped below --min-workers, by a notice, Ctrl-C, SIG" in last
    assert "workers     2: 2 stopped" in last
    assert "checkpoint  step" in last
    assert "\x1b" not in watch.output


@pytest.mark.matrix
def test_ctrl_c_ends_the_watching_and_nothing_else(start) -> None:
    running = start("run", "-n", 2, TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    watch = start("status", "--watch", "--json", "--job", folder.name)
    watch.until('^{"job"', times=1)
    os.kill(watch.pid, signal.SIGINT)
    assert watch.wait() == 130
    assert "Traceback" not in watch.output
    assert states(client.status(folder)) == ["training"] * 2
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 13 lines."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    subprocess.run(["stty", "rows", "13", "cols", "60"], stdin=theirs, check=True)
    yield ours, theirs
    os.close(ours)


@pytest.mark.matrix
def test_on_a_terminal_the_table_is_refreshed_in_place(start, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    running = start("run", "-n", 2, TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    with subprocess.Popen(
        [sys.executable, "-m", "spotmpi", "status", "--watch", "--job", folder.name],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")},
    ) as watch:
        os.close(theirs)
        shown = b""
        end = time.monotonic() + LIMIT
        while shown.count(b"\x1b[10F\x1b[J") < 2:  # back to the first of its ten lines
            assert time.monotonic() < end, shown
            assert select.select([ours], [], [], LIMIT)[0], shown
            shown += os.read(ours, 1 << 16)
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait() == 143
        while b"ended" not in shown:
            assert time.monotonic() < end + LIMIT, shown
            assert select.select([ours], [], [], LIMIT)[0], shown
            shown += os.read(ours, 1 << 16)
        assert watch.wait(LIMIT) == 0
    lines = re.sub(rb"\x1b\[\w+", b"", shown).splitlines()
    assert max(map(len, lines)) == 60
    assert re.match(rb"\S+ +0-1 +ended$", lines[-1])


@pytest.mark.matrix
def test_whoever_asks_and_hangs_or_says_garbage_does_no_harm(start) -> None:
    running = start("run", "-n", 2, TRAINER, "say:0@20", "hang:all@3000")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    links = []
    for said in (b"", b'{"ask": ', b"\0" * 100, b"x" * 100_000, b'{"ask": "end"}\n'):
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(folder / DESK))
        links.append(link)
        try:
            link.sendall(said)
        except OSError:  # it is left in the middle of what it says
            assert len(said) > 4096
    watch = start("status", "--watch", "--job", folder.name)
    watch.until("^job")
    os.kill(watch.pid, signal.SIGSTOP)
    before = until(folder, step(1)).step
    until(folder, step(before + 100))
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130
    assert not folder.exists()
    os.kill(watch.pid, signal.SIGCONT)
    assert watch.wait() == 0
    assert "ended       code 130" in watch.output
    for link in links:
        link.close()


@pytest.mark.parametrize("where", ["here", "behind an agent"])
@pytest.mark.first("here")
def test_a_killed_launcher_leaves_no_socket_and_nobody_who_waits(
    start, ended, hosts: Path, where: str
) -> None:
    place = ["-n", 2] if where == "here" else ["--hosts", hosts]
    running = start("run", *place, TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    watch = start("status", "--watch", "--job", folder.name)
    watch.until("^job")
    everything = running.children(running.pid)
    for pid in everything:
        everything += running.children(pid)
    with until_end(folder):
        os.kill(running.pid, signal.SIGKILL)
        assert watch.wait() == 1
    assert f"the launcher of {folder.name} was killed, and the job with it" in watch.output
    assert all(ended(pid) for pid in everything)
    assert running.wait() == -signal.SIGKILL
    assert not folder.exists()


def test_a_launcher_that_is_killed_with_its_keeper_leaves_nothing_either(start) -> None:
    """`pkill -9 -f "spotmpi run"` finds both."""
    running = start("run", "-n", 2, TRAINER, "say:0@20", "hang:all@30")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in running.children(running.pid)}
    (keeper,) = (pid for pid, name in names.items() if name == "spotmpi-keeper\n")
    os.kill(keeper, signal.SIGKILL)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    deadline = time.monotonic() + LIMIT
    while folder.exists():
        assert time.monotonic() < deadline


@pytest.mark.matrix
def test_workers_are_quiet_and_their_files_have_it_all(start, tmp_path: Path, hosts: Path) -> None:
    for place in (["-n", 2], ["--hosts", hosts]):
        arguments = ["--quiet", "--name", "files", "--log-dir", "logs", TRAINER, 10, "say:all@3"]
        running = start("run", *place, *arguments)
        assert running.wait() == 0
        assert running.output == "spotmpi: job spotmpi-files: 2 workers on 1 host train\n"
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    for worker in range(2):
        file = tmp_path / "logs" / f"worker-{worker}.log"
        assert file.stat().st_mode & 0o777 == 0o600
        assert sorted(file.read_text().splitlines()) == sorted(
            [
                f"worker {worker} at step 3",
                f"worker {worker} complains",
                f"worker {worker} took 10 steps with 2",
            ]
            * 2
        )


@pytest.mark.matrix
def test_with_a_log_dir_alone_workers_are_shown_as_well(start, tmp_path: Path, hosts: Path) -> None:
    running = start("run", "--hosts", hosts, "--log-dir", "logs", TRAINER, 10, "say:1@3")
    assert running.wait() == 0
    assert "[1] worker 1 at step 3\n" in running.output
    assert "worker 1 at step 3\n" in (tmp_path / "logs" / "worker-1.log").read_text()


@pytest.mark.matrix
def test_a_bug_is_shown_by_a_quiet_job(start, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("print('hello')\nraise ValueError('planted')")
    running = start("run", "-n", 2, "--quiet", "wrong.py")
    assert running.wait() == 1
    assert running.output.count("ValueError: planted") == 1
    assert "hello" not in running.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stall-timeout", "-1"], "--stall-timeout -1: give a number of seconds, 1 or more"),
        (["--stall-timeout", "x"], "--stall-timeout x: give"),
        (["--log-dir", "/proc/nothing"], "--log-dir /proc/nothing: no file can be written in"),
    ],
)
def test_wrong_arguments_are_named(start, arguments: list[str], said: str) -> None:
    running = start("run", "-n", 1, *arguments, TRAINER)
    assert running.wait() == 2
    assert said in running.output


@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_job_that_is_not_there_is_named(start, command: str) -> None:
    running = start(command, "--job", "spotmpi-0123456789ab")
    assert running.wait() == 1
    assert "there is no job spotmpi-0123456789ab of yours on this host" in running.output
    running = start(command, "--job", "../../etc")
    assert running.wait() == 2
    assert "--job ../../etc is no name of a job" in running.output


def test_what_a_dead_launcher_left_is_no_job(start) -> None:
    _, folder, lock = job_folder.create(1)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / DESK))
        running = start("status", "--job", folder.name)
        assert running.wait() == 1
        assert "is what is left of a job whose launcher was killed" in running.output
    finally:
        job_folder.remove(folder)
        os.close(lock)
