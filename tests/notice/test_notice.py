"""What a notice says to the user, and that it travels as one line."""

from __future__ import annotations

import json

import pytest

from spotmpi.notice import Notice

SPOT = Notice("ec2", 1000.0, "EC2 spot instance action: terminate")


@pytest.mark.parametrize(
    ("notice", "host", "now", "sentence"),
    [
        (SPOT, "h2", 882.0, "host h2 is to be taken away in 118 s (EC2 spot instance action: "),
        (SPOT, None, 970.0, "this host is to be taken away in 30 s ("),
        (SPOT, "h2", 1005.0, "host h2 is to be taken away now ("),
        (Notice("signal", None, "SIGUSR1"), "h1", 0.0, "host h1 is to be taken away soon (SIGUSR1"),
        (
            Notice("ec2", None, "EC2 rebalance recommendation", advice=True),
            "h1",
            0.0,
            "host h1 may be taken away before long (EC2 rebalance recommendation)",
        ),
    ],
)
def test_a_notice_says_which_host_goes_and_when(
    notice: Notice, host: str | None, now: float, sentence: str
) -> None:
    assert notice.sentence(host, now).startswith(sentence)


@pytest.mark.parametrize(
    "notice", [SPOT, Notice("gce", None, "GCE preemption"), Notice("ec2", None, "x", advice=True)]
)
def test_a_notice_travels_as_one_line(notice: Notice) -> None:
    line = notice.encode()
    assert "\n" not in line
    assert Notice.decode(line) == notice


@pytest.mark.parametrize(
    "changed",
    [
        {"source": 3},
        {"deadline": "soon"},
        {"deadline": True},
        {"deadline": float("nan")},
        {"deadline": float("inf")},
        {"what": None},
        {"advice": 1},
        {"more": 1},
    ],
)
def test_what_is_no_notice_is_refused(changed: dict[str, object]) -> None:
    fields = {"source": "ec2", "deadline": 1.0, "what": "x", "advice": False}
    Notice.decode(json.dumps(fields))
    with pytest.raises(ValueError):
        Notice.decode(json.dumps(fields | changed))


@pytest.mark.parametrize("line", ["", "[]", "3", "{", "null", '{"source": "ec2"}', b"\xff\xfe"])
def test_garbage_is_no_notice(line: str | bytes) -> None:
    with pytest.raises(ValueError):
        Notice.decode(line)


def test_what_comes_from_outside_is_one_short_printable_line() -> None:
    shown = Notice.checked("ec2", 1, "a\x1b[2Jb\nc" + 500 * "x", False)
    assert shown.what.startswith("a?[2Jb?cxxx")
    assert len(shown.what) < 210
