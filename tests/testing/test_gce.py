"""The fake of GCE's metadata server, held against what GCE's own documentation says."""

from __future__ import annotations

import threading

import pytest

from spotmpi.testing import GCE

STATE = "/computeMetadata/v1/instance/preempted"
GOOGLE = {"Metadata-Flavor": "Google"}


def test_the_state_is_false_and_then_true(ask) -> None:
    with GCE() as cloud:
        status, body, headers = ask(cloud, STATE, GOOGLE)
        assert (status, body, headers["Metadata-Flavor"]) == (200, b"FALSE", "Google")
        cloud.preempt()
        assert ask(cloud, STATE, GOOGLE)[1] == b"TRUE"
        cloud.withdraw()
        assert ask(cloud, STATE, GOOGLE)[1] == b"FALSE"


@pytest.mark.parametrize("headers", [{}, {"Metadata-Flavor": "x"}, {"X-Forwarded-For": "1.2.3.4"}])
def test_a_question_without_the_header_is_forbidden(ask, headers: dict[str, str]) -> None:
    with GCE() as cloud:
        assert ask(cloud, STATE, headers)[0] == 403
        assert ask(cloud, STATE, GOOGLE | {"X-Forwarded-For": "1.2.3.4"})[0] == 403
        assert ask(cloud, STATE + "x", GOOGLE)[0] == 404


def test_a_wait_ends_with_the_change(ask) -> None:
    with GCE() as cloud:
        etag = ask(cloud, STATE, GOOGLE)[2]["ETag"]
        query = f"?wait_for_change=true&timeout_sec=60&last_etag={etag}"
        found: list[bytes] = []
        waiting = threading.Thread(
            target=lambda: found.append(ask(cloud, STATE + query, GOOGLE)[1])
        )
        waiting.start()
        waiting.join(0.1)
        assert found == []
        cloud.preempt()
        waiting.join()
        assert found == [b"TRUE"]


def test_a_wait_from_a_known_state_misses_no_change(ask) -> None:
    with GCE() as cloud:
        etag = ask(cloud, STATE, GOOGLE)[2]["ETag"]
        cloud.preempt()  # between the two questions
        query = f"?wait_for_change=true&last_etag={etag}"
        assert ask(cloud, STATE + query, GOOGLE)[1] == b"TRUE"


def test_a_wait_from_another_state_than_now_is_over_at_once(ask) -> None:
    with GCE() as cloud:
        query = "?wait_for_change=true&last_etag=NONE"
        assert ask(cloud, STATE + query, GOOGLE)[1] == b"FALSE"


def test_a_wait_ends_after_the_time_that_was_asked_for(ask) -> None:
    with GCE() as cloud:
        query = "?wait_for_change=true&timeout_sec=0"
        assert ask(cloud, STATE + query, GOOGLE)[1] == b"FALSE"
