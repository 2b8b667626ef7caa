"""One command that starts a training, goes on with it and says when it is complete; one job at a
time."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import spotmpi
from spotmpi.training.keeping import checkpoint_file
from tests.launch.test_operating import folder_of

TRAINER = Path(__file__).parent / "scripts" / "trainer.py"


@pytest.mark.matrix
def test_the_same_line_starts_goes_on_and_says_when_it_is_complete(start, tmp_path: Path) -> None:
    line = "run", "-n", 2, "--checkpoint", "new/kept", "--resume", TRAINER
    first = start(*line, 30, "say:0@20", "hang:1@20")
    first.until("worker 0 at step 20")
    assert "spotmpi: there is no checkpoint in new/kept yet: training starts" in first.output
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = start(*line, 30)
    assert second.wait() == 0, second.output
    assert "worker 0 took 30 steps with 2" in second.output
    third = start(*line, 30)
    assert third.wait() == 0
    kept = tmp_path / "new" / "kept" / "checkpoint-000000000030.h5"
    assert third.output == (
        f"spotmpi: the training is complete: 30 steps, in {kept}; nothing is left to do. "
        'spotmpi.load("new/kept") gives the model; to train anew, name an empty folder\n'
    )
    longer = start(*line, 12)
    assert longer.wait() == 0
    assert f"spotmpi: training goes on from step 30: {kept}" in longer.output
    assert "worker 1 took 42 steps with 2" in longer.output
    assert spotmpi.load(tmp_path / "new" / "kept").step == 42
    left = {path.name for path in (tmp_path / "new" / "kept").iterdir()}
    assert left == {kept.name, "checkpoint-000000000042.h5", "finished.json"}


@pytest.mark.matrix
def test_what_stands_behind_a_training_is_done_by_the_next_start_if_all_die(
    start, tmp_path: Path
) -> None:
    """Nothing is trained again for it."""
    (tmp_path / "train.py").write_text(
        "import os, sys, numpy as np, spotmpi\n"
        "from spotmpi.optimizers import SGD\n"
        "from spotmpi.strategies import SSGD\n"
        "params = [np.zeros(3)]\n"
        "with spotmpi.Trainer(params, optimizer=SGD(lr=1), strategy=SSGD()) as trainer:\n"
        "    for batch in trainer.batches(40, batch_size=2):\n"
        "        print('trained')\n"
        "        trainer.step([np.ones(3)])\n"
        "if not os.path.exists('again'):\n"
        "    os.kill(os.getpid(), 9)\n"
        "print('evaluated after', trainer.steps)\n"
    )
    line = "run", "-n", 2, "--checkpoint", "kept", "--resume", "train.py"
    lost = start(*line)
    assert lost.wait() == 69, lost.output
    (tmp_path / "again").touch()
    again = start(*line)
    assert again.wait() == 0, again.output
    assert again.output.count("evaluated after 10") == 2
    assert "trained\n" not in again.output
    done = start(*line)
    assert done.wait() == 0
    assert "the training is complete: 10 steps" in done.output
    assert "evaluated" not in done.output


def spoil(folder: Path, how: str) -> None:
    """Leave a folder from which nobody can go on."""
    folder.mkdir()
    if how == "damaged":
        checkpoint_file.save(folder, 3, {"params/w": np.zeros(8)}).write_bytes(b"nothing")
    else:
        state = {"params/w": np.zeros(5), "seed": 0, "lr/reference": 2}
        checkpoint_file.save(folder, 3, state)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("damaged", r"^spotmpi run: no checkpoint in \S+ is usable: checkpoint-000000000003.h5"),
        ("another model", r"worker \d on localhost cannot begin: the checkpoint \S+ holds float64"),
    ],
)
def test_a_folder_that_cannot_be_gone_on_from_is_no_fault_of_the_script(
    start, tmp_path: Path, how: str, told: str
) -> None:
    spoil(tmp_path / "kept", how)
    running = start("run", "-n", 2, "--checkpoint", "kept", "--resume", TRAINER, 5)
    assert running.wait() == 71, running.output
    assert re.search(told, running.output, re.M), running.output
    assert "script is wrong" not in running.output
    assert "fix the script" not in running.output
    assert "Traceback" not in running.output


@pytest.mark.parametrize("what", ["--checkpoint", "--trace"])
@pytest.mark.matrix
def test_a_second_job_in_the_same_place_is_told_who_is_there(
    start, tmp_path: Path, what: str
) -> None:
    first = start("run", "-n", 2, what, "place", TRAINER, "say:0@20")
    first.until("worker 0 at step 20")
    name = folder_of(first).name
    resume = ["--resume"] if what == "--checkpoint" else []
    for more in ([], resume):
        second = start("run", "-n", 2, what, "place", *more, TRAINER, 3)
        assert second.wait() == 71, second.output
        assert re.search(
            rf"^spotmpi run: \S+/place is in use by {name} \(process {first.pid} on \S+, "
            r"trainer.py\), and two jobs",
            second.output,
        ), second.output
        assert second.output.count("\n") == 1
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    third = start("run", "-n", 2, what, "place", *resume, TRAINER, 3)
    assert third.wait() == 0, third.output
    assert not [path.name for path in tmp_path.rglob("*.lock")]


@pytest.mark.matrix
def test_a_job_without_a_launcher_has_its_folder_for_itself_as_well(start, tmp_path: Path) -> None:
    first = start("run", "-n", 1, "--checkpoint", "place", TRAINER, "say:0@20")
    first.until("worker 0 at step 20")
    program = (
        "import os, sys, runpy; os.environ['SPOTMPI_CHECKPOINT'] = 'place'; sys.argv.pop(0)\n"
        "runpy.run_path(sys.argv[0])"
    )
    alone = start(TRAINER, 3, command=["-c", program])
    assert alone.wait() == 1
    assert "InUse: place is in use by spotmpi-" in alone.output
    os.kill(first.pid, signal.SIGQUIT)
    assert first.wait() == 131
    alone = start(TRAINER, 3, command=["-c", program])
    assert alone.wait() == 0, alone.output
    assert [path.suffix for path in (tmp_path / "place").iterdir()] == [".h5"]


@pytest.mark.matrix
def test_a_trace_replaces_nothing_but_a_trace(start, tmp_path: Path) -> None:
    precious = tmp_path / "train.py"
    precious.write_text("print('precious')\n")
    refused = start("run", "-n", 1, "--trace", "train.py", TRAINER, 3)
    assert refused.wait() == 2
    assert "train.py cannot be written: it holds something else, which would be" in refused.output
    assert precious.read_text() == "print('precious')\n"
    for _ in range(2):
        assert start("run", "-n", 1, "--trace", "run.jsonl", TRAINER, 3).wait() == 0
