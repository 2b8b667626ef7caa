"""Google Compute Engine's metadata server, as far as spot VMs need it."""

from __future__ import annotations

import time
from urllib.parse import parse_qs, urlsplit

from spotmpi.testing.service import Reply, Request, Service

__all__ = ["GCE"]

_PATH = "/computeMetadata/v1/instance/preempted"


class GCE(Service):
    """``instance/preempted``: FALSE, and TRUE after `preempt`.

    With ``wait_for_change=true`` an answer waits until the value is another one than it was when
    the question came, or than ``last_etag`` says, for ``timeout_sec`` at most. A question without
    the header ``Metadata-Flavor: Google``, or through a proxy, is forbidden (403).
    """

    provider = "gce"

    def __init__(self) -> None:
        super().__init__()
        self._preempted = False

    def preempt(self, in_seconds: float = 30.0) -> None:
        """Preempt the VM. ``in_seconds`` is told to nobody: GCE does not say when."""
        with self._changed:
            self._preempted = True
            self._changed.notify_all()

    def withdraw(self) -> None:
        """Announce nothing any more, as after the VM was started again."""
        with self._changed:
            self._preempted = False
            self._changed.notify_all()

    def answer(self, request: Request) -> Reply:
        """See `Service.answer`."""
        parts = urlsplit(request.path)
        if request.headers.get("metadata-flavor") != "Google":
            return Reply(403, b"Missing required header: Metadata-Flavor\n")
        if "x-forwarded-for" in request.headers:
            return Reply(403)
        if parts.path != _PATH:
            return Reply(404)
        if request.method != "GET":
            return Reply(405)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if query.get("wait_for_change", "").lower() == "true":
            self._await_change(query.get("last_etag", self._etag), query.get("timeout_sec", ""))
        body = b"TRUE" if self._preempted else b"FALSE"
        headers = {"Metadata-Flavor": "Google", "ETag": self._etag}
        return Reply(200, body, {**headers, "Content-Type": "application/text"})

    def _await_change(self, known: str, seconds: str) -> None:
        end = time.monotonic() + (float(seconds) if seconds.isdigit() else 3600.0)
        while self._etag == known and self.wait(end):
            pass

    @property
    def _etag(self) -> str:
        return "a7f3c0de00000001" if self._preempted else "a7f3c0de00000000"
