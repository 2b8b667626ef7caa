"""Amazon EC2's instance metadata service, as far as spot instances need it."""

from __future__ import annotations

import json
import secrets
import time
from datetime import datetime, timezone

from spotmpi.testing.service import Reply, Request, Service

__all__ = ["EC2"]

_LONGEST_LIFE = 21600


class EC2(Service):
    """IMDSv2: nothing is answered without a token, and tokens expire.

    Asking for a token: PUT, with the seconds that it is to live (400 without), and not through a
    proxy (403). A missing, unknown or expired token: 401. Before `preempt` and `recommend` what
    they announce is not there: 404.
    """

    provider = "ec2"

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[str, float] = {}
        """Until when each is good, by the monotonic clock."""
        self._documents: dict[str, dict[str, str]] = {}

    def preempt(self, in_seconds: float = 120.0, action: str = "terminate") -> None:
        """Announce that the instance is to be terminated, stopped or hibernated (``action``)."""
        self._publish(
            "/latest/meta-data/spot/instance-action",
            {"action": action, "time": _stamp(time.time() + in_seconds)},
        )

    def recommend(self) -> None:
        """Recommend to rebalance: an interruption has become likelier."""
        self._publish(
            "/latest/meta-data/events/recommendations/rebalance",
            {"noticeTime": _stamp(time.time())},
        )

    def withdraw(self) -> None:
        """Announce nothing any more, as after a stopped instance was started again."""
        with self._changed:
            self._documents.clear()

    def expire_tokens(self) -> None:
        """Let all tokens expire that were given out."""
        with self._changed:
            self._tokens.clear()

    def answer(self, request: Request) -> Reply:
        """See `Service.answer`."""
        if request.path == "/latest/api/token":
            return self._give_token(request)
        if request.method != "GET":
            return Reply(405)
        good = self._tokens.get(request.headers.get("x-aws-ec2-metadata-token", ""))
        if good is None or good < time.monotonic():
            return Reply(401, b"Unauthorized\n")
        document = self._documents.get(request.path)
        if document is None:
            return Reply(404, b"Not Found\n")
        return Reply(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _give_token(self, request: Request) -> Reply:
        if request.method != "PUT":
            return Reply(405)
        if "x-forwarded-for" in request.headers:
            return Reply(403)
        life = request.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if not life.isdigit() or not 1 <= int(life) <= _LONGEST_LIFE:
            return Reply(400)
        token = secrets.token_urlsafe(40)
        self._tokens[token] = time.monotonic() + int(life)
        return Reply(200, token.encode(), {"Content-Type": "text/plain"})

    def _publish(self, path: str, document: dict[str, str]) -> None:
        with self._changed:
            self._documents[path] = document
            self._changed.notify_all()


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
