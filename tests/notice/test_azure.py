"""Azure's events: which are this VM's, and when one is acknowledged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotmpi.errors import NoAnswer
from spotmpi.notice import Notice
from spotmpi.notice.azure import Azure, Preemption, parse_events
from spotmpi.notice.metadata import Answer
from tests.notice.scripted import Scripted

NAME = Answer(200, b"vm_1")
QUIET = Answer(200, b'{"DocumentIncarnation": 1, "Events": []}')
TIME = "Mon, 19 Sep 2016 18:29:47 GMT"
TOLD = [Notice("azure", 1474309787.0, "Azure preemption")]


def event(**fields: Any) -> dict[str, Any]:
    return {
        "EventId": "A",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["vm_0", "VM_1"],
        "EventStatus": "Scheduled",
        "NotBefore": TIME,
        **fields,
    }


def document(*events: Any) -> Answer:
    return Answer(200, json.dumps({"DocumentIncarnation": 2, "Events": events}).encode())


@pytest.mark.parametrize("vm", ["vm_0", "vm_1", "VM_1", "Vm_0"])
def test_an_eviction_is_read_with_its_time(vm: str) -> None:
    assert parse_events(document(event()).body, vm) == [Preemption("A", 1474309787.0, False)]


def test_an_eviction_that_has_begun_has_no_time() -> None:
    begun = event(EventStatus="Started", NotBefore="")
    assert parse_events(document(begun).body, "vm_1") == [Preemption("A", None, True)]


@pytest.mark.parametrize("time", ["", None, "soon", 3, "Mon, 99 Foo", "2016-09-19T18:29:47Z"])
def test_an_eviction_without_a_usable_time_counts_all_the_same(time: object) -> None:
    assert parse_events(document(event(NotBefore=time)).body, "vm_1") == [
        Preemption("A", None, False)
    ]


@pytest.mark.parametrize(
    "other",
    [
        event(Resources=["vm_0", "vm_10"]),
        event(Resources=[]),
        event(Resources="vm_1"),
        event(EventType="Reboot"),
        event(EventType="Freeze"),
        event(EventId=None),
        {},
        None,
        "Preempt",
        3,
    ],
)
def test_what_is_not_ours_is_left_out_and_hides_nothing(other: object) -> None:
    assert parse_events(document(other).body, "vm_1") == []
    assert len(parse_events(document(other, event(), other).body, "vm_1")) == 1


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"Events": 3}', b"\xff", b"[" * 100_000]
)
def test_a_document_that_is_none_is_no_answer(body: bytes) -> None:
    with pytest.raises(NoAnswer, match="no document of events"):
        parse_events(body, "vm_1")


def test_the_own_name_is_asked_for_once_and_the_first_answer_may_take_minutes() -> None:
    ask = Scripted(NAME, QUIET, QUIET, document(event()))
    azure = Azure(ask)
    assert [azure.poll() for _ in range(3)] == [[], [], TOLD]
    assert ask.asked == ["GET /metadata/instance/compute/name"] + 3 * [
        "GET /metadata/scheduledevents"
    ]
    assert ask.questions[1].patience >= 120
    assert ask.questions[2].patience < 10
    assert all(q.headers == {"Metadata": "true"} for q in ask.questions)


def test_an_eviction_is_told_once_also_when_it_begins() -> None:
    begun = event(EventStatus="Started", NotBefore="")
    azure = Azure(Scripted(NAME, document(event()), document(event()), document(begun)))
    assert [azure.poll() for _ in range(3)] == [TOLD, [], []]


def test_an_eviction_is_acknowledged_when_the_host_is_safe_and_not_before() -> None:
    ask = Scripted(NAME, document(event(), event(EventId="B"), event(Resources=["vm_0"])))
    azure = Azure(ask)
    azure.poll()
    assert not any(q.method == "POST" for q in ask.questions)
    ask.answers.append(Answer(200))
    azure.safe()
    told = ask.questions[-1]
    assert (told.method, told.path) == ("POST", ask.questions[1].path)
    assert json.loads(told.body) == {"StartRequests": [{"EventId": "A"}, {"EventId": "B"}]}
    assert told.headers["Metadata"] == "true"


def test_an_eviction_that_has_begun_is_not_acknowledged() -> None:
    ask = Scripted(NAME, document(event(EventStatus="Started", NotBefore="")))
    azure = Azure(ask)
    azure.poll()
    azure.safe()
    assert not any(q.method == "POST" for q in ask.questions)


def test_an_acknowledgement_that_failed_is_tried_again() -> None:
    ask = Scripted(NAME, document(event()), Answer(500), Answer(200))
    azure = Azure(ask)
    azure.poll()
    with pytest.raises(NoAnswer, match="status 500"):
        azure.safe()
    azure.safe()
    assert ask.asked[2:] == 2 * ["POST /metadata/scheduledevents"]


@pytest.mark.parametrize("name", [Answer(404), Answer(200), Answer(200, b"\0"), None])
def test_without_its_own_name_nothing_is_matched(name: Answer | None) -> None:
    ask = Scripted(name, NAME, document(event()))
    azure = Azure(ask)
    with pytest.raises(NoAnswer):
        azure.poll()
    assert azure.poll() == TOLD
