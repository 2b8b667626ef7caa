"""What each worker tells of its own time, and when it is written."""

from __future__ import annotations

from pathlib import Path

from spotmpi.protocol.control_word import ONCE, STEP
from spotmpi.trace.records import Record, Trace, read
from spotmpi.training.steps.timings import CpuTime, Timings


class Clock:
    """Shows what it is told to."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


def lines(file: Path) -> list[Record]:
    return list(read(file))


def test_a_round_is_split_into_what_the_script_took_and_the_rest(tmp_path: Path) -> None:
    file, clock, used = tmp_path / "t", Clock(), iter([(1.0, 5.0), (1.5, 5.25)])
    own = Timings(Trace(file), 3, clock, lambda: next(used))
    own.entered(10.25)
    own.entered(10.75)  # again, after a loss: it had come before
    own.committed(11.0, STEP, 0)
    (told,) = lines(file)
    told.pop("at")
    assert told == {
        "event": "timing",
        "worker": 3,
        "steps": [0],
        "committed": 11.0,
        "script_ms": [250.0],
        "round_ms": [750.0],
        "cpu_ms": [500.0],
        "starved_ms": [250.0],
    }


def test_other_rounds_are_told_with_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "t"
    own = Timings(Trace(file), 0, Clock(), None)
    own.entered(10.5)
    own.committed(11.0, ONCE, None)
    own.entered(11.25)
    own.committed(12.0, STEP, 0)
    (told,) = lines(file)
    assert told["between"] == {"0": ["once"]}
    assert (told["script_ms"], told["round_ms"]) == ([750.0], [1250.0])
    assert "cpu_ms" not in told


def run(file: Path, seconds: list[float]) -> Timings:
    clock = Clock()
    own = Timings(Trace(file), 0, clock, None)
    for number, took in enumerate(seconds):
        own.entered(clock.now)
        clock.now += took
        own.committed(clock.now, STEP, number)
    return own


def test_many_usual_rounds_share_a_line_and_a_slow_one_is_written_at_once(tmp_path: Path) -> None:
    file = tmp_path / "t"
    own = run(file, [0.01] * 200 + [0.03] + [0.01] * 10)
    told = [one["steps"] for one in lines(file)]
    assert [step for steps in told for step in steps] == list(range(201))
    assert told[-1][-1] == 200
    assert [len(steps) for steps in told] == [1] * 64 + [64, 64, 9]
    own.write()
    assert lines(file)[-1]["steps"] == list(range(201, 211))


def test_slow_rounds_are_written_after_seconds(tmp_path: Path) -> None:
    file = tmp_path / "t"
    run(file, [2.0] * 164)
    assert {len(one["steps"]) for one in lines(file)} == {1, 3}


def test_without_a_trace_nothing_is_kept() -> None:
    own = Timings(Trace(None), 0, Clock(), None)
    own.committed(11.0, STEP, 0)
    own.write()
    assert own._unwritten == []


def test_the_kernel_tells_what_this_thread_had() -> None:
    cpu = CpuTime()
    before = cpu()
    assert before is not None
    while (now := cpu()) is not None and now[0] == before[0]:
        pass
    assert now is not None
    assert now[0] > before[0]
    cpu.close()
    assert cpu() is None
