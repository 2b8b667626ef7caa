"""Azure: Scheduled Events announce the eviction of a spot VM, 30 s ahead or more.

The events of a whole placement group are told to each of its VMs: only those that name this VM
count. Whoever acknowledges an event (by asking for its start) says that Azure need not wait any
longer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from spotmpi.errors import NoAnswer
from spotmpi.notice import Notice
from spotmpi.notice.metadata import PATIENCE, Answer, Ask, MetadataRequest, shown

__all__ = ["Azure", "Preemption", "parse_events"]

_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS = {"Metadata": "true"}
_FIRST = 150.0
"""Seconds for the first answer: the service is switched on by the first question, and that may
take two minutes."""


@dataclass(frozen=True)
class Preemption:
    """This VM is to be evicted."""

    event: str
    deadline: float | None
    """Unix seconds; None once it has begun."""
    started: bool


class Azure:
    """Asks a VM's metadata service."""

    name = "Azure"
    pause = 1.0

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._vm: str | None = None
        self._asked = False
        self._told: set[str] = set()
        self._open: dict[str, Preemption] = {}

    def poll(self) -> list[Notice]:
        """See `provider.Provider`. The first call may block for minutes."""
        if self._vm is None:
            self._vm = self._own_name()
        patience = PATIENCE if self._asked else _FIRST
        self._asked = True
        answer = self._good(
            self._ask(MetadataRequest(_EVENTS, _HEADERS, patience=patience)), _EVENTS
        )
        found = parse_events(answer.body, self._vm)
        self._open = {one.event: one for one in found}
        new = [one for one in found if one.event not in self._told]
        self._told.update(one.event for one in new)
        return [Notice("azure", one.deadline, "Azure preemption") for one in new]

    def safe(self) -> None:
        """See `provider.Provider`: acknowledge all that was told and has not begun by itself."""
        waiting = [one.event for one in self._open.values() if not one.started]
        if waiting:
            body = json.dumps({"StartRequests": [{"EventId": event} for event in waiting]})
            headers = {**_HEADERS, "Content-Type": "application/json"}
            question = MetadataRequest(_EVENTS, headers, method="POST", body=body.encode())
            self._good(self._ask(question), _EVENTS)

    def _own_name(self) -> str:
        answer = self._good(self._ask(MetadataRequest(_NAME, _HEADERS)), _NAME)
        name = answer.body.decode(errors="replace").strip()
        if not name or not name.isprintable():
            raise NoAnswer(f"{_NAME} was answered with no name")
        return name

    def _good(self, answer: Answer, path: str) -> Answer:
        if answer.status != 200:
            raise NoAnswer(f"{path} was answered with status {answer.status}")
        return answer


def parse_events(body: bytes, vm: str) -> list[Preemption]:
    """Read the evictions of the VM with this name out of a document. Raises `NoAnswer`.

    An event that is not understood is none of ours, and hides none that is.
    """
    try:
        document = json.loads(body)
        events = document["Events"]
    except (ValueError, TypeError, KeyError, RecursionError):
        events = None
    if not isinstance(events, list):
        raise NoAnswer(f"{_EVENTS} is no document of events: {shown(body)}")
    return [one for event in events if (one := _preemption(event, vm)) is not None]


def _preemption(event: object, vm: str) -> Preemption | None:
    if not isinstance(event, Mapping) or event.get("EventType") != "Preempt":
        return None
    name, resources = event.get("EventId"), event.get("Resources")
    if not isinstance(name, str) or not isinstance(resources, list):
        return None
    # Azure's names do not differ by case.
    if vm.casefold() not in [str(resource).casefold() for resource in resources]:
        return None
    started = event.get("EventStatus") == "Started"
    return Preemption(name, None if started else _time(event.get("NotBefore")), started)


def _time(text: object) -> float | None:
    """Seconds of ``Mon, 19 Sep 2016 18:29:47 GMT``; None where it is blank, or no time."""
    try:
        return parsedate_to_datetime(str(text)).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
