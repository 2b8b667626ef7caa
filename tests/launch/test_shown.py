"""What a user sees of a real job while it runs: on a terminal, in a file, behind `head`."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.launch.asking import folder_of, states, step, until, worker_of
from tests.launch.showing.test_event_file import events
from tests.launch.showing.test_terminal import screen
from tests.running import LIMIT

ROOT = Path(__file__).parents[2]
TRAINER = Path(__file__).parent / "scripts" / "trainer.py"

BATCHES = """
import numpy as np
import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

with spotmpi.Trainer({"w": np.zeros(8)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    for batch in trainer.batches(4096, batch_size=2, passes=2000):
        trainer.step({"w": np.ones(8)}, loss=0.25)
"""


class Terminal:
    """A terminal with a job on both of its streams, or on its error stream only."""

    def __init__(self, folder: Path) -> None:
        self.reading, self.other = os.openpty()
        subprocess.run(["stty", "-opost", "rows", "30", "cols", "80"], stdin=self.other, check=True)
        self.folder = folder
        self.job: subprocess.Popen[bytes] | None = None
        self.written = b""

    def start(self, *arguments: object, out: int | None = None) -> subprocess.Popen[bytes]:
        """Start a job there."""
        self.job = subprocess.Popen(
            [sys.executable, "-m", "spotmpi", "run", *map(str, arguments)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=self.other if out is None else out,
            stderr=self.other,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
        )
        return self.job

    def until(self, condition: Callable[[list[str]], object]) -> list[str]:
        """Read on until this is so of the lines that stand there; return them."""
        deadline = time.monotonic() + LIMIT
        while not condition(lines := screen(self.written)):
            left = deadline - time.monotonic()
            assert select.select([self.reading], [], [], max(0.0, left))[0], lines
            self.written += os.read(self.reading, 1 << 16)
        return lines

    def close(self) -> None:
        """End everything."""
        os.close(self.reading)
        os.close(self.other)
        if self.job is not None and self.job.poll() is None:
            self.job.kill()
            self.job.wait()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal."""
    made = Terminal(tmp_path)
    yield made
    made.close()


@pytest.mark.matrix
def test_the_last_line_of_a_terminal_lives_and_the_others_stay_whole(terminal: Terminal) -> None:
    (terminal.folder / "batches.py").write_text(BATCHES)
    job = terminal.start("-n", 3, "--name", "live", "--revoke", "1@40", "batches.py")
    known = r"step \d+ of \d{7}, loss 0\.25, [\d.]+ steps/s, .*2 workers, .* to go$"
    lines = terminal.until(lambda lines: re.fullmatch(known, lines[-1]))
    assert lines[0] == "spotmpi: job spotmpi-live: 3 workers on 1 host train"
    assert any(line.startswith("spotmpi: recovered from the loss of worker 1") for line in lines)
    assert all(line.startswith("spotmpi: ") for line in lines[:-1])
    assert max(map(len, lines[:1] + lines[-1:])) < 80
    os.kill(job.pid, signal.SIGINT)
    lines = terminal.until(lambda lines: lines[-1] == "" and "Ctrl-C" in lines[-2])
    assert job.wait(LIMIT) == 130
    assert all(line.startswith("spotmpi: ") for line in lines[:-1]), "the living line is gone"


@pytest.mark.matrix
def test_what_workers_write_elsewhere_has_nothing_of_it(terminal: Terminal) -> None:
    with (terminal.folder / "out").open("wb") as out:
        terminal.start("-n", 2, TRAINER, "say:0@3", out=out.fileno())
        found = terminal.folder / "out"
        terminal.until(lambda lines: lines[-1].startswith("step ") and found.stat().st_size)
    text = found.read_bytes()
    assert text.startswith(b"[0] ")
    assert b"\x1b" not in text


def test_a_log_begins_with_who_trains_and_has_no_terminal_s_signs(start) -> None:
    keeps = ["--checkpoint", "kept", "--checkpoint-every", 10]
    running = start("run", "-n", 2, "--name", "log", *keeps, TRAINER)
    running.until(r"checkpoint of step \d+ written")
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 75
    assert running.output.startswith("spotmpi: job spotmpi-log: 2 workers on 1 host train\n")
    assert "\x1b" not in running.output
    again = start("run", "-n", 1, *keeps, "--resume", TRAINER, 3)
    assert again.wait() == 0
    said = r"^spotmpi: job \S+: 1 worker on 1 host trains; resumed from step \d+$"
    assert re.search(said, again.output, re.M)


@pytest.mark.matrix
def test_a_reader_that_has_enough_ends_no_training(tmp_path: Path) -> None:
    """`spotmpi run ... 2>&1 | head -1`."""
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "spotmpi", "run", "-n", "2", "--name", "head"),
            *(str(TRAINER), "50", "say:all@10"),
        ],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"spotmpi: job spotmpi-head: 2 workers on 1 host train\n"
        job.stdout.close()
        assert job.wait(LIMIT) == 0


def asked(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """All samples of an endpoint, by name and labels."""
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, {})[tuple(one.labels.values())] = one.value
    return found


def queries() -> list[tuple[str, set[str], list[tuple[str, str]]]]:
    """Of the dashboard: each query, the metrics in it, and what values labels of them have."""
    board = json.loads((ROOT / "jobs" / "grafana" / "spotmpi.json").read_text())
    found = []
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            labels = re.findall(r'(spotmpi_\w+)\{[^}]*\b(?!job)\w+="(\w+)"', query)
            found.append((query, set(re.findall(r"spotmpi_\w+", query)), labels))
    return found


