"""A worker's words arrive whole; without a launcher they go nowhere, and harm nobody."""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spotmpi.launcher_channel import (
    ADMISSION,
    BOARDS,
    DEATHS,
    IN_ROUND,
    LIMIT,
    LISTENER,
    Cause,
    LauncherChannel,
    Measured,
    Name,
    Order,
    admit,
    orders,
    progress,
    publish_cause,
    publish_death,
    record_death,
)
from spotmpi.settings import Settings


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The launcher's and the worker's end of a connection."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / LISTENER))
    listener.listen()
    worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.connect(str(tmp_path / LISTENER))
    launcher, _ = listener.accept()
    launcher.settimeout(60)
    yield launcher, worker
    for one in (listener, worker, launcher):
        one.close()


@pytest.fixture
def channel(tmp_path: Path, ends: tuple[socket.socket, socket.socket]) -> LauncherChannel:
    (tmp_path / DEATHS).write_bytes(bytes(16))
    for board in BOARDS:
        (tmp_path / board).touch()
    return LauncherChannel.open(Settings(job_dir=tmp_path, channel_fd=ends[1].fileno()))


def test_an_event_is_one_line_of_json(channel: LauncherChannel, ends) -> None:
    channel.tell("checkpoint", step=3, path=Path("/x"))
    message = ends[0].recv(LIMIT)
    assert message.endswith(b"\n")
    assert json.loads(message) == {"event": "checkpoint", "step": 3, "path": "/x"}


def test_an_event_that_is_too_long_arrives_without_its_fields(
    channel: LauncherChannel, ends
) -> None:
    channel.tell("failed", traceback="x" * LIMIT)
    assert json.loads(ends[0].recv(LIMIT)) == {"event": "failed"}


def test_a_channel_that_is_closed_holds_nothing_and_leaves_the_connection_alone(
    tmp_path: Path,
    ends: tuple[socket.socket, socket.socket],
    descriptors: Callable[[], list[str]],
) -> None:
    (tmp_path / DEATHS).write_bytes(bytes(16))
    for board in BOARDS:
        (tmp_path / board).touch()
    before = descriptors()
    channel = LauncherChannel.open(Settings(job_dir=tmp_path, channel_fd=ends[1].fileno()))
    assert len(descriptors()) == len(before) + 4  # deaths, and three boards
    channel.close()
    channel.close()
    assert descriptors() == before
    channel.tell("begin")
    channel.progressed(0, 1, 1, IN_ROUND)
    assert channel.order_for(0) is channel.death_of(0) is None
    channel.confirm([1])
    ends[1].send(b"the script's end")
    assert ends[0].recv(LIMIT) == b"the script's end"


def test_a_launcher_that_is_gone_is_no_error(channel: LauncherChannel, ends) -> None:
    ends[0].close()
    channel.tell("done")


