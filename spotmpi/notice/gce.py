"""Google Compute Engine: a spot VM's metadata turns from FALSE to TRUE when it is preempted.

The service answers when that changes (a long poll), or after a time that the question names. The
state is asked for first, and the wait begins from exactly that state (its ETag): what changes
between two questions is not lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import quote

from spotmpi.errors import NoAnswer
from spotmpi.notice import Notice
from spotmpi.notice.metadata import Answer, Ask, MetadataRequest, shown

__all__ = ["GRACE", "Gce", "parse_preempted"]

GRACE = 30.0
"""Seconds that a VM is given after the notice, unless its owner chose a longer time."""

_PATH = "/computeMetadata/v1/instance/preempted"
_HEADERS = {"Metadata-Flavor": "Google"}
_LONG = 60
"""Seconds after which the service is to answer even if nothing has changed."""

_SLACK = 10.0
"""Seconds by which that may be late."""


class Gce:
    """Asks a VM's metadata server."""

    name = "GCE"
    pause = 0.1

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.time) -> None:
        self._ask = ask
        self._clock = clock
        self._etag: str | None = None
        """Of the state that was seen last; None after trouble: look before waiting."""
        self._preempted = False

    def poll(self) -> list[Notice]:
        """See `provider.Provider`. Blocks for a minute when all is well."""
        etag, self._etag = self._etag, None
        if etag is None:
            answer = self._ask(MetadataRequest(_PATH, _HEADERS))
        else:
            query = f"wait_for_change=true&timeout_sec={_LONG}&last_etag={quote(etag, safe='')}"
            question = MetadataRequest(f"{_PATH}?{query}", _HEADERS, patience=_LONG + _SLACK)
            try:
                answer = self._ask(question)
            except NoAnswer:
                # The connection may have got lost in that time. Looking again will tell.
                answer = self._ask(MetadataRequest(_PATH, _HEADERS))
        preempted = _read(answer)
        self._etag = answer.etag
        new = preempted and not self._preempted
        self._preempted = preempted
        if not new:
            return []
        return [Notice("gce", self._clock() + GRACE, "GCE preemption")]

    def safe(self) -> None:
        """See `provider.Provider`: GCE does not want to know."""


def _read(answer: Answer) -> bool:
    if answer.status != 200:
        raise NoAnswer(f"{_PATH} was answered with status {answer.status}")
    return parse_preempted(answer.body)


def parse_preempted(body: bytes) -> bool:
    """Whether the VM is being preempted. Raises `NoAnswer`."""
    match body.strip().upper():
        case b"TRUE":
            return True
        case b"FALSE":
            return False
    raise NoAnswer(f"{_PATH} is neither TRUE nor FALSE: {shown(body)}")
