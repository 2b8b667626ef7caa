"""The trace: whole lines whoever dies, one record format, nothing written twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.errors import TraceError, UsageError
from spotmpi.trace.records import Tail, Trace, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def lines(path: Path) -> list[dict[str, Any]]:
    """The records as a reader sees them that knows nothing of us: each line is JSON or blank."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def test_a_record_is_a_line_with_its_kind_and_its_time(path: Path) -> None:
    trace = Trace(path)
    before = time.monotonic()
    trace.write("step", step=3, workers=[0, 2], digest=None)
    (record,) = read(path)
    assert list(record) == ["event", "at", "step", "workers", "digest"]
    assert before <= record.pop("at") <= time.monotonic()
    assert record == {"event": "step", "step": 3, "workers": [0, 2], "digest": None}
    assert lines(path)[0]["event"] == "step"


def test_the_simulator_brings_its_own_clock(path: Path) -> None:
    Trace(path, clock=lambda: 1.5).write("end")
    assert list(read(path)) == [{"event": "end", "at": 1.5}]


def test_a_trace_is_read_by_the_name_of_its_file_as_well(path: Path) -> None:
    Trace(path, clock=lambda: 1.5).write("end")
    assert list(read(str(path))) == list(read(path))


def test_without_a_path_nothing_happens() -> None:
    trace = Trace(None, clock=lambda: pytest.fail("the clock was read"))
    trace.begin(resume=True)
    trace.begin(resume=False)
    trace.write("step", step=object())
    assert trace.take_over() is None
    trace.close()


def test_numpy_numbers_are_numbers_and_not_finite_ones_are_named(path: Path) -> None:
    trace = Trace(path)
    trace.write(
        "step",
        step=np.int64(3),
        loss=np.float32(0.5),
        on=np.bool_(True),
        samples=np.arange(3),
        seconds=np.float64(0.25),
    )
    trace.write("step", step=np.int64(4), losses=[float("nan"), np.float32("-inf"), 1], sent={0: 5})
    trace.write("step", loss=np.array([1.0, np.inf]), nothing=(), rates=(float("nan"),))
    first, second, third = (
        {k: v for k, v in r.items() if k not in ("event", "at")} for r in read(path)
    )
    assert first == {"step": 3, "loss": 0.5, "on": True, "samples": [0, 1, 2], "seconds": 0.25}
    assert second == {
        "step": 4,
        "losses": [None, None, 1],
        "sent": {"0": 5},
        "not_finite": {"losses": "nan"},
    }
    assert third == {
        "loss": [1.0, None],
        "nothing": [],
        "rates": [None],
        "not_finite": {"loss": "inf", "rates": "nan"},
    }


def test_numbers_come_back_to_the_bit(path: Path) -> None:
    chance = random.Random(3)
    numbers = [chance.uniform(-1, 1) * 10.0 ** chance.randrange(-300, 300) for _ in range(1000)]
    Trace(path).write("step", numbers=numbers)
    assert next(read(path))["numbers"] == numbers


@pytest.mark.parametrize("value", [object(), 1j, np.complex64(1), b"bytes", {1, 2}, Path("x")])
def test_what_is_not_a_number_text_or_list_is_refused(path: Path, value: object) -> None:
    trace = Trace(path)
    for loss in (0.0, float("nan")):
        with pytest.raises(TypeError):
            trace.write("step", loss=loss, value=value)
    assert path.read_text() == ""


@pytest.mark.parametrize("place", ["file/trace", "missing/trace", ".", "/dev/full", "/proc/trace"])
def test_a_place_where_no_trace_can_be_is_a_clear_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"the trace .* cannot be written: .*; name a new file"):
        Trace(tmp_path / place)


def test_a_run_replaces_an_old_trace_and_a_resumed_one_goes_on_in_it(path: Path) -> None:
    append(path, '{"event":"step","at":0,"step":7}\n')
    other = Trace(path)  # another worker, there before the leader
    trace = Trace(path)
    trace.begin(resume=True)
    trace.write("resume", step=5)
    other.write("recovered", worker=1)
    assert [r["event"] for r in read(path)] == ["step", "resume", "recovered"]
    trace.begin(resume=False)
    trace.write("start")
    other.write("recovered", worker=1)
    assert [r["event"] for r in read(path)] == ["start", "recovered"]


