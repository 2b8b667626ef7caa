"""GCE's answers, and how it is waited for a change."""

from __future__ import annotations

import pytest

from spotmpi.errors import NoAnswer
from spotmpi.notice import Notice
from spotmpi.notice.gce import Gce, parse_preempted
from spotmpi.notice.metadata import Answer
from tests.notice.scripted import Scripted

FALSE = Answer(200, b"FALSE", "e&0")
TRUE = Answer(200, b"TRUE", "e1")
TOLD = [Notice("gce", 130.0, "GCE preemption")]


def gce(*answers: Answer | None) -> tuple[Gce, Scripted]:
    ask = Scripted(*answers)
    return Gce(ask, lambda: 100.0), ask


@pytest.mark.parametrize("body", [b"TRUE", b"true\n", b"FALSE", b" False "])
def test_a_state_is_read(body: bytes) -> None:
    assert parse_preempted(body) == (b"RUE" in body.upper())


@pytest.mark.parametrize("body", [b"", b"TRUEST", b"<html>TRUE", b"1", b"\xff"])
def test_a_state_that_is_none_is_no_answer(body: bytes) -> None:
    with pytest.raises(NoAnswer, match="neither TRUE nor FALSE"):
        parse_preempted(body)


def test_the_state_comes_first_and_the_wait_begins_from_it() -> None:
    provider, ask = gce(FALSE, FALSE, TRUE)
    assert [provider.poll() for _ in range(3)] == [[], [], TOLD]
    first, second, _ = ask.questions
    assert "?" not in first.path
    assert second.path.endswith("?wait_for_change=true&timeout_sec=60&last_etag=e%260")
    assert second.patience == 70.0
    assert all(q.headers == {"Metadata-Flavor": "Google"} for q in ask.questions)


def test_a_preemption_before_the_first_question_is_told_and_told_once() -> None:
    provider, _ = gce(TRUE, TRUE, TRUE)
    assert [provider.poll() for _ in range(3)] == [TOLD, [], []]


def test_a_vm_that_was_started_again_may_be_told_again() -> None:
    provider, _ = gce(TRUE, FALSE, TRUE)
    assert [provider.poll() for _ in range(3)] == [TOLD, [], TOLD]


def test_a_connection_that_got_lost_while_it_waited_is_no_trouble() -> None:
    provider, ask = gce(FALSE, None, TRUE)
    assert provider.poll() == []
    assert provider.poll() == TOLD
    assert "?" not in ask.questions[2].path


def test_after_trouble_it_looks_before_it_waits() -> None:
    provider, ask = gce(FALSE, None, None, TRUE)
    provider.poll()
    with pytest.raises(NoAnswer):
        provider.poll()
    assert provider.poll() == TOLD
    assert "?" not in ask.questions[3].path


def test_a_server_without_etags_is_asked_for_the_state_only() -> None:
    provider, ask = gce(Answer(200, b"FALSE"), Answer(200, b"TRUE"))
    assert [provider.poll(), provider.poll()] == [[], TOLD]
    assert not any("?" in q.path for q in ask.questions)


@pytest.mark.parametrize("answer", [Answer(404), Answer(503), Answer(403), Answer(200, b"maybe")])
def test_anything_else_is_no_answer(answer: Answer) -> None:
    provider, _ = gce(answer)
    with pytest.raises(NoAnswer):
        provider.poll()
