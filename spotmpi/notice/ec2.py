"""Amazon EC2: spot instances are announced in the instance's metadata, two minutes ahead.

IMDSv2: every question carries a token, which is fetched anew when it is refused. An action is there
(200) only once something is to happen, best effort. A rebalance recommendation says that an
interruption has become likelier.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone

from spotmpi.errors import NoAnswer
from spotmpi.notice import Notice, clean
from spotmpi.notice.metadata import Answer, Ask, MetadataRequest, shown

__all__ = ["Ec2", "parse_action", "parse_rebalance"]

_TOKEN = "/latest/api/token"
_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
_LIFE = 21600
"""Seconds for which a token is asked for: the longest that there is."""


class Ec2:
    """Asks an instance's metadata service."""

    name = "EC2"
    pause = 5.0

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._token: str | None = None
        self._told: dict[str, Notice] = {}

    def poll(self) -> list[Notice]:
        """See `provider.Provider`."""
        new = []
        trouble = None
        for path, parse in ((_ACTION, parse_action), (_REBALANCE, parse_rebalance)):
            try:
                notice = self._look(path, parse)
            except NoAnswer as error:
                trouble = error
                continue
            if notice is None:
                # An instance that was stopped or hibernated, and goes on, may be told again.
                self._told.pop(path, None)
            elif notice != self._told.get(path):
                self._told[path] = notice
                new.append(notice)
        if trouble is not None and not new:
            raise trouble
        return new

    def safe(self) -> None:
        """See `provider.Provider`: EC2 does not want to know."""

    def _look(self, path: str, parse: Callable[[bytes], Notice]) -> Notice | None:
        answer = self._get(path)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise NoAnswer(f"{path} was answered with status {answer.status}")
        return parse(answer.body)

    def _get(self, path: str) -> Answer:
        if self._token is None:
            self._token = self._fetch_token()
        answer = self._ask(MetadataRequest(path, {"X-aws-ec2-metadata-token": self._token}))
        if answer.status == 401:
            self._token = self._fetch_token()
            answer = self._ask(MetadataRequest(path, {"X-aws-ec2-metadata-token": self._token}))
            if answer.status == 401:
                self._token = None
        return answer

    def _fetch_token(self) -> str:
        self._token = None
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_LIFE)}
        answer = self._ask(MetadataRequest(_TOKEN, headers, method="PUT"))
        if answer.status != 200:
            raise NoAnswer(f"{_TOKEN} was answered with status {answer.status}")
        token = answer.body.decode("ascii", errors="replace").strip()
        # It goes into a header: nothing may end that.
        if not token or not token.isascii() or not token.isprintable():
            raise NoAnswer(f"{_TOKEN} was answered with something that is no token")
        return token


def parse_action(body: bytes) -> Notice:
    """Read an ``instance-action``. Raises `NoAnswer`."""
    fields = _fields(body, _ACTION)
    action = fields.get("action")
    if not isinstance(action, str):
        raise NoAnswer(f"{_ACTION} names no action: {shown(body)}")
    return Notice("ec2", _time(fields.get("time")), f"EC2 spot instance action: {clean(action)}")


def parse_rebalance(body: bytes) -> Notice:
    """Read a rebalance recommendation. Raises `NoAnswer`."""
    if "noticeTime" not in _fields(body, _REBALANCE):
        raise NoAnswer(f"{_REBALANCE} has no time: {shown(body)}")
    return Notice("ec2", None, "EC2 rebalance recommendation", advice=True)


def _fields(body: bytes, path: str) -> dict[str, object]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise NoAnswer(f"{path} is no JSON object: {shown(body)}")
    return fields


def _time(text: object) -> float | None:
    """Seconds of ``2017-09-18T08:22:00Z``; None for what is no time: the action counts anyway."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        return time.replace(tzinfo=time.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None