def test_a_full_disk_ends_the_trace_and_not_the_training(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, other = Trace(path), Trace(path)
    trace.write("step", step=0)
    size, write = path.stat().st_size, os.write
    monkeypatch.setattr(os, "write", lambda fd, line: write(fd, line[:20]))
    with pytest.warns(RuntimeWarning, match=r"ends here for this worker: .*goes on without"):
        trace.write("step", step=1)
    monkeypatch.undo()
    trace.write("step", step=2)
    trace.begin(resume=False)
    assert path.stat().st_size == size + 20
    assert other.take_over() == 0
    other.write("step", step=1)
    assert [r["step"] for r in read(path) if r["event"] == "step"] == [0, 1]


# ----------------------------------------------------------------------------------- taking over


def test_who_takes_over_learns_the_last_step(path: Path) -> None:
    trace = Trace(path)
    assert trace.take_over() is None
    trace.write("start", workers=[0])
    assert trace.take_over() is None
    for step in range(3):
        trace.write("step", step=step)
        trace.write("recovered", step=99)
    assert trace.take_over() == 2
    assert len(list(read(path))) == 7, "nothing was unfinished, so nothing was written"


def test_a_resume_makes_later_steps_void(path: Path) -> None:
    trace = Trace(path)
    trace.write("step", step=7)
    trace.write("resume", step=5)
    assert trace.take_over() == 4
    trace.write("step", step=5)
    assert trace.take_over() == 5
    trace.write("resume", step=0)
    assert trace.take_over() is None


def test_only_as_much_of_the_end_is_read_as_must_be(path: Path) -> None:
    append(path, '{"event":"start","at":0}\n' + "x" * 1000 + "\n")  # would not be understood
    append(path, '{"event":"step","at":0,"step":7}\n')
    for _ in range(3000):
        append(path, '{"event":"recovered","at":0,"step":9,"pad":"' + "y" * 50 + '"}\n')
    assert Trace(path).take_over() == 7


def test_every_torn_line_is_mended_by_who_takes_over(path: Path) -> None:
    whole = '{"event":"step","at":0.5,"step":1,"text":"{\\"event\\":\\"x","workers":[0,1]}'
    for cut in range(1, len(whole) + 1):
        path.write_text('{"event":"step","at":0,"step":0}\n' + whole[:cut])
        assert [r["step"] for r in read(path)] == [0]
        trace = Trace(path)
        assert trace.take_over() == 0
        trace.write("step", step=1)
        assert [r["event"] for r in lines(path)] == ["step", "mended", "step"]
        assert lines(path) == list(read(path))
        trace.close()


def test_a_worker_that_wrote_behind_a_torn_line_is_heard(path: Path) -> None:
    append(path, '{"event":"step","at":0,"step":0}\n{"event":"step","at":0,"st')
    append(path, '{"event":"ste')
    Trace(path).write("recovered", worker=4)
    assert [r["event"] for r in read(path)] == ["step", "recovered"]
    assert Trace(path).take_over() == 0
    assert [r["event"] for r in lines(path)] == ["step", "recovered"]


def test_a_trace_that_is_one_torn_line_is_mended(path: Path) -> None:
    append(path, '{"event":"sta')
    assert Trace(path).take_over() is None
    assert [r["event"] for r in lines(path)] == ["mended"]


def test_taking_over_disturbs_nobody_who_writes(path: Path) -> None:
    script = """
import sys
from pathlib import Path
from spotmpi.trace.records import Trace
trace = Trace(Path(sys.argv[1]))
for number in range(2000):
    trace.write("step", step=number, worker=int(sys.argv[2]), pad="x" * (number * 37 % 9000))
    if number % 10 == 0 and int(sys.argv[2]) < 2:
        trace.take_over()
"""
    command = [sys.executable, "-c", script, str(path)]
    running = [subprocess.Popen([*command, str(worker)]) for worker in range(4)]
    assert [process.wait(timeout=120) for process in running] == [0] * 4
    found: dict[int, list[int]] = {worker: [] for worker in range(4)}
    for record in read(path):
        if record["event"] == "step":
            found[record["worker"]].append(record["step"])
    assert found == {worker: list(range(2000)) for worker in range(4)}


def test_workers_killed_in_mid_line_leave_a_trace_that_can_be_read(path: Path) -> None:
    script = """
import os, random, select, signal, sys
from pathlib import Path
from spotmpi.trace.records import Trace, read
path, chance = Path(sys.argv[1]), random.Random(5)
def spawn(event, first):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        trace = Trace(path)
        for step in range(first, 10**9):
            trace.write(event, step=step, pad="x" * chance.randrange(200_000))
            os.write(tell, b"x")
    os.close(tell)
    os.read(told, 1)
    return child, told
trace, last, torn = Trace(path), -1, 0
for _ in range(15):
    other, told_other = spawn("recovered", 0)
    child, told = spawn("step", last + 1)
    watch = os.pidfd_open(child)
    select.select([watch], [], [], chance.uniform(0, 0.003))
    for pid in child, other:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for fd in told, told_other, watch:
        os.close(fd)
    mine = [r["step"] for r in read(path) if r["event"] == "step"]
    assert mine == list(range(len(mine))), mine
    last = len(mine) - 1
    assert trace.take_over() == last
    trace.write("step", step=last + 1)
    last += 1
print(last)
"""
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    assert lines(path) == list(read(path))


# ---------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    "bad",
    ["garbage", '{"event":"step",', "[1]", '{"at":1}', '{"event":3}', '{"event":"x"} y', "\udcff"],
)
def test_a_broken_line_in_the_middle_is_an_error_with_its_number(path: Path, bad: str) -> None:
    good = b'{"event":"end","at":0}\n'
    path.write_bytes(good + b"\n" + bad.encode(errors="surrogateescape") + b"\n" + good)
    records = read(path)
    assert next(records)["event"] == "end"
    with pytest.raises(TraceError, match="line 3 is not a record"):
        next(records)


