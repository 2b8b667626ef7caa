"""Azure's Scheduled Events, as far as spot VMs need them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spotmpi.testing.service import Reply, Request, Service

__all__ = ["Azure"]


class Azure(Service):
    """The events of a placement group, asked for by the VM that is called ``name`` in it.

    The document's incarnation goes up with every change. A question without the header
    ``Metadata: true`` or without an ``api-version`` is a bad one (400). An event that is
    acknowledged (POST) begins at once.
    """

    provider = "azure"

    def __init__(self, name: str = "worker-vm-0") -> None:
        super().__init__()
        self._name = name
        self._incarnation = 1
        self._events: dict[str, dict[str, Any]] = {}
        self._acknowledged: list[str] = []

    @property
    def acknowledged(self) -> tuple[str, ...]:
        """The ids of the events that were acknowledged, in order."""
        with self._changed:
            return tuple(self._acknowledged)

    def preempt(self, in_seconds: float = 30.0) -> None:
        """Announce that this VM is to be evicted."""
        self.schedule("Preempt", [self._name], in_seconds)

    def schedule(self, kind: str, resources: Sequence[str], in_seconds: float) -> str:
        """Announce any event ("Reboot", "Freeze", ...) for any VMs. Returns its id."""
        event = str(uuid.uuid4()).upper()
        with self._changed:
            self._events[event] = {
                "EventId": event,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(resources),
                "EventStatus": "Scheduled",
                "NotBefore": formatdate(time.time() + in_seconds, usegmt=True),
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
            self._change()
        return event

    def begin(self) -> None:
        """Let all events begin, as when their time has come: no time is told any more."""
        with self._changed:
            for event in self._events.values():
                event.update(EventStatus="Started", NotBefore="")
            self._change()

    def answer(self, request: Request) -> Reply:
        """See `Service.answer`."""
        parts = urlsplit(request.path)
        if request.headers.get("metadata", "").lower() != "true":
            return _refused("Required metadata header not specified")
        if "api-version" not in parse_qs(parts.query):
            return _refused("Bad request. api-version was not specified in the request")
        match request.method, parts.path.rstrip("/"):
            case "GET", "/metadata/instance/compute/name":
                return Reply(200, self._name.encode(), {"Content-Type": "text/plain"})
            case "GET", "/metadata/scheduledevents":
                return _json(
                    200,
                    {
                        "DocumentIncarnation": self._incarnation,
                        "Events": list(self._events.values()),
                    },
                )
            case "POST", "/metadata/scheduledevents":
                return self._acknowledge(request.body)
        return Reply(404)

    def _acknowledge(self, body: bytes) -> Reply:
        try:
            events = [self._events[one["EventId"]] for one in json.loads(body)["StartRequests"]]
        except (ValueError, TypeError, KeyError):
            return _refused("Invalid StartRequests")
        for event in events:
            self._acknowledged.append(event["EventId"])
            event.update(EventStatus="Started", NotBefore="")
        self._change()
        return Reply(200)

    def _change(self) -> None:
        self._incarnation += 1
        self._changed.notify_all()


def _json(status: int, document: Mapping[str, Any]) -> Reply:
    return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/json"})


def _refused(why: str) -> Reply:
    return _json(400, {"error": why})
