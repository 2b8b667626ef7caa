"""Workers of one host have one state between them, whoever dies, leaves or joins."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.optimizers import LAMB, Adam, Momentum
from spotmpi.replay import check_exactly_once, check_replicas, replay
from spotmpi.trace.records import read
from tests.chaos import sharing
from tests.launch.asking import folder_of
from tests.launch.conftest import start  # noqa: F401
from tests.running import Running

SCRIPT = Path(__file__).parent / "sharing.py"
PLACE = re.compile(r"PLACE (\d+) (\d+) (\S+)")


def places(out: str) -> dict[int, dict[int, str]]:
    """By step and worker."""
    found: dict[int, dict[int, str]] = {}
    for step, worker, place in PLACE.findall(out):
        found.setdefault(int(step), {})[int(worker)] = place
    return found


def ends(out: str) -> set[str]:
    """What the workers that came to the end have come to, without their numbers."""
    return {
        line.partition("FINAL ")[2].partition(" ")[2]
        for line in out.splitlines()
        if "FINAL" in line
    }


def check(out: str, trace: Path, way: str = "step") -> None:
    """All have come to what the trace says that they must come to, to the bit."""
    optimizer = {"Adam": Adam, "LAMB": LAMB}.get(way, Momentum)(lr=0.01)
    records = list(read(trace))
    check_replicas(records)
    ((_, fingerprint, passes),) = map(str.split, ends(out))
    check_exactly_once(records, sharing.SAMPLES, int(passes))
    again = replay(records, sharing.start(), sharing.gradient, optimizer)
    assert fingerprint == str(sharing.fingerprint(again))


@pytest.mark.parametrize(
    "way",
    [
        "step",
        "ready",
        pytest.param("Adam", marks=pytest.mark.promise("memory that workers share")),
    ],
)
def test_all_have_the_same_memory_also_when_the_one_is_killed_that_it_belongs_to(
    run_spotmpi, tmp_path, way
) -> None:
    """Also if gradients come one by one, and the learning rate changes between them."""
    path = tmp_path / "trace.jsonl"
    args = ["--revoke", "0@5", "--revoke", "2@11", "--trace", path, SCRIPT, "2", way]
    done = run_spotmpi(["run", "-n", "4", *args], timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = places(done.stdout)
    for step, by_worker in found.items():
        assert len(set(by_worker.values())) == 1, (step, by_worker)
        assert "own" not in by_worker.values()
    for before, after in zip(list(found.values())[:-1], list(found.values())[1:], strict=True):
        assert before[1] != after[1]
    check(done.stdout, path, way)


@pytest.fixture
def replaced(start: Callable[..., Running], tmp_path: Path) -> Callable[[str], str]:  # noqa: F811
    """``replaced("Adam")``: what a job says in which worker 3 comes for worker 1 and trains on."""

    def run(way: str) -> str:
        trace = ["--trace", tmp_path / "trace.jsonl"]
        running = start("run", "-n", 3, "--replace", "--revoke", "1@5", *trace, SCRIPT, 0, way)
        # It trains, with what all have if they have it.
        running.until(rf"PLACE \d+ 3 {'own' if way == 'LAMB' else '[0-9]'}")
        (tmp_path / "enough").touch()
        assert running.wait() == 0, running.output
        return running.output

    return run


@pytest.mark.parametrize("way", ["step", "Adam"])
def test_while_a_newcomer_learns_each_has_its_own_and_then_it_has_what_all_have(
    replaced: Callable[[str], str], tmp_path: Path, way: str
) -> None:
    said = replaced(way)
    found = places(said)
    last = found[max(found)]
    assert 3 in last, "no newcomer came to the end"
    assert len(last) == 3
    assert len(set(last.values())) == 1
    assert "own" not in last.values()
    assert any(set(by_worker.values()) == {"own"} for by_worker in found.values())
    check(said, tmp_path / "trace.jsonl", way)


@pytest.mark.promise("a leave, of one that shares memory")
def test_who_is_told_to_leave_keeps_what_it_has(start, tmp_path: Path) -> None:  # noqa: F811
    os.mkfifo(tmp_path / "later")
    running = start("run", "-n", 3, SCRIPT, "0", "leaves")
    running.until("PLACE 5 1")
    assert start("shrink", "--worker", 1, "--job", folder_of(running).name).wait() == 0
    running.until("LEFT")
    running.until(rf"PLACE {max(places(running.output)) + 20} 2")
    (tmp_path / "later").write_text("now")
    assert running.until(r"KEPT (\w+)")[0][1] == "True"
    (tmp_path / "enough").touch()
    assert running.wait() == 0, running.output


def test_with_an_optimizer_of_ones_own_each_has_its_own(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "2", SCRIPT, "1", "own"], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    for by_worker in places(done.stdout).values():
        assert set(by_worker.values()) == {"own"}
    assert len(ends(done.stdout)) == 1


def test_with_lamb_each_has_its_own_and_a_newcomer_learns_array_by_array(
    replaced: Callable[[str], str], tmp_path: Path
) -> None:
    said = replaced("LAMB")
    last = places(said)
    assert 3 in last[max(last)], "no newcomer came to the end"
    for by_worker in last.values():
        assert set(by_worker.values()) == {"own"}
    check(said, tmp_path / "trace.jsonl", "LAMB")


def test_what_a_training_has_left_stays_as_it_is_while_the_next_one_goes_on(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "3", SCRIPT, "1", "twice"], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(ends(done.stdout)) == 1


@pytest.mark.parametrize("way", ["step", "Adam"])
def test_a_training_goes_on_from_a_checkpoint_of_what_all_have(run_spotmpi, tmp_path, way) -> None:
    """One of each step is written while the steps after it are made."""
    path = tmp_path / "trace.jsonl"
    kept = ["--checkpoint", tmp_path / "kept", "--checkpoint-every", "1", "--trace", path]
    args = ["run", "-n", "3", "--min-workers", "3", "--revoke", "1@17", *kept, SCRIPT, "2", way]
    stopped = run_spotmpi(args)
    assert stopped.returncode == 75, stopped.stdout + stopped.stderr
    resumed = run_spotmpi(["run", "-n", "3", "--resume", *kept, SCRIPT, "2", way])
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    found = places(resumed.stdout)
    assert min(found) > 17
    for by_worker in found.values():
        assert len(set(by_worker.values())) == 1
        assert "own" not in by_worker.values()
    check(resumed.stdout, path, way)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("mean", "have come to different calls"),
        ("break", "worker 1 left the training loop"),
        ("rate", "give the optimizer the same learning rate on all workers"),
    ],
)
def test_a_mistake_is_called_by_its_name(run_spotmpi, mistake: str, told: str) -> None:
    done = run_spotmpi(["run", "-n", "3", SCRIPT, "2", mistake], timeout=60)
    assert done.returncode == 1, done.stdout + done.stderr
    assert told in done.stdout + done.stderr
