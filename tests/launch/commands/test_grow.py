"""What is wrong with a wish for more workers is said before any job is asked."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import pytest

from spotmpi import cli, job_folder
from spotmpi.errors import UsageError
from spotmpi.launch.commands import grow
from spotmpi.launch.control_messages import AskGrow, AskHost, Said, Wrong
from spotmpi.launch.decoding import Message
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.head.control_socket import ControlSocket


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give --workers N, for more workers on the job's host; or --host NAME"),
        (["--workers", "0"], "--workers 0: give a number of workers, from 1 to 4096"),
        (["--workers", "-1"], "--workers -1: give a number of workers"),
        (["--workers", "two"], "--workers two: give a number of workers"),
        (["--workers", "4097"], "--workers 4097: give a number of workers"),
        (["--workers", "9" * 5000], "give a number of workers"),
        (["--workers", "1", "--slots", "2"], "--slots and --python are for a new host"),
        (["--workers", "1", "--host", "h1", "--python", "/py"], "are for a new host"),
        (["--workers", "1", "--host=-oProxyCommand=x"], "is no name of a host"),
        (["--host", "h1", "--slots", "0"], "slots=0 is not a whole number from 1 to 4096"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(words: list[str], why: str) -> None:
    parser = argparse.ArgumentParser()
    grow.add_arguments(parser)
    with pytest.raises(UsageError) as caught:
        grow.main(parser.parse_args(words))
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("last", "code"), [(Said("h3 is here"), 0), (Wrong("h3 cannot be reached; it is tried"), 1)]
)
def test_a_host_that_is_asked_for_is_waited_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    last: Said | Wrong,
    code: int,
) -> None:
    answers = iter([Said("h3 is asked for 2 workers"), Said(""), Said(""), last])
    asked: list[object] = []

    def answer(question: Message) -> Message:
        asked.append(question)
        return next(answers)

    folder = tmp_path / "spotmpi-00"
    folder.mkdir()
    monkeypatch.setattr(job_folder, "home", lambda: tmp_path)
    monkeypatch.setattr(grow, "_BETWEEN_LOOKS", 0.0)
    loop = Loop()
    desk = ControlSocket(loop, folder, answer)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            loop.turn(0.05)

    served = threading.Thread(target=serve)
    served.start()
    try:
        assert cli.main(["grow", "--host", "h3", "--slots", "2"]) == code
    finally:
        ended.set()
        served.join()
        desk.close(Said(""))
        loop.close()
    assert asked == [AskGrow("h3 slots=2"), *[AskHost("h3")] * 3]
    shown = capsys.readouterr()
    assert ("h3 is here" in shown.out, "h3 cannot be reached" in shown.err) == (
        not code,
        bool(code),
    )
