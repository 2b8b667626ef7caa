"""What a hosts file says, and what is wrong with one."""

from __future__ import annotations

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch.hosts import Host, parse


def test_a_hosts_file_has_names_slots_and_comments() -> None:
    text = """
# the partition
h1
h2 slots=2   # the large one
localhost python=/opt/py/bin/python gpus=1 slots=3
"""
    assert parse(text.splitlines(), "hosts") == (
        Host("h1"),
        Host("h2", slots=2),
        Host("localhost", slots=3, gpus=1, python="/opt/py/bin/python"),
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("h1 slot=2", "hosts, line 1: 'slot=2' is not understood"),
        ("h1 slots=", "'slots=' is not understood"),
        ("h1 slots=1 slots=2", "'slots=2' is not understood"),
        ("h1 slots=0", "slots=0 is not a whole number of at least 1"),
        ("h1 slots=two", "slots=two is not a whole number"),
        ("h1 gpus=-1", "gpus=-1 is not a whole number of at least 0"),
        ("-oProxyCommand=x", "is no name of a host"),
        ("slots=2", "'slots=2' is no name of a host"),
        ("h1\nh1", "line 2: h1 is there twice"),
        ("# nothing", "hosts names no host"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse(line.splitlines(), "hosts")
