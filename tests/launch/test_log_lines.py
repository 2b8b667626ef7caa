"""Log lines: one for each record, of whatever process, and nobody waits for them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi.launch.event_loop import Loop
from spotmpi.launch.log_lines import keep, to_pipe
from spotmpi.launch.showing.output import Output

LOG = logging.getLogger("spotmpi.some.module")

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"

FLOOD = """
import logging
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

logging.basicConfig(level=logging.INFO)
logging.getLogger("own").info("of the script's own")
with spotmpi.Trainer({"w": np.zeros(8)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    for step in range(3):
        for line in range(10_000):
            logging.getLogger("spotmpi.flood").info("line %d of step %d", line, step)
        trainer.step({"w": np.ones(8)})
"""

ALONE = """
import sys, logging
import numpy as np
import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

if "wanted" in sys.argv:
    logging.basicConfig(level=logging.INFO)
with spotmpi.Trainer({"w": np.zeros(8)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    trainer.step({"w": np.ones(8)})
logging.getLogger("spotmpi").warning("as bad as it gets")
"""


@pytest.fixture
def lines() -> Iterator[list[bytes]]:
    """What is kept of this process's log."""
    found: list[bytes] = []

    def write(line: bytes) -> bool:
        found.append(line)
        return True

    end = keep(write)
    yield found
    end()


def test_a_record_is_one_line_with_its_time_and_its_module(lines: list[bytes]) -> None:
    LOG.debug("worker %d\nsaid %s", 3, "this")
    (line,) = lines
    pattern = rf"{STAMP} spotmpi\.some\.module: worker 3 \| said this\n"
    assert re.fullmatch(pattern, line.decode()), line


def test_a_line_is_cut_that_a_pipe_would_not_take_whole(lines: list[bytes]) -> None:
    LOG.info("%s", 10_000 * "x")
    assert 1000 < len(lines[0]) <= 4096
    assert lines[0].endswith(b"x\n")


def test_a_wrong_log_call_ends_no_training() -> None:
    program = (
        "import logging; from spotmpi.launch.log_lines import keep\n"
        "keep(lambda line: bool(print(line)) or True)\n"
        "logging.getLogger('spotmpi.a').info('%d', 'no number')\n"
        "logging.getLogger('spotmpi.a').info('after')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "spotmpi.a: after" in done.stdout
    assert "no number" in done.stderr


def test_nobody_else_is_given_the_lines_and_afterwards_all_is_as_before() -> None:
    logger = logging.getLogger("spotmpi")
    before = logger.level, logger.propagate, list(logger.handlers)
    seen: list[logging.LogRecord] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    own = Own()
    logging.getLogger().addHandler(own)
    try:
        end = keep(lambda line: True)
        LOG.error("kept")
        end()
        LOG.error("not kept")
    finally:
        logging.getLogger().removeHandler(own)
    assert [record.getMessage() for record in seen] == ["not kept"]
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_a_pipe_that_nobody_reads_stops_nobody_and_says_what_is_missing() -> None:
    reading, writing = os.pipe()
    end = keep(to_pipe(writing))
    try:
        for number in range(10_000):
            LOG.debug("line %d", number)
        read = os.read(reading, 1 << 20)
        LOG.debug("again")
        read += os.read(reading, 1 << 20)
    finally:
        end()
        os.close(reading)
        os.close(writing)
    *kept, missing, last = read.decode().splitlines()
    assert all(line.endswith(f": line {number}") for number, line in enumerate(kept))
    assert missing == f"{10_000 - len(kept)} log lines are missing here: they came too fast"
    assert last.endswith(": again")


def test_a_pipe_whose_reader_is_gone_is_no_failure() -> None:
    reading, writing = os.pipe()
    end = keep(to_pipe(writing))
    try:
        os.close(reading)
        LOG.debug("for nobody")
    finally:
        end()
        os.close(writing)


def test_the_log_has_one_file_which_names_the_process_of_each_line(tmp_path: Path) -> None:
    loop = Loop()
    output = Output(loop, 5.0, log_dir=tmp_path)
    LOG.info("the launcher's own")
    output.log("worker 3 on h2", b"in two ")
    output.log("agent on h2", b"\x1b[2Jat once\n")
    output.log("worker 3 on h2", b"pieces\nunfinished")
    output.log("worker 3 on h2", b"")
    with output.closing():
        LOG.info("too late")
    loop.close()
    file = tmp_path / "spotmpi.log"
    own, *others = file.read_text().splitlines()
    assert re.fullmatch(rf"head: {STAMP} spotmpi\.some\.module: the launcher's own", own)
    assert others == [
        "agent on h2: ?[2Jat once",
        "worker 3 on h2: in two pieces",
        "worker 3 on h2: unfinished",
    ]
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_being_asked_for_there_is_no_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = Loop()
    output = Output(loop, 5.0)
    LOG.warning("hello")
    with output.closing():
        pass
    loop.close()
    assert "hello" not in capfd.readouterr().out


@pytest.mark.parametrize("wanted", [False, True])
def test_the_library_logs_for_whoever_sets_up_logging_and_for_nobody_else(
    tmp_path: Path, wanted: bool
) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    done = subprocess.run(
        [sys.executable, "alone.py", *(["wanted"] if wanted else [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    if wanted:
        assert "INFO:spotmpi.training.round_runner:step 1: training has finished" in done.stderr
    else:
        assert done.stderr == ""


@pytest.mark.parametrize("where", ["here", "behind an agent"])
@pytest.mark.matrix
def test_a_job_tells_what_all_its_processes_do(
    start: Callable[..., object], tmp_path: Path, where: str
) -> None:
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    trainer = Path(__file__).parent / "scripts" / "trainer.py"
    place = ["-n", 3] if where == "here" else ["--hosts", "hosts", "--no-replace"]
    options = ["--verbose", "--log-dir", "logs", "--revoke", "1@5"]
    running = start("run", *place, *options, trainer, 10)
    assert running.wait() == 0
    text = (tmp_path / "logs" / "spotmpi.log").read_text()
    for pattern in (
        rf"^head: {STAMP} spotmpi\.launch\.head\.agents: localhost is a host of the job",
        rf"^head: {STAMP} spotmpi\.launch\.head\.agents: worker 1 is dead",
        rf"^agent on localhost: {STAMP} spotmpi\.launch\.host\.agent: the head says Start\(worker",
        rf"^worker 1 on localhost: {STAMP} spotmpi\.launch\.host\.wrapper: worker 1 is process",
        rf"^worker 0 on localhost: {STAMP} spotmpi\.training\.exchange: step [56]: generation 1: 2",
        rf"^worker 2 on localhost: {STAMP} spotmpi\.training\.round_runner: step 10: training has",
    ):
        assert re.search(pattern, text, re.MULTILINE), f"{pattern}\n{text}"
        assert re.search(pattern, running.output, re.MULTILINE), f"{pattern}\n{running.output}"
    assert "PMIX_" not in text  # no process's environment
    assert "spotmpi.log" not in "".join(os.listdir(tmp_path))
    worker = (tmp_path / "logs" / "worker-0.log").read_text()
    assert worker == "worker 0 took 10 steps with 2\n"


@pytest.mark.matrix
def test_without_verbose_the_log_is_in_its_file_only(
    start: Callable[..., object], tmp_path: Path
) -> None:
    trainer = Path(__file__).parent / "scripts" / "trainer.py"
    running = start("run", "-n", 1, "--name", "quiet", "--log-dir", "logs", trainer, 3)
    assert running.wait() == 0
    said = {
        "spotmpi: job spotmpi-quiet: 1 worker on 1 host trains",
        "[0] worker 0 took 3 steps with 1",
    }
    assert set(running.output.splitlines()) == said
    assert "training has finished" in (tmp_path / "logs" / "spotmpi.log").read_text()


@pytest.mark.matrix
def test_a_flood_of_log_lines_holds_up_no_worker_and_stays_out_of_its_output(
    start: Callable[..., object], tmp_path: Path
) -> None:
    (tmp_path / "flood.py").write_text(FLOOD)
    running = start("run", "-n", 2, "--log-dir", "logs", "flood.py")
    assert running.wait() == 0
    text = (tmp_path / "logs" / "spotmpi.log").read_text()
    kept, dropped = text.count("spotmpi.flood: line"), 0
    for found in re.findall(r"(\d+) log lines are missing here", text):
        dropped += int(found)
    assert kept > 0
    assert kept + dropped <= 60_000
    lines = {line for line in running.output.splitlines() if not line.startswith("spotmpi: ")}
    assert lines == {"[0] INFO:own:of the script's own", "[1] INFO:own:of the script's own"}
