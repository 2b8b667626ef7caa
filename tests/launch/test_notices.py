"""Notices in an event loop: from a process that asks a cloud, and from signals."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch import notices
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.notices import NoticeListener
from spotmpi.notice import Notice
from spotmpi.settings import NOTICES, Watch
from spotmpi.testing import EC2, GCE, Azure

USR1, TERM = signal.SIGUSR1, signal.SIGTERM


class Watching:
    """An event loop with a lookout, and what it was told."""

    def __init__(self, watch: Watch, *, agent: bool = False, dmi: Path = Path("/none")) -> None:
        self.loop = Loop()
        self.notices: list[Notice] = []
        self.said: list[str] = []
        self.lookout = NoticeListener(
            self.loop, watch, self.notices.append, self.said.append, agent=agent, dmi=dmi
        )

    def turn_until(self, done: Callable[[], object]) -> None:
        while not done():
            assert self.loop.turn(60), "nothing happens any more"


@pytest.fixture
def loop(descriptors: Callable[[], list[str]]) -> Iterator[Callable[..., Watching]]:
    """``loop(watch)`` makes one; its lookout is to be closed at the end, and leaves nothing."""
    made: list[Watching] = []
    before = len(descriptors())

    def make(watch: Watch, **more: object) -> Watching:
        made.append(Watching(watch, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.lookout.close()
        one.lookout.close()
        assert len(one.loop) == 0
        one.loop.close()
    assert len(descriptors()) == before


@pytest.mark.parametrize("fake", [EC2, GCE, Azure])
def test_a_notice_of_a_cloud_is_an_event(loop: Callable[..., Watching], fake: type[EC2]) -> None:
    with fake() as cloud:
        there = loop(Watch(cloud.provider, cloud.endpoint))
        there.lookout.start()
        cloud.wait_for_requests(1)
        cloud.preempt(in_seconds=60)
        there.turn_until(lambda: there.notices)
        assert [one.source for one in there.notices] == [cloud.provider]
        there.lookout.safe()  # which only Azure wants to know
        there.lookout.safe()


def test_advice_is_an_event_too(loop: Callable[..., Watching]) -> None:
    with EC2() as cloud:
        cloud.recommend()
        there = loop(Watch("ec2", cloud.endpoint))
        there.lookout.start()
        there.turn_until(lambda: there.notices)
        assert there.notices == [Notice("ec2", None, "EC2 rebalance recommendation", advice=True)]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_safe_host_is_acknowledged_even_if_all_is_over(
    loop: Callable[..., Watching], at_once: bool
) -> None:
    with Azure() as cloud:
        cloud.preempt(in_seconds=30)
        there = loop(Watch("azure", cloud.endpoint))
        there.lookout.start()
        there.turn_until(lambda: there.notices)
        assert cloud.acknowledged == ()
        there.lookout.safe()
        if not at_once:
            cloud.wait_for_requests(len(cloud.requests) + 2)
        there.lookout.close()
        # Once more if it was asked to end before the answer had come.
        assert len(set(cloud.acknowledged)) == 1


def test_a_host_that_is_not_safe_is_not_acknowledged(loop: Callable[..., Watching]) -> None:
    with Azure() as cloud:
        cloud.preempt(in_seconds=30)
        there = loop(Watch("azure", cloud.endpoint))
        there.lookout.start()
        there.turn_until(lambda: there.notices)
        there.lookout.close()
        assert cloud.acknowledged == ()


def test_a_watcher_that_is_killed_is_said_once_and_does_no_harm(
    loop: Callable[..., Watching],
) -> None:
    with GCE() as cloud:
        there = loop(Watch("gce", cloud.endpoint))
        there.lookout.start()
        assert there.lookout.pid is not None
        os.kill(there.lookout.pid, signal.SIGKILL)
        there.turn_until(lambda: there.said)
        assert there.said == [
            "the notice watcher ended (SIGKILL); this host no longer hears the cloud's notices"
        ]
        assert there.lookout.pid is None
        there.lookout.safe()
        assert len(there.loop) == 0


def test_a_watcher_that_cannot_begin_says_why(
    loop: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = loop(Watch("gce"))
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    there.lookout.start()
    assert there.said == [
        "notices cannot be heard: /nonexistent/python cannot be run (No such file or directory)"
    ]
    assert there.lookout.pid is None


@pytest.mark.matrix
def test_a_service_that_does_not_answer_is_said_to_the_user(loop: Callable[..., Watching]) -> None:
    with Azure() as cloud:
        cloud.misbehave("refused")
        there = loop(Watch("azure", cloud.endpoint))
        there.lookout.start()
        there.turn_until(lambda: there.said)
        (said,) = there.said
        assert said.startswith("Azure's metadata service gives no usable answer (Connection ref")


@pytest.mark.parametrize("fault", ["hanging", "slow", "huge"])
def test_closing_does_not_wait_for_a_service(loop: Callable[..., Watching], fault: str) -> None:
    with GCE() as cloud:
        cloud.misbehave(fault, seconds=300)
        there = loop(Watch("gce", cloud.endpoint))
        there.lookout.start()
        there.lookout.close()


def test_what_says_nonsense_is_said_and_ends_nothing(
    loop: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    good = Notice("gce", None, "x")
    program.write_text(
        "import sys\n"
        "print('\\x1b]nonsense')\n"
        f"print({good.encode()!r}, flush=True)\n"
        "sys.stdin.read()\n"
    )
    monkeypatch.setattr(notices, "_PROGRAM", program)
    there = loop(Watch("gce"))
    there.lookout.start()
    there.turn_until(lambda: there.notices)
    assert there.notices == [good]
    assert there.said == ["the notice watcher said '?]nonsense', which is no notice"]


@pytest.mark.parametrize(
    ("source", "agent", "signals"),
    [
        ("auto", False, (USR1,)),
        ("auto", True, (USR1, TERM)),
        ("signal", False, (USR1, TERM)),
        ("signal", True, (USR1, TERM)),
        ("none", False, ()),
        ("none", True, ()),
        ("ec2", False, ()),
        ("gce", True, ()),
    ],
)
def test_which_signals_are_notices(
    loop: Callable[..., Watching], source: str, agent: bool, signals: tuple[int, ...]
) -> None:
    there = loop(Watch(source), agent=agent).lookout
    assert there.signals == signals
    for number in (USR1, TERM, signal.SIGINT):
        assert there.take(number) == (number in signals)


def test_signals_are_one_notice_and_a_second_sigterm_is_none(loop: Callable[..., Watching]) -> None:
    there = loop(Watch("signal"))
    assert [there.lookout.take(number) for number in (USR1, USR1, TERM, TERM, USR1)] == [
        True,
        True,
        True,
        False,
        True,
    ]
    assert there.notices == [Notice("signal", None, "SIGUSR1")]


@pytest.mark.parametrize(
    ("vendor", "source", "starts"),
    [
        ("Amazon EC2", "auto", True),
        ("Amazon EC2", "signal", False),
        ("Amazon EC2", "none", False),
        ("LENOVO", "auto", False),
        ("LENOVO", "ec2", True),
    ],
)
def test_a_process_is_started_only_where_there_is_a_cloud_to_ask(
    loop: Callable[..., Watching], tmp_path: Path, vendor: str, source: str, starts: bool
) -> None:
    (tmp_path / "sys_vendor").write_text(vendor)
    with EC2() as cloud:
        there = loop(Watch(source, cloud.endpoint), dmi=tmp_path)
        there.lookout.start()
        assert (there.lookout.pid is not None) == starts
        if starts:
            cloud.preempt()
            there.turn_until(lambda: there.notices)
        assert bool(cloud.requests) == starts


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    notices.add_arguments(parser)
    return parser.parse_args(words)


def test_options_count_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTMPI_NOTICE")
    assert notices.chosen(options()) == Watch("auto")
    monkeypatch.setenv("SPOTMPI_NOTICE", "gce")
    monkeypatch.setenv("SPOTMPI_NOTICE_ENDPOINT", "http://1.2.3.4")
    assert notices.chosen(options()) == Watch("gce", "http://1.2.3.4")
    found = notices.chosen(options("--notice", "ec2", "--notice-endpoint", "http://4.3.2.1:80"))
    assert found == Watch("ec2", "http://4.3.2.1:80")
    assert notices.chosen(options(*found.to_options())) == found


@pytest.mark.parametrize("source", NOTICES)
@pytest.mark.parametrize("endpoint", [None, "http://1.2.3.4"])
def test_what_a_launcher_was_told_its_agents_understand(source: str, endpoint: str | None) -> None:
    words = Watch(source, endpoint).to_options()
    found = notices.chosen(options(*words))
    assert found.source == source
    assert found.endpoint == (None if source in ("signal", "none") else endpoint)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--notice", "aws"), "'aws' is no source of notices; give one of auto, ec2, gce, azure"),
        (("--notice", "ec2", "--notice-endpoint", "x"), "'x' is no address of a service"),
        (("--notice", "none", "--notice-endpoint", "http://x"), "give --notice ec2, gce or azure"),
        (("--notice-endpoint", "http://x"), "--notice none asks no service"),
    ],
)
def test_options_that_make_no_sense_are_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        notices.chosen(options(*words))
