"""EC2's answers, and the questions that they lead to."""

from __future__ import annotations

import pytest

from spotmpi.errors import NoAnswer
from spotmpi.notice import Notice
from spotmpi.notice.ec2 import Ec2, parse_action, parse_rebalance
from spotmpi.notice.metadata import Answer
from tests.notice.scripted import Scripted

TOKEN = Answer(200, b"abc==\n")
NOTHING = Answer(404)
ACTION = Answer(200, b'{"action": "terminate", "time": "2017-09-18T08:22:00Z"}')
ADVICE = Answer(200, b'{"noticeTime": "2020-10-26T15:55:55Z"}')
TOLD = Notice("ec2", 1505722920.0, "EC2 spot instance action: terminate")
ADVISED = Notice("ec2", None, "EC2 rebalance recommendation", advice=True)


def test_an_action_is_read_with_its_time() -> None:
    assert parse_action(ACTION.body) == TOLD
    assert parse_action(b'{"action":"stop","time":"2017-09-18T08:22:00.500Z"}').deadline == (
        1505722920.5
    )


@pytest.mark.parametrize("time", [b"", b', "time": null', b', "time": "soon"', b', "time": 3'])
def test_an_action_without_a_usable_time_counts_all_the_same(time: bytes) -> None:
    found = parse_action(b'{"action": "hibernate"' + time + b"}")
    assert found == Notice("ec2", None, "EC2 spot instance action: hibernate")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"action": 3}', b"\xff", b"[" * 100_000, b"1"]
)
def test_an_action_that_is_none_is_no_answer(body: bytes) -> None:
    with pytest.raises(NoAnswer, match="instance-action"):
        parse_action(body)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}"])
def test_advice_that_is_none_is_no_answer(body: bytes) -> None:
    with pytest.raises(NoAnswer, match="rebalance"):
        parse_rebalance(body)


def test_a_token_is_fetched_once_and_goes_with_every_question() -> None:
    ask = Scripted(TOKEN, NOTHING, NOTHING, NOTHING, NOTHING)
    ec2 = Ec2(ask)
    assert ec2.poll() == ec2.poll() == []
    assert ask.asked[0] == "PUT /latest/api/token"
    assert ask.questions[0].headers == {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
    assert all(q.headers == {"X-aws-ec2-metadata-token": "abc=="} for q in ask.questions[1:])
    assert set(ask.asked[1:]) == {
        "GET /latest/meta-data/spot/instance-action",
        "GET /latest/meta-data/events/recommendations/rebalance",
    }


def test_a_refused_token_is_fetched_anew_within_the_same_poll() -> None:
    ask = Scripted(TOKEN, Answer(401), Answer(200, b"new"), ACTION, NOTHING)
    assert Ec2(ask).poll() == [TOLD]
    assert ask.questions[3].headers == {"X-aws-ec2-metadata-token": "new"}


def test_a_token_that_is_refused_at_once_is_no_answer_and_no_endless_loop() -> None:
    ask = Scripted(*[TOKEN, Answer(401)] * 4)
    with pytest.raises(NoAnswer, match="status 401"):
        Ec2(ask).poll()


@pytest.mark.parametrize(
    "token", [Answer(403), Answer(200), Answer(200, b"a\r\nX: y"), Answer(200, b"\xff"), None]
)
def test_what_is_no_token_is_no_answer(token: Answer | None) -> None:
    ask = Scripted(token, token)
    with pytest.raises(NoAnswer):
        Ec2(ask).poll()
    assert all(method.startswith("PUT") for method in ask.asked)


def test_each_notice_is_told_once_and_a_changed_one_again() -> None:
    later = Answer(200, ACTION.body.replace(b"08:22", b"08:23"))
    ask = Scripted(TOKEN, NOTHING, ADVICE, ACTION, ADVICE, ACTION, ADVICE, later, ADVICE)
    ec2 = Ec2(ask)
    assert [ec2.poll() for _ in range(3)] == [[ADVISED], [TOLD], []]
    (told,) = ec2.poll()
    assert told.deadline == 1505722980.0


def test_an_instance_that_was_stopped_and_goes_on_is_told_again() -> None:
    ask = Scripted(TOKEN, *[ACTION, NOTHING, NOTHING, NOTHING] * 2)
    ec2 = Ec2(ask)
    assert [ec2.poll() for _ in range(4)] == [[TOLD], [], [TOLD], []]


def test_a_notice_is_not_lost_to_trouble_with_the_advice() -> None:
    ec2 = Ec2(Scripted(TOKEN, ACTION, None, ACTION, Answer(500)))
    assert ec2.poll() == [TOLD]
    with pytest.raises(NoAnswer, match="status 500"):
        ec2.poll()


def test_trouble_with_the_action_does_not_hide_the_advice() -> None:
    assert Ec2(Scripted(TOKEN, Answer(503), ADVICE)).poll() == [ADVISED]
