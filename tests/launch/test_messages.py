"""Nothing that comes from outside is believed: what decodes keeps its word, all else is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spotmpi.launch import control_messages, messages
from spotmpi.launch import link as trunk
from spotmpi.launch.auth import Frame
from spotmpi.launch.decoding import Malformed, Table, decode, encode

TABLES: dict[str, Table] = {
    name: value for name, value in vars(messages).items() if name.startswith("FROM_")
} | {"QUESTIONS": control_messages.QUESTIONS, "ANSWERS": control_messages.ANSWERS}

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 5),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["many", "\x1b[2J", "\ud800", "a=b", "nul\0", "1.2.3.4:5", 10**9, -1, 1 << 64]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def junk(draw: st.DrawFn, table: Table, key: str) -> bytes:
    """Something that looks like a message of a table, with fields of any kind, or none of them."""
    kind = draw(st.sampled_from(list(table.values())))
    fields: dict[str, Any] = {key: kind.event}
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]
        if draw(st.integers(0, 5)):
            fields[one.name] = draw(VALUES)
    if "said" in fields and draw(st.booleans()):
        fields["said"] = json.loads(draw(junk(messages.FROM_WORKER, "event")))
    return json.dumps(fields).encode()


def printable(wrong: Malformed) -> None:
    """It goes to the user as it is."""
    assert str(wrong).isprintable()


def sound(value: Any) -> None:
    """What has been decoded may be computed with, printed where it is to be, and passed on."""
    if dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            sound(getattr(value, one.name))
    elif isinstance(value, tuple):
        for entry in value:
            sound(entry)
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, dict):
        for name, text in value.items():
            assert "\0" not in name + text
            assert "=" not in name
    elif isinstance(value, str):
        value.encode(errors="surrogateescape")


@pytest.mark.parametrize("name", TABLES)
@given(data=st.data())
def test_what_decodes_is_sound_and_travels_unchanged(name: str, data: st.DataObject) -> None:
    table = TABLES[name]
    key = "ask" if name == "QUESTIONS" else "event"
    try:
        found = decode(data.draw(junk(table, key)), table, key)
    except Malformed as wrong:
        printable(wrong)
        return
    assert type(found) in table.values()
    sound(found)
    assert decode(encode(found), table) == found


REPORT = control_messages.Report(
    job="spotmpi-00",
    script="train.py",
    arguments=("--passes", "\udcff"),
    host="head",
    launcher=7,
    since="2026-11-21T14:02:10+01:00",
    seconds=753.2,
    generation=1,
    step=None,
    checkpoint=control_messages.SavedAt(120, "/runs/a"),
    unsaved="the disk is full",
    stopping=False,
    workers=(
        control_messages.WorkerReport(0, "h1", "training", None, None, 3, "round", 0.5, None),
        control_messages.WorkerReport(1, "h2", "revoked", "SIGKILL", "14:10", 2, None, None, 1.5),
    ),
    hosts=(control_messages.HostReport("h2", 40.0, None, 200.0),),
    ending=control_messages.EndReport(69, "every worker was revoked", "start it again"),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in what JSON has: where it is, and under which name or number."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    inner = [(value, key) for key in keys]
    return inner + [
        place
        for key in keys
        if isinstance(value[key], (dict, list))
        for place in places(value[key])
    ]


@given(data=st.data())
def test_a_report_with_anything_in_any_place_is_sound_or_refused(data: st.DataObject) -> None:
    value = json.loads(encode(REPORT))
    within, key = data.draw(st.sampled_from(places(value)))
    if data.draw(st.booleans()) and isinstance(within, dict):
        del within[key]
    else:
        within[key] = data.draw(VALUES)
    try:
        found = decode(json.dumps(value).encode(), control_messages.ANSWERS)
    except Malformed as wrong:
        printable(wrong)
        return
    sound(found)
    assert decode(encode(found), control_messages.ANSWERS) == found


def test_a_report_of_all_workers_that_a_long_job_has_had_travels_unchanged() -> None:
    workers = tuple(dataclasses.replace(REPORT.workers[0], worker=one) for one in range(5000))
    report = dataclasses.replace(REPORT, workers=workers)
    assert decode(encode(report), control_messages.ANSWERS) == report
    assert decode(encode(REPORT), control_messages.ANSWERS) == REPORT


@given(payload=st.binary(max_size=60), kind=st.integers(0, 255))
@example(payload=b"[" * 100_000, kind=trunk.MESSAGE)
@example(payload=b"9" * 10_000, kind=trunk.MESSAGE)
@example(payload=b'{"event": "progress", "entries": NaN}', kind=trunk.MESSAGE)
@example(payload=b"\xff\xfe{", kind=trunk.MESSAGE)
def test_any_frame_is_read_or_refused(payload: bytes, kind: int) -> None:
    for table in TABLES.values():
        try:
            trunk.read(Frame(kind, payload), table)
        except Malformed as wrong:
            printable(wrong)


@pytest.mark.parametrize(
    ("table", "text", "why"),
    [
        ("FROM_NEW_AGENT", '{"event": "hello"}', "hello.version is missing"),
        (
            "FROM_NEW_AGENT",
            '{"event": "offer", "name": "h", "slots": "many", "problem": null}',
            "offer.slots is 'many', not a whole number",
        ),
        (
            "FROM_NEW_AGENT",
            '{"event": "offer", "name": "h", "slots": 1000000000, "problem": null}',
            "offer.slots is 1000000000, not within 1 and 4096",
        ),
        (
            "FROM_NEW_AGENT",
            '{"event": "offer", "name": "\\u001b[2J", "slots": 1, "problem": null}',
            "offer.name is '?[2J', which is no name",
        ),
        ("FROM_NEW_AGENT", '{"event": "unfit"}', "unfit.why is missing"),
        ("FROM_NEW_AGENT", '{"event": "says", "text": ""}', "it is 'says', which is none of its"),
        (
            "FROM_AGENT",
            '{"event": "progress", "entries": [[0, 1]]}',
            "progress.entries[0] is [0, 1], not a list of 9",
        ),
        (
            "FROM_AGENT",
            '{"event": "progress", "entries": [[-1, 1, 1, 1, 0, 0, "", null, [0, 0, 0, 0, 0]]]}',
            "progress.entries[0].worker is -1, not within 0 and 1048575",
        ),
        (
            "FROM_AGENT",
            '{"event": "progress", "entries": [[0, 1, 1, 1, 0, 0, "", null, [0, 0, 0, -1, 0]]]}',
            "progress.entries[0].counted.waiting is -1.0, not within 0 and 1000000000.0",
        ),
        (
            "FROM_AGENT",
            '{"event": "progress", "entries": [[0, 1, 1, 1, 0, 0, "", null, [0, 9.5, 0, 0, 0]]]}',
            "progress.entries[0].counted.samples is 9.5, not a whole number",
        ),
        (
            "FROM_AGENT",
            '{"event": "claims", "links": [["head.example:1", "10.0.0.1:2", false]]}',
            "claims.links[0].here is 'head.example:1', which is no address and port",
        ),
        ("FROM_AGENT", '{"event": "heard", "worker": 0, "said": {}}', "heard.said is no message"),
        (
            "FROM_AGENT",
            '{"event": "heard", "worker": 0, "said": {"event": "left", "code": 256}}',
            "heard.said.code is 256, not within 0 and 255",
        ),
        (
            "ANSWERS",
            encode(REPORT).decode().replace('"state": "revoked"', '"state": 7'),
            "report.workers[1].state is 7, not a text",
        ),
        (
            "ANSWERS",
            encode(REPORT).decode().replace('{"step": 120, "path": "/runs/a"}', '"/runs/a"'),
            "report.checkpoint is '/runs/a', not an object",
        ),
    ],
)
def test_what_is_wrong_is_said(table: str, text: str, why: str) -> None:
    with pytest.raises(Malformed) as caught:
        decode(text.encode(), TABLES[table])
    assert str(caught.value).startswith(why)


def test_too_much_of_anything_is_refused() -> None:
    link = ["10.0.0.1:1", "10.0.0.2:2", False]
    for event, fields in (
        ("claims", {"links": [link] * 1025}),
        ("progress", {"entries": [[0, 1, 1, 1, 0.5]] * 4097}),
        ("says", {"text": "x" * (1 << 18)}),
    ):
        with pytest.raises(Malformed, match=r"longer than|more than"):
            decode(json.dumps({"event": event, **fields}).encode(), messages.FROM_AGENT)


def test_texts_for_the_user_have_no_control_characters_and_an_end() -> None:
    text = "a\x1b[2J\rb\u202e" + "c" * 1000
    says = decode(encode(messages.Says(text)), messages.FROM_AGENT)
    assert isinstance(says, messages.Says)
    assert says.text == "a?[2J?b?" + "c" * 992 + "..."
    failed = decode(encode(messages.Failed("one\n\ttwo\x07\n")), messages.FROM_WORKER)
    assert failed == messages.Failed("one\n\ttwo?\n")


def test_a_field_that_nobody_asked_for_is_left_out() -> None:
    assert decode(b'{"event": "free", "when": 3}', messages.FROM_AGENT) == messages.Free()
