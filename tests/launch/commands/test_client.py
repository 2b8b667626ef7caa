"""Jobs are found by their folders, and whatever answers there does no harm."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotmpi import cli, job_folder
from spotmpi.errors import UsageError
from spotmpi.launch import control_messages
from spotmpi.launch.commands import client
from spotmpi.launch.commands.client import Gone, ask, find, until_end
from spotmpi.launch.decoding import encode
from spotmpi.launch.head.control_socket import DESK
from spotmpi.launch.head.status_report import StatusReport
from tests.running import LIMIT

Serve = Callable[..., Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No job but this test's."""
    monkeypatch.setattr(job_folder, "home", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def job(home: Path) -> Iterator[Serve]:
    """``job(name, answer)``: somebody who gives this answer to every question.

    With None, nobody accepts; with "hang", somebody accepts and is silent.
    """
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []
    accepted: list[socket.socket] = []

    def serve(listener: socket.socket, answer: bytes | str) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            accepted.append(link)
            if isinstance(answer, bytes) and link.recv(1 << 16):
                link.sendall(answer)
                link.close()

    def make(name: str, answer: bytes | str | None) -> Path:
        folder = home / f"spotmpi-{name}"
        folder.mkdir()
        if answer is not None:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(folder / DESK))
            listener.listen()
            listeners.append(listener)
            threads.append(threading.Thread(target=serve, args=(listener, answer)))
            threads[-1].start()
        return folder

    yield make
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(LIMIT)
    for link in accepted:
        link.close()


REPORT = StatusReport("train.py").report("spotmpi-00", [], {}, {})
STATUS = encode(replace(REPORT, since="2026-11-21T14:02:10+01:00", seconds=0.0)) + b"\n"


def test_the_only_job_needs_no_name(job: Serve, home: Path) -> None:
    only = job("00", STATUS)
    job("0a", None)  # an agent's, or what a dead launcher left
    (home / "spotmpi-0b").touch()
    (home / "spotmpi-0c").symlink_to(only)
    assert find(None) == find("00") == find("spotmpi-00") == only
    assert client.status(only).script == "train.py"


def test_without_a_job_it_is_said_where_to_ask() -> None:
    with pytest.raises(Gone, match="no job of yours runs on this host; ask where `spotmpi run`"):
        find(None)


def test_several_jobs_are_listed_even_if_one_hangs(
    job: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_FOR_A_LIST", 0.1)
    job("00", STATUS)
    job("0a", "hang")
    with pytest.raises(UsageError) as caught:
        find(None)
    assert str(caught.value).splitlines() == [
        "several jobs of yours run on this host; choose by --job NAME:",
        "  spotmpi-00  train.py, since 2026-11-21 14:02:10",
        "  spotmpi-0a  (does not answer)",
    ]


def test_the_status_of_several_jobs_is_a_list(
    job: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "_FOR_A_LIST", 0.1)
    job("00", STATUS)
    job("0a", "hang")
    assert cli.main(["status"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "several jobs of yours run on this host; --job NAME shows one of them:",
        "  JOB         FOR  STEP  WORKERS  SCRIPT",
        "  spotmpi-00  0 s  -     0        train.py",
        "  spotmpi-0a  ?    ?     ?        (does not answer)",
    ]
    assert cli.main(["status", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["script"] == "train.py"
    assert cli.main(["status", "--watch"]) == 2
    assert "choose by --job NAME:" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "..", "00/../00", "spotmpi-", "-x", "*"])
def test_a_name_is_no_path(job: Serve, name: str) -> None:
    job("00", STATUS)
    with pytest.raises(UsageError, match="is no name of a job"):
        find(name)


def test_a_named_job_that_is_not_there_or_not_alive(job: Serve) -> None:
    job("0a", None)
    with pytest.raises(Gone, match="there is no job spotmpi-00 of yours on this host"):
        find("00")
    with pytest.raises(Gone, match="spotmpi-0a is what is left of a job whose launcher was kil"):
        find("0a")


def test_folders_and_launchers_of_others_are_not_mine(
    job: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job("00", STATUS)
    with monkeypatch.context() as patch:
        patch.setattr(client, "peer", lambda _: (1, os.getuid() + 1))
        with pytest.raises(Gone, match="spotmpi-00 is served by somebody else"):
            client.status(folder)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(Gone, match="there is no job spotmpi-00 of yours"):
        find("00")


JUNK = (
    *(b"garbage\n", b"\xff\n", b"7\n", b"{}\n", b'{"event": "report"}\n', b'{"wrong": "so"}\n'),
    STATUS.replace(b'"launcher": ', b'"launcher": -'),
    STATUS.replace(b'"workers": []', b'"workers": [{"worker": 1}]'),
    STATUS.replace(b'"ending": null', b'"ending": {"code": "many"}'),
    STATUS.replace(b'"seconds": ', b'"seconds": 1e999, "x": '),
)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "ended without an answer"),
        (b'{"half": ', "ended without an answer"),
        *((junk, "gives no answer that can be understood") for junk in JUNK),
        (b'{"event": "said", "said": "hello"}\n', "answers something else than it was asked"),
    ],
)
def test_answers_that_are_none_are_said_to_be(job: Serve, answer: bytes, said: str) -> None:
    folder = job("00", answer)
    with pytest.raises(Gone, match=f"spotmpi-00 {said}"):
        client.status(folder)
    with until_end(folder) as end, pytest.raises(Gone, match="the launcher of spotmpi-00 was"):
        end.wait()


def test_an_answer_without_an_end_is_given_up(job: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LONGEST", 1000)
    with pytest.raises(Gone, match="gives no answer"):
        client.status(job("00", b"x" * 5000))


def test_a_launcher_that_is_stopped_is_not_waited_for_for_ever(
    job: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PATIENCE", 0.05)
    folder = job("00", "hang")
    with pytest.raises(Gone, match="does not answer: its launcher is stopped, or this host is"):
        client.status(folder)
    with until_end(folder) as end:
        assert end.wait(0.05) is None


def test_what_is_wrong_with_a_question_is_the_user_s_to_know(job: Serve) -> None:
    folder = job("00", b'{"event": "wrong", "wrong": "there is no worker 9"}\n')
    with pytest.raises(UsageError, match="there is no worker 9"):
        ask(folder, control_messages.AskShrink(9), control_messages.Said)
    with until_end(folder) as end, pytest.raises(UsageError, match="there is no worker 9"):
        end.wait()
