"""A hosts file is followed while it changes, and whatever becomes of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch.head.wanted_hosts import HostsFile, WantedHosts
from spotmpi.launch.start.hosts_file import Change, HostLine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A hosts file of two hosts."""
    file = tmp_path / "hosts"
    file.write_text("h1\nh2 slots=2\n")
    return file


def follow(file: Path) -> WantedHosts:
    return WantedHosts.of(HostsFile(str(file)))


def settled(roster: WantedHosts) -> Change | None:
    """What is found once the file has been left alone."""
    assert roster.look() is None
    return roster.look()


def test_a_file_that_stays_as_it_is_is_not_read_again(file: Path) -> None:
    roster = follow(file)
    assert [roster.look() for _ in range(3)] == [None, None, None]
    assert list(roster.hosts.values()) == [HostLine("h1"), HostLine("h2", slots=2)]
    assert roster.slots == 3


def test_hosts_come_go_and_change_once_the_file_is_left_alone(file: Path) -> None:
    roster = follow(file)
    file.write_text("h2\nh3\n")
    change = Change(came=(HostLine("h3"),), gone=(HostLine("h1"),), changed=(HostLine("h2"),))
    assert settled(roster) == change
    assert roster.hosts == {"h2": HostLine("h2"), "h3": HostLine("h3")}
    assert roster.look() is None


def test_a_file_that_is_being_written_is_not_read_before_it_is_done(file: Path) -> None:
    roster = follow(file)
    with file.open("a") as writing:
        for part in ("h", "3 slo", "ts=2\n"):
            writing.write(part)
            writing.flush()
            assert roster.look() is None
    assert roster.look() == Change(came=(HostLine("h3", slots=2),))


def test_a_file_that_is_replaced_is_read_though_size_and_time_are_the_same(
    file: Path, tmp_path: Path
) -> None:
    roster = follow(file)
    (tmp_path / "new").write_text("h3\nh2 slots=2\n")
    at = file.stat().st_mtime_ns
    os.utime(tmp_path / "new", ns=(at, at))
    (tmp_path / "new").rename(file)
    assert settled(roster) == Change(came=(HostLine("h3"),), gone=(HostLine("h1"),))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"h1\nh3 slot=2\n", "hosts, line 2: 'slot=2' is not understood; write name"),
        (b"h1\nh2\n\xff\n", "hosts, line 3: this is no text in UTF-8; write name"),
        (b"", "hosts names no host; write one a line"),
    ],
)
def test_what_is_wrong_is_said_once_and_the_hosts_stay(
    file: Path, text: bytes, complaint: str
) -> None:
    roster = follow(file)
    before = dict(roster.hosts)
    file.write_bytes(text)
    with pytest.raises(UsageError, match=complaint):
        settled(roster)
    assert roster.look() is None
    assert roster.hosts == before
    file.write_text("h1\nh2 slots=2\nh3\n")
    assert settled(roster) == Change(came=(HostLine("h3"),))


@pytest.mark.parametrize("instead", ["nothing", "folder", "pipe"])
def test_a_file_that_is_gone_is_said_once_and_read_when_it_is_back(
    file: Path, tmp_path: Path, instead: str
) -> None:
    roster = follow(file)
    file.rename(tmp_path / "away")
    if instead == "folder":
        file.mkdir()
    elif instead == "pipe":
        os.mkfifo(file)
    with pytest.raises(UsageError, match="hosts is not there any more, or is no file"):
        settled(roster)
    assert roster.look() is None
    assert roster.slots == 3
    if instead == "folder":
        file.rmdir()
    elif instead == "pipe":
        file.unlink()
    (tmp_path / "away").rename(file)
    assert settled(roster) == Change()


def test_a_pipe_is_read_once(file: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("h1\n",))
    writer.start()
    roster = follow(pipe)
    writer.join()
    assert list(roster.hosts) == ["h1"]
    pipe.unlink()
    file.rename(pipe)
    assert [roster.look() for _ in range(3)] == [None, None, None]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere cannot be read: No such file or directory"):
        HostsFile(str(tmp_path / "nowhere"))


def test_hosts_that_were_asked_for_otherwise_do_not_go_with_the_file(file: Path) -> None:
    roster = follow(file)
    roster.add(HostLine("h9"))
    roster.add(HostLine("h1", slots=4))
    file.write_text("h1\nh2 slots=2\nh3\n")
    assert settled(roster) == Change(came=(HostLine("h3"),))
    assert list(roster.hosts.values()) == [
        *(HostLine("h1", slots=4), HostLine("h2", slots=2), HostLine("h9"), HostLine("h3"))
    ]


def test_those_of_no_file_stay() -> None:
    roster = WantedHosts([HostLine("h1")])
    assert roster.look() is None
    assert list(roster.hosts) == ["h1"]
