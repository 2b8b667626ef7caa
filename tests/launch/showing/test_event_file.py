"""What TensorBoard reads: another library's protocol buffers find what was written."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from spotmpi.launch.showing.event_file import EventFile, event, record
from spotmpi.launch.showing.figures import Figures
from tests.launch.showing.test_figures import report


def records(data: bytes) -> list[bytes]:
    """The contents of records, each checked."""
    found = []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
        found.append(data[12 : 12 + size])
        assert struct.unpack("<I", data[12 + size : 16 + size]) == (masked_crc32c(found[-1]),)
        data = data[16 + size :]
    return found


def events(data: bytes) -> list[event_pb2.Event]:
    return [event_pb2.Event.FromString(one) for one in records(data)]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_a_record_has_what_is_in_it(size: int) -> None:
    assert records(record(size * b"x") + record(b"y")) == [size * b"x", b"y"]


@pytest.mark.parametrize("step", [0, 1, 127, 128, 300, (1 << 62) + 5])
def test_an_event_has_its_step_and_its_values(step: int) -> None:
    (one,) = events(event(1.5, step, {"loss": 0.25, "time/é": -1e300}))
    assert (one.wall_time, one.step) == (1.5, step)
    said = {value.tag: value.simple_value for value in one.summary.value}
    assert said == {"loss": 0.25, "time/é": pytest.approx(-3.4028235e38)}


def test_a_job_writes_each_step_that_is_seen_once(tmp_path: Path) -> None:
    figures = Figures()
    figures.begins()
    file = EventFile(tmp_path / "new" / "runs", figures, pytest.fail)
    for step in (None, 5, 5, 9):
        status = report((3.0, 1.0, 0.0), step=step, loss=0.5, steps_per_second=2.0)
        figures.look(status, 0.0)
        file.look(status)
    file.close()
    (path,) = (tmp_path / "new" / "runs").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    version, first, second = events(path.read_bytes())
    assert version.file_version == "brain.Event:2"
    assert (first.step, second.step) == (5, 9)
    assert {value.tag: value.simple_value for value in second.summary.value} == {
        "loss": 0.5,
        "pace/steps per second": 2.0,
        "workers": 2.0,
        "time/computing": 0.75,
        "time/communicating": 0.25,
        "time/stalled": 0.0,
        "recoveries": 0.0,
    }


def test_a_folder_that_takes_no_file_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    file = EventFile(tmp_path / "file", Figures(), said.append)
    for step in (1, 2):
        file.look(report(step=step))
    file.close()
    (sentence,) = said
    assert "cannot be written (File exists); the training goes on" in sentence


def test_half_a_record_is_never_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes behind it would be lost to readers."""
    import resource
    import signal

    said: list[str] = []
    file = EventFile(tmp_path, Figures(), said.append)
    file.look(report(step=1))
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        file.look(report(step=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.stat().st_size == size
    file.look(report(step=3))
    file.close()
    assert [one.step for one in events(path.read_bytes())] == [0, 1, 3]
    assert len(said) == 1
