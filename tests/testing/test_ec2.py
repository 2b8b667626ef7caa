"""The fake of EC2's metadata service, held against what EC2's own documentation says."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest

from spotmpi.testing import EC2

TOKEN = "/latest/api/token"
LIFE = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


def with_token(ask, cloud: EC2) -> dict[str, str]:
    status, token, _ = ask(cloud, TOKEN, LIFE, "PUT")
    assert status == 200
    return {"X-aws-ec2-metadata-token": token.decode()}


@pytest.mark.parametrize("path", [ACTION, REBALANCE])
def test_what_is_not_announced_is_not_there(ask, path: str) -> None:
    with EC2() as cloud:
        assert ask(cloud, path, with_token(ask, cloud))[0] == 404


def test_an_interruption_has_an_action_and_a_time(ask) -> None:
    with EC2() as cloud:
        headers = with_token(ask, cloud)
        began = time.time()
        cloud.preempt(in_seconds=120, action="stop")
        status, body, _ = ask(cloud, ACTION, headers)
        assert status == 200
        found = json.loads(body)
        assert found["action"] == "stop"
        at = datetime.strptime(found["time"] + "+0000", "%Y-%m-%dT%H:%M:%SZ%z").timestamp()
        assert began + 119 < at < time.time() + 121
        cloud.withdraw()
        assert ask(cloud, ACTION, headers)[0] == 404


def test_a_recommendation_has_a_time(ask) -> None:
    with EC2() as cloud:
        cloud.recommend()
        status, body, _ = ask(cloud, REBALANCE, with_token(ask, cloud))
        assert status == 200
        assert json.loads(body).keys() == {"noticeTime"}


def test_without_a_good_token_nothing_is_told(ask) -> None:
    with EC2() as cloud:
        cloud.preempt()
        good = with_token(ask, cloud)
        assert ask(cloud, ACTION)[0] == 401
        assert ask(cloud, ACTION, {"X-aws-ec2-metadata-token": "made-up"})[0] == 401
        assert ask(cloud, ACTION, good)[0] == 200
        cloud.expire_tokens()
        assert ask(cloud, ACTION, good)[0] == 401
        assert ask(cloud, ACTION, with_token(ask, cloud))[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"X-aws-ec2-metadata-token-ttl-seconds": "0"}, 400),
        ({"X-aws-ec2-metadata-token-ttl-seconds": "21601"}, 400),
        ({"X-aws-ec2-metadata-token-ttl-seconds": "soon"}, 400),
        ({**LIFE, "X-Forwarded-For": "10.0.0.1"}, 403),
    ],
)
def test_a_token_is_not_given_to_everybody(ask, headers: dict[str, str], status: int) -> None:
    with EC2() as cloud:
        assert ask(cloud, TOKEN, headers, "PUT")[0] == status


def test_a_token_is_not_to_be_had_by_get(ask) -> None:
    with EC2() as cloud:
        assert ask(cloud, TOKEN, LIFE)[0] == 405