def test_lines_of_another_writer_are_read(path: Path) -> None:
    append(path, ' { "at": 0, "event": "end" }\n\n   \n')
    assert [r["event"] for r in read(path)] == ["end"]


def test_a_trace_that_is_not_there_is_a_clear_error(path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        list(read(path))
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        list(read(path.parent))


def test_the_descriptor_is_not_inherited(path: Path) -> None:
    trace = Trace(path)
    assert not os.get_inheritable(trace._fd)
    trace.close()
    trace.close()
    trace.write("end")


def test_a_trace_is_followed_record_by_record_also_where_its_end_is_torn(path: Path) -> None:
    tail, trace = Tail(path), Trace(path)
    trace.write("start", workers=[0])
    trace.write("step", step=0)
    assert [record["event"] for record in tail.new()] == ["start", "step"]
    append(path, '{"event":"step","st')
    assert list(tail.new()) == []
    trace.write("step", step=1)  # by another: the first one was killed over its line
    assert [record["step"] for record in tail.new()] == [1]
    append(path, '{"event":"step",')
    assert list(tail.new()) == []
    append(path, '"step":2}\n')
    assert [record["step"] for record in tail.new()] == [2]


def test_another_run_in_the_same_file_is_noticed_however_long_it_is(path: Path) -> None:
    tail = Tail(path)
    for run in range(3):
        path.unlink(missing_ok=True)
        trace = Trace(path)
        trace.write("start", run=run)
        for step in range(3 + 2 * run):
            trace.write("step", step=step)
        records = list(tail.new())
        assert records[0]["run"] == run
        assert len(records) == 4 + 2 * run
        assert tail.began_anew == (run > 0)
    assert list(tail.new()) == []
    assert not tail.began_anew


def test_what_is_followed_must_be_a_trace(path: Path) -> None:
    tail = Tail(path)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        list(tail.new())
    path.write_bytes(b'{"event":"start"}\n\x80garbage\n')
    with pytest.raises(TraceError, match="line 2 is not a record"):
        list(tail.new())
    with path.open("wb") as file:
        file.truncate((1 << 26) + 1)
    with pytest.raises(TraceError, match="a line of it has no end"):
        list(Tail(path).new())
