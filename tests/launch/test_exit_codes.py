"""Every exit code of `spotmpi run` that its table has, of real jobs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import spotmpi
from spotmpi.exit_codes import MEANINGS
from tests.launch.test_operating import folder_of

TRAINER = Path(__file__).parent / "scripts" / "trainer.py"

BY_ITSELF = {
    0: ["-n", 2, TRAINER, 5],
    1: ["-n", 2, "wrong.py"],
    2: ["-n", 2, "--resume", TRAINER],
    65: ["-n", 2, "nan.py"],
    69: ["-n", 2, "--revoke", "0,1@3", TRAINER, 50],
    71: ["-n", 2, "early.py"],
}
BY_SIGNAL = {
    129: signal.SIGHUP,
    130: signal.SIGINT,
    131: signal.SIGQUIT,
    143: signal.SIGTERM,
}
ASKED = {74: ["--now"], 75: []}


def test_the_table_has_them_all() -> None:
    assert MEANINGS.keys() == {*BY_ITSELF, *BY_SIGNAL, *ASKED}


@pytest.mark.parametrize("code", BY_ITSELF)
def test_jobs_that_end_by_themselves(start, tmp_path: Path, code: int) -> None:
    (tmp_path / "wrong.py").write_text("raise ValueError('planted')")
    (tmp_path / "nan.py").write_text(
        "import spotmpi, numpy as np\n"
        "from spotmpi.optimizers import SGD\n"
        "with spotmpi.Trainer([np.zeros(2)], optimizer=SGD(lr=1)) as trainer:\n"
        "    for step in range(9):\n"
        "        wrong = step == 4 and trainer.worker == 1\n"
        "        trainer.step([np.array([1.0, np.nan if wrong else 1.0])])\n"
        "print(trainer.worker, 'goes on')\n"
    )
    (tmp_path / "early.py").write_text(
        "import os, spotmpi, numpy as np\n"
        "from spotmpi.optimizers import SGD\n"
        "from spotmpi.strategies import SSGD\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "    os.kill(os.getpid(), 9)\n"
        "with spotmpi.Trainer([np.zeros(1)], optimizer=SGD(lr=1), strategy=SSGD()) as trainer:\n"
        "    trainer.step([np.zeros(1)])\n"
    )
    running = start("run", *BY_ITSELF[code])
    assert running.wait() == code, running.output
    if code == 65:
        assert "step 4: params[0] holds NaN or infinity, which no later" in running.output
        assert "step 4: worker 1 on localhost brought it to the others\n" in running.output
        assert all(f"{worker} goes on" in running.output for worker in range(2))


@pytest.mark.parametrize("code", BY_SIGNAL)
@pytest.mark.first("143")
def test_jobs_that_are_ended_by_a_signal(start, tmp_path: Path, code: int) -> None:
    """SIGTERM and Ctrl-C ask for a checkpoint where there is a place for one; here is none."""
    kept = [] if code in (130, 143) else ["--checkpoint", "kept"]
    running = start("run", "-n", 2, *kept, TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    os.kill(running.pid, BY_SIGNAL[code])
    assert running.wait() == code
    said = "Ctrl-C" if code == 130 else BY_SIGNAL[code].name
    assert f"spotmpi: {said}: the job was ended, and every worker in it" in running.output
    assert not list(tmp_path.glob("kept/*"))


@pytest.mark.parametrize("code", ASKED)
@pytest.mark.first("75")
def test_jobs_that_are_asked_to_end(start, code: int) -> None:
    running = start("run", "-n", 2, "--checkpoint", "kept", TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    stop = start("stop", *ASKED[code], "--job", folder_of(running).name)
    assert stop.wait() == 0
    assert f"ended with code {code}\n" in stop.output
    assert running.wait() == code


def test_sigterm_is_a_notice_where_a_checkpoint_can_be_kept(start, tmp_path: Path) -> None:
    """Spot shutdowns, containers and systemd send just that."""
    running = start("run", "-n", 2, "--checkpoint", "kept", TRAINER, "say:0@20")
    running.until("worker 0 at step 20")
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 75, running.output
    step = spotmpi.load(tmp_path / "kept").step
    assert step > 20
    assert f"spotmpi: checkpoint of step {step} written to" in running.output
    assert "revoked" not in running.output
    assert running.output.endswith(
        "the workers stopped on request (code 75): repeat the command with --resume to go on\n"
    )


@pytest.mark.parametrize("moment", ["in a step that takes long", "before the training"])
@pytest.mark.first("before the training")
def test_sigterm_ends_a_job_at_once_that_cannot_stop_soon(
    start, tmp_path: Path, moment: str
) -> None:
    """The first one where nothing is trained yet, else the second."""
    (tmp_path / "waits.py").write_text("import signal\nprint('waits')\nsignal.pause()\n")
    early = moment == "before the training"
    script = ["waits.py"] if early else [TRAINER, "say:0@20", "hang:all@20"]
    running = start("run", "-n", 2, "--checkpoint", "kept", *script)
    running.until("waits" if early else "worker 0 at step 20")
    os.kill(running.pid, signal.SIGTERM)
    if not early:
        running.until("SIGTERM \\(once more ends the job at once, without a checkpoint\\): the")
        assert running.alive
        os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 143
