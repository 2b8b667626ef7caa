"""What a hosts file says, and what is wrong with one."""

from __future__ import annotations

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch.start.hosts_file import Change, HostLine, difference, parse


def test_a_hosts_file_has_names_slots_and_comments() -> None:
    text = """
# the partition
h1
h2 slots=2   # the large one
localhost python=/opt/py/bin/python gpus=1 slots=3
"""
    assert parse(text.splitlines(), "hosts") == (
        HostLine("h1"),
        HostLine("h2", slots=2),
        HostLine("localhost", slots=3, gpus=1, python="/opt/py/bin/python"),
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("h1 slot=2", "hosts, line 1: 'slot=2' is not understood"),
        ("h1 slots=", "'slots=' is not understood"),
        ("h1 slots=1 slots=2", "'slots=2' is not understood"),
        ("h1 slots=1000000000", "slots=1000000000 is not a whole number from 1"),
        ("h1 slots=0", "slots=0 is not a whole number from 1 to 4096"),
        ("h1 slots=two", "slots=two is not a whole number"),
        ("h1 gpus=-1", "gpus=-1 is not a whole number from 0 to 4096"),
        ("-oProxyCommand=x", "is no name of a host"),
        ("slots=2", "'slots=2' is no name of a host"),
        ("h\0", r"'h\\x00' is no name of a host"),
        ("h1 python=/py\0", r"'python=/py\\x00' is not understood"),
        ("h1 python", "'python' is not understood"),
        ("h1\nh1", "line 2: h1 is there twice"),
        ("# nothing", "hosts names no host"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse(line.splitlines(), "hosts")


BEFORE = (HostLine("h1"), HostLine("h2", slots=2), HostLine("h3"))


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (BEFORE, Change()),
        (tuple(reversed(BEFORE)), Change()),
        ((*BEFORE, HostLine("h5"), HostLine("h4")), Change(came=(HostLine("h5"), HostLine("h4")))),
        (BEFORE[1:], Change(gone=(HostLine("h1"),))),
        ((HostLine("h1"), HostLine("h2"), HostLine("h3")), Change(changed=(HostLine("h2"),))),
        (
            (HostLine("h1", python="/py"), HostLine("h3"), HostLine("h4", slots=3)),
            Change(
                came=(HostLine("h4", slots=3),),
                gone=(HostLine("h2", slots=2),),
                changed=(HostLine("h1", python="/py"),),
            ),
        ),
    ],
)
def test_two_lists_differ_in_who_came_went_or_changed(
    after: tuple[HostLine, ...], change: Change
) -> None:
    assert difference(BEFORE, after) == change


def test_what_is_different_is_said_with_what_follows_from_it() -> None:
    change = Change(
        came=(HostLine("h4", slots=3), HostLine("h5"), HostLine("h6")),
        gone=(HostLine("h2"),),
        changed=(HostLine("h1", slots=2),),
    )
    assert change.sentence("hosts.txt", {"h1", "h2", "h6"}) == (
        "hosts.txt was read again; asked for 4 workers: h4, h5; there already: h6; "
        "not tried again when they are not there: h2; changed from the next time that they come: h1"
    )
    assert Change().sentence("hosts.txt", {"h1"}) == (
        "hosts.txt was read again; no host is new, gone or changed"
    )