@pytest.mark.matrix
def test_a_job_answers_prometheus_while_it_runs(start, tmp_path: Path) -> None:
    (tmp_path / "batches.py").write_text(BATCHES)
    arguments = ["--metrics", 0, "--price", "0.5", "--revoke", "1@40", "batches.py"]
    running = start("run", "-n", 3, *arguments)
    (told,) = running.until(r"metrics at (http://127\.0\.0\.1:\d+/metrics)$")
    running.until("recovered from the loss of worker 1 at step 40")
    host, port = told[1].split("/")[2].split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(5)]
    found: dict[str, dict[tuple[str, ...], float]] = {}
    deadline = time.monotonic() + LIMIT
    while found.get("spotmpi_samples_total", {}).get((), 0) < 500 or "spotmpi_loss" not in found:
        assert time.monotonic() < deadline, found
        found = asked(told[1])
    assert found["spotmpi_recoveries_total"][("killed",)] == 1
    assert found["spotmpi_recovery_seconds_total"][()] > 0
    assert found["spotmpi_workers"] == {("training",): 2, ("revoked",): 1}
    assert found["spotmpi_samples_again_total"] == found["spotmpi_gradients_again_total"] == {(): 0}
    assert found["spotmpi_worker_seconds_total"][("computing",)] > 0
    assert found["spotmpi_worker_seconds_total"][("communicating",)] > 0
    assert found["spotmpi_worker_seconds_total"][("stalled",)] > 0
    assert 0 < found["spotmpi_goodput"][()] < 1
    assert found["spotmpi_dollars_total"][()] > 0
    known = {re.sub(r"_total$", "", name) for name in found}
    for query, names, labels in queries():
        lacking = {re.sub(r"_total$", "", name) for name in names} - known
        assert lacking <= {"spotmpi_checkpoint_step"}, query  # (this job keeps none)
        for name, values in labels:
            assert any(values in one for one in found[name]), query
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130
    for one in silent:
        one.close()


@pytest.mark.matrix
def test_a_job_writes_an_event_file(start, tmp_path: Path) -> None:
    (tmp_path / "batches.py").write_text(BATCHES)
    running = start("run", "-n", 2, "--tensorboard", "runs", "batches.py")
    running.until("2 workers on 1 host train")
    deadline, seen = time.monotonic() + LIMIT, []
    while len(seen) < 4:
        assert time.monotonic() < deadline, seen
        files = [*(tmp_path / "runs").iterdir()]
        seen = events(files[0].read_bytes()) if files else []
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130
    assert 0 <= seen[1].step < seen[2].step < seen[3].step
    said = {value.tag: value.simple_value for value in seen[3].summary.value}
    assert (said["loss"], said["workers"]) == (0.25, 2)
    assert said["pace/steps per second"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tensorboard", "/proc/nothing"], "--tensorboard /proc/nothing: no file can be written"),
        (["--metrics", "x"], "--metrics x: give HOST:PORT"),
        (["--metrics", "99999"], "99999: give HOST:PORT, with a port of at most 65535"),
        (["--metrics", "192.0.2.1:0"], "--metrics 192.0.2.1:0: Cannot assign requested address"),
        (["--price", "1"], "--price is for --metrics"),
        (["--metrics", "0", "--price", "nan"], "--price nan: give what one host costs in an hour"),
    ],
)
def test_what_cannot_be_published_is_named(start, arguments: list[str], said: str) -> None:
    running = start("run", "-n", 1, *arguments, TRAINER)
    assert running.wait() == 2
    assert said in running.output


@pytest.mark.matrix
def test_jobs_and_their_processes_are_found(start) -> None:
    running = start("run", "-n", 2, TRAINER, "say:0@20", "hang:1@30")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    seen = until(folder, lambda status: (status.workers[1].awaited_seconds or 0) > 1)
    assert [one.pid for one in seen.workers] == [worker_of(running, at) for at in (0, 1)]
    shown = start("status", "--job", folder.name)
    assert shown.wait() == 0
    row = rf"^ +1 +{seen.workers[1].pid} +training; others have waited \d+ s for it"
    assert re.search(row, shown.output, re.M)
    listed = start("jobs")
    assert listed.wait() == 0
    row = rf"^{folder.name} +\d.* +30 +2 +\S+trainer.py say:0@20 hang:1@30$"
    assert re.search(row, listed.output, re.M)
    comm = Path(f"/proc/{running.pid}/comm").read_text()
    assert comm == "spotmpi-run\n"
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


@pytest.mark.matrix
def test_a_worker_of_a_module_is_named_after_it(start, tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(TRAINER.read_text())
    running = start("run", "-n", 1, "-m", "training", "say:0@5")
    running.until("worker 0 at step 5")
    words = Path(f"/proc/{worker_of(running, 0)}/cmdline").read_text().split("\0")
    assert words[-2] == "worker 0 of -m training"
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


@pytest.mark.matrix
def test_the_status_says_how_fast_it_goes(start, tmp_path: Path) -> None:
    (tmp_path / "batches.py").write_text(BATCHES)
    running = start("run", "-n", 2, "batches.py")
    running.until("2 workers on 1 host train")
    folder = folder_of(running)
    seen = until(folder, lambda status: status.seconds_to_go is not None)
    assert seen.steps_in_all == 2000 * 1024
    # A step may have begun in the time that is looked at, and its samples have not.
    assert seen.samples_per_second == pytest.approx(4 * seen.steps_per_second, abs=20)
    assert states(seen) == ["training"] * 2
    until(folder, step(1))
    shown = start("status", "--job", folder.name)
    assert shown.wait() == 0
    assert re.search(r"^training    step \d+ of 2048000, loss 0\.25, gen", shown.output, re.M)
    assert re.search(
        r"^pace        [\d.]+ steps/s, [\d.]+ samples/s, .* to go$", shown.output, re.M
    )
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130
