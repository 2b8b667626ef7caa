"""What a file holds that should be a trace: one sentence for what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi.errors import TraceError
from spotmpi.trace.records import Record
from spotmpi.trace.runs import alone, of_file, printable, split
from tests.trace.traced import changed, trace


def write(path: Path, records: list[Record], torn: bytes = b"") -> Path:
    path.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in records) + torn)
    return path


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", trace(), b'{"event":"step","st')
    assert alone(path) == trace()


def test_trainings_one_after_another_are_told_apart(tmp_path: Path) -> None:
    resumed = [
        {"event": "start", "at": 1.0, "workers": [0]},
        {"event": "resume", "at": 1.0, "step": 30},
    ]
    path = write(tmp_path / "t.jsonl", [*trace(), *resumed, *trace()])
    assert of_file(path) == [[*trace(), *resumed], trace()]
    with pytest.raises(TraceError, match="holds 2 trainings one after another"):
        alone(path)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "holds no record"),
        (b"\n\n", "holds no record"),
        (b"# Notes\n", "line 1 is not a record: '# Notes'"),
        (b"\x89PNG\r\n\x1a\n", "line 1 is not a record"),
        (b'{"a": 1}\n', "line 1 is not a record"),
        (b'{"event":"mended","at":1.0}\n', "tells of no training"),
        (b'{"event":"step","at":1.0}\n', "record 1: 'step' has no step"),
        (
            b'{"event":"step","step":"\\u001b[2J","workers":[0],"seconds":1}\n',
            r"step of 'step' is '\x1b[2J'",
        ),
        (b'{"event":"start","workers":["0"]}\n', "workers of 'start' holds ['0'], no whole nu"),
    ],
)
def test_what_is_no_trace_is_said_in_one_sentence(
    tmp_path: Path, data: bytes, sentence: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(TraceError) as found:
        of_file(path)
    assert sentence in str(found.value)
    assert "\n" not in str(found.value)
    assert str(found.value).isprintable()


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(TraceError, match="cannot be read"):
            of_file(path)


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("step", {"seconds": "1"}),
        ("step", {"seconds": -0.5}),
        ("step", {"digest": 5}),
        ("step", {"generation": True}),
        ("step", {"at": "now"}),
        ("recovery", {"lost": [1.5]}),
        ("recovery", {"detect_ms": []}),
        ("recovered", {"messages_sent": {"0": "many"}}),
        ("end", {"left_early": {}}),
        ("batches", {"n": None}),
        ("cause", {"why": 3}),
        ("step", {"loss": float("nan")}),
        ("step", {"seconds": float("inf")}),
        ("step", {"step": 10**400}),
    ],
)
def test_a_record_whose_fields_are_other_than_they_should_be_is_none(
    tmp_path: Path, event: str, fields: dict[str, object]
) -> None:
    path = write(tmp_path / "t.jsonl", changed(trace(), event, 0, **fields))
    with pytest.raises(TraceError, match=f"record .*{next(iter(fields))} of '{event}'"):
        of_file(path)


def test_nothing_that_a_file_holds_commands_a_terminal() -> None:
    assert printable("a\x1b[31mb\nc\u202e") == "a?[31mb?c?"


def test_of_nothing_there_is_nothing() -> None:
    assert split([]) == []