def test_a_launcher_that_does_not_listen_delays_but_does_not_stop(
    channel: LauncherChannel, ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotmpi.launcher_channel.PATIENCE", 0.001)
    for _ in range(1000):
        channel.tell("recovery", text="x" * 1000)
    assert json.loads(ends[0].recv(LIMIT))["event"] == "recovery"


def test_without_a_launcher_nothing_happens() -> None:
    channel = LauncherChannel.open(Settings())
    channel.tell("begin")
    assert channel.death_of(0) is None


def test_a_descriptor_that_means_something_else_is_not_written_to(tmp_path: Path) -> None:
    with (tmp_path / "precious").open("w+b") as file:
        LauncherChannel.open(Settings(job_dir=tmp_path, channel_fd=file.fileno())).tell("begin")
        assert file.read() == b""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        LauncherChannel.open(Settings(job_dir=tmp_path, channel_fd=ours.fileno())).tell("begin")
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(10)
    LauncherChannel.open(Settings(job_dir=tmp_path, channel_fd=987)).tell("begin")


def test_a_death_is_on_the_board_once(channel: LauncherChannel, tmp_path: Path) -> None:
    assert channel.death_of(1) is None
    record_death(str(tmp_path), 1, 12.5)
    record_death(str(tmp_path), 1, 99.0)
    assert channel.death_of(1) == 12.5
    assert channel.death_of(0) is None
    assert channel.death_of(7) is None
    assert os.path.getsize(tmp_path / DEATHS) == 16


def test_whoever_takes_others_for_dead_waits_until_it_is_known_and_asks_for_it(
    channel: LauncherChannel, ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotmpi.launcher_channel._BEFORE_COMPLAINT", 0.0)
    record_death(str(tmp_path), 1, 12.5)
    channel.confirm([1])
    waiting = threading.Thread(target=channel.confirm, args=([1, 3],), daemon=True)
    waiting.start()
    ends[0].setblocking(True)
    assert json.loads(ends[0].recv(LIMIT)) == {"event": "misses", "workers": [3]}
    assert waiting.is_alive()
    record_death(str(tmp_path), 3, 13.0)
    waiting.join(60)
    assert not waiting.is_alive()


def test_without_a_launcher_mpi_is_believed() -> None:
    LauncherChannel.open(Settings()).confirm([1])


def test_orders_and_progress_are_on_boards_that_both_ends_see(
    channel: LauncherChannel, tmp_path
) -> None:
    board = orders(tmp_path, writing=True)
    assert channel.order_for(3) is None
    board.write(3, Order(True, True, 7))
    assert channel.order_for(3) == Order(True, True, 7)
    assert channel.order_for(2) is None
    assert channel.order_for(4) is None
    board.write(3, Order(newcomer=9))
    assert channel.order_for(3) == Order(newcomer=9)
    board.close()
    before = time.monotonic()
    channel.progressed(1, 5, 4, IN_ROUND)
    seen = progress(tmp_path)
    said = seen.read(1)
    assert said is not None
    assert said[:3] == (5, 4, IN_ROUND)
    assert before <= said.since <= time.monotonic()
    for loss, seen_as in ((None, None), (0.25, 0.25), (math.nan, None), (math.inf, None)):
        channel.progressed(1, 5, 4, IN_ROUND, loss)
        again = seen.read(1)
        assert again is not None
        assert again.loss == seen_as
    assert again.measured == Measured()
    channel.progressed(1, 5, 4, IN_ROUND, None, Measured(100, 4096, 1.5, 0.5, 0.25))
    again = seen.read(1)
    assert again is not None
    assert again.measured == Measured(100, 4096, 1.5, 0.5, 0.25)
    assert seen.read(0) is None
    seen.close()


@pytest.mark.parametrize("impossible", [math.nan, math.inf, -1.0, 1e300])
def test_what_a_worker_cannot_have_measured_goes_no_further(
    channel: LauncherChannel, tmp_path: Path, impossible: float
) -> None:
    """The head would take the agent that passes it on for no agent."""
    with closing(progress(tmp_path)) as seen:
        most = (1 << 64) - 1
        channel.progressed(1, 5, 4, IN_ROUND, None, Measured(most, most, *[impossible] * 3))
        said = seen.read(1)
        assert said is not None
        assert said.measured == Measured((1 << 63) - 1, (1 << 63) - 1)


def test_half_a_record_counts_as_none(channel: LauncherChannel, tmp_path: Path) -> None:
    board = orders(tmp_path, writing=True)
    board.write(0, Order(True, False, 1))
    whole = (tmp_path / "orders").read_bytes()
    board.write(0, Order(False, True, 2))
    new = (tmp_path / "orders").read_bytes()
    for cut in range(1, len(whole)):
        half = new[:cut] + whole[cut:]
        (tmp_path / "orders").write_bytes(half)
        expected = {whole: Order(True, False, 1), new: Order(False, True, 2)}.get(half)
        assert channel.order_for(0) == expected
        (tmp_path / "orders").write_bytes(new[:cut])
        assert channel.order_for(0) is None
    board.close()


def test_without_a_launcher_there_are_no_boards() -> None:
    channel = LauncherChannel.open(Settings())
    channel.progressed(0, 1, 1, IN_ROUND)
    assert channel.order_for(0) is None


class Waiting:
    """A newcomer that waits for its admission, in a thread; and what it has got."""

    def __init__(self, channel: LauncherChannel, launcher: socket.socket, worker: int) -> None:
        self.found: dict[str, str] | None = None
        self._thread = threading.Thread(target=self._wait, args=(channel, worker), daemon=True)
        self._thread.start()
        assert json.loads(launcher.recv(LIMIT)) == {"event": "waiting"}

    def _wait(self, channel: LauncherChannel, worker: int) -> None:
        self.found = channel.admission(worker)

    def end(self) -> dict[str, str] | None:
        self._thread.join(60)
        return self.found


def test_a_newcomer_waits_until_it_is_told_what_mpi_must_find(channel, ends, tmp_path) -> None:
    waiting = Waiting(channel, ends[0], 7)
    assert (tmp_path / f"{ADMISSION}-7").stat().st_mode == stat.S_IFIFO | 0o600
    assert waiting.found is None
    environ = {"PMIX_RANK": "0", "TEXT": "a\nb = \u00e9", "EMPTY": ""}
    admit(tmp_path, 7, environ)
    assert waiting.end() == environ
    assert not (tmp_path / f"{ADMISSION}-7").exists()


def test_what_is_told_in_two_parts_is_read_as_one(channel, ends, tmp_path) -> None:
    waiting = Waiting(channel, ends[0], 7)
    with open(tmp_path / f"{ADMISSION}-7", "wb", buffering=0) as pipe:
        pipe.write(b'{"A": ')
        while _unread(pipe.fileno()):
            os.sched_yield()  # until the newcomer has taken it
        assert waiting.found is None
        pipe.write(b'"1"}\n')
    assert waiting.end() == {"A": "1"}


def _unread(pipe: int) -> int:
    """Bytes that nobody has read yet."""
    found = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(found, sys.byteorder)


def test_more_than_any_environment_of_mpi_s_is_told_without_waiting(
    channel, ends, tmp_path
) -> None:
    waiting = Waiting(channel, ends[0], 7)
    environ = {f"PMIX_{number}": "x" * 100 for number in range(250)}
    admit(tmp_path, 7, environ)
    assert waiting.end() == environ


def test_a_newcomer_that_does_not_wait_cannot_be_admitted(channel, tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        admit(tmp_path, 7, {})
    os.mkfifo(tmp_path / f"{ADMISSION}-7")
    with pytest.raises(OSError, match="No such device"):  # it has died since
        admit(tmp_path, 7, {})


def test_who_waits_for_deaths_is_woken_by_one_and_reads_whose_it_is(
    channel: LauncherChannel, tmp_path: Path
) -> None:
    deaths = channel.obituaries(1)
    assert deaths is not None
    with closing(deaths):
        assert deaths.of(2) is None
        woken = threading.Thread(target=deaths.wait)
        woken.start()
        publish_death(tmp_path, 2, Name(b"a@1", 7), to=[1, 3])  # and 3 is not there
        woken.join(60)
        assert not woken.is_alive()
        assert deaths.of(2) == Name(b"a@1", 7)
        deaths.ring()
        deaths.wait()


def test_more_deaths_than_somebody_looks_at_hold_nobody_up(
    channel: LauncherChannel, tmp_path: Path
) -> None:
    deaths = channel.obituaries(0)
    assert deaths is not None
    names = {worker: Name(b"a" * 255, worker) for worker in range(1, 1000)}
    with closing(deaths):
        for worker, name in names.items():
            publish_death(tmp_path, worker, name, to=[0])
        deaths.wait()
        assert {worker: deaths.of(worker) for worker in names} == names


def test_without_a_launcher_nobody_tells_of_deaths() -> None:
    assert LauncherChannel.open(Settings()).obituaries(0) is None


def test_what_is_told_once_of_a_newcomer_is_not_told_again(channel: LauncherChannel, ends) -> None:
    for newcomer in (4, 4, 5, 4):
        channel.tell_once("spawning", newcomer)
    channel.tell_once("gave_up", 4, why="no room")
    told = [json.loads(ends[0].recv(LIMIT)) for _ in range(3)]
    assert [(fields["event"], fields["newcomer"]) for fields in told] == [
        ("spawning", 4),
        ("spawning", 5),
        ("gave_up", 4),
    ]


def test_why_a_worker_is_gone_is_found_by_the_others(
    channel: LauncherChannel, tmp_path: Path
) -> None:
    assert channel.cause_of(3) is None
    publish_cause(tmp_path, 3, Cause("silent", "host h2 was silent for 203 ms"))
    assert channel.cause_of(3) == Cause("silent", "host h2 was silent for 203 ms")
    assert channel.cause_of(2) is None
    publish_cause(tmp_path, 3, Cause("k" * 99, "\u00e9" * 999))
    known = channel.cause_of(3)
    assert known is not None
    assert known.kind == "k" * 16
    assert known.why == "\u00e9" * 116
    channel.close()
    assert channel.cause_of(3) is None


def test_without_a_launcher_nobody_says_why() -> None:
    assert LauncherChannel.open(Settings()).cause_of(0) is None
