"""The fake of Azure's Scheduled Events, held against what Azure's own documentation says."""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from spotmpi.testing import Azure

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
METADATA = {"Metadata": "true"}


def document(ask, cloud: Azure) -> dict[str, Any]:
    status, body, _ = ask(cloud, EVENTS, METADATA)
    assert status == 200
    return json.loads(body)


def start(ask, cloud: Azure, *events: str) -> int:
    body = json.dumps({"StartRequests": [{"EventId": event} for event in events]}).encode()
    return ask(cloud, EVENTS, METADATA, "POST", body)[0]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (EVENTS, {}),
        (EVENTS, {"Metadata": "false"}),
        ("/metadata/scheduledevents", METADATA),
        ("/metadata/instance/compute/name?api-version=2021-02-01&format=text", {}),
    ],
)
def test_a_question_without_header_or_version_is_a_bad_one(
    ask, path: str, headers: dict[str, str]
) -> None:
    with Azure() as cloud:
        assert ask(cloud, path, headers)[0] == 400


def test_the_vm_s_name_is_told(ask) -> None:
    with Azure("vm_7") as cloud:
        path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        assert ask(cloud, path, METADATA)[1] == b"vm_7"
        assert ask(cloud, "/metadata/other?api-version=1", METADATA)[0] == 404


def test_events_are_listed_and_each_change_counts(ask) -> None:
    with Azure("vm_7") as cloud:
        before = document(ask, cloud)
        assert before["Events"] == []
        began = time.time()
        cloud.preempt(in_seconds=30)
        cloud.schedule("Reboot", ["vm_8", "vm_9"], in_seconds=900)
        after = document(ask, cloud)
        assert after["DocumentIncarnation"] == before["DocumentIncarnation"] + 2
        ours, theirs = after["Events"]
        assert (ours["EventType"], ours["Resources"]) == ("Preempt", ["vm_7"])
        assert (ours["EventStatus"], ours["ResourceType"]) == ("Scheduled", "VirtualMachine")
        at = parsedate_to_datetime(ours["NotBefore"]).timestamp()
        assert began + 29 < at < time.time() + 31
        assert (theirs["EventType"], theirs["Resources"]) == ("Reboot", ["vm_8", "vm_9"])
        assert document(ask, cloud) == after


def test_an_acknowledged_event_begins_and_has_no_time(ask) -> None:
    with Azure() as cloud:
        one = cloud.schedule("Preempt", ["a"], 30)
        cloud.schedule("Preempt", ["b"], 30)
        before = document(ask, cloud)["DocumentIncarnation"]
        assert start(ask, cloud, one) == 200
        assert cloud.acknowledged == (one,)
        now = document(ask, cloud)
        assert now["DocumentIncarnation"] == before + 1
        begun, other = now["Events"]
        assert (begun["EventStatus"], begun["NotBefore"]) == ("Started", "")
        assert other["EventStatus"] == "Scheduled"
        cloud.begin()
        assert {e["EventStatus"] for e in document(ask, cloud)["Events"]} == {"Started"}


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"StartRequests": [{"EventId": "none"}]}'])
def test_an_acknowledgement_of_nothing_is_a_bad_question(ask, body: bytes) -> None:
    with Azure() as cloud:
        cloud.preempt()
        assert ask(cloud, EVENTS, METADATA, "POST", body)[0] == 400
        assert cloud.acknowledged == ()
