"""The watcher's loop: what it tells, when it complains, and when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from spotmpi.errors import NoAnswer
from spotmpi.notice import Notice
from spotmpi.notice.watcher import Input, ParentGone, watch

NOTICE = Notice("azure", 30.0, "Azure preemption")


class Pipe:
    """The watcher's input, and its other end."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self.reading = reading
        self.input = Input(reading)

    def say(self, data: bytes) -> None:
        os.write(self.writing, data)

    def close(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()
    os.close(made.reading)


class Provider:
    """Does at each poll what is next on its list, and ends the input after the last."""

    name = "Nobody"
    pause = 0.0

    def __init__(self, pipe: Pipe, *script: Callable[[], list[Notice]]) -> None:
        self.pipe = pipe
        self.script = list(script)
        self.calls: list[str] = []
        self.refusals = 0

    def poll(self) -> list[Notice]:
        self.calls.append("poll")
        act = self.script.pop(0)
        if not self.script:
            self.pipe.close()
        return act()

    def safe(self) -> None:
        self.calls.append("safe")
        if self.refusals:
            self.refusals -= 1
            raise NoAnswer("not yet")


def quiet() -> list[Notice]:
    return []


def fail() -> list[Notice]:
    raise NoAnswer("Connection refused")


class Told:
    """What a watcher told, and complained of."""

    def __init__(self, pipe: Pipe, provider: Provider) -> None:
        self.notices: list[Notice] = []
        self.complaints: list[str] = []
        watch(provider, pipe.input, self.notices.append, self.complaints.append)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotmpi.notice.watcher._AFTER_FAILURE", 0.0)


def test_what_a_provider_finds_is_told_until_the_input_ends(pipe: Pipe) -> None:
    told = Told(pipe, Provider(pipe, quiet, lambda: [NOTICE], quiet))
    assert told.notices == [NOTICE]
    assert told.complaints == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("polls", "complaints"),
    [
        ([fail, fail, quiet, fail, fail], 0),
        ([fail, fail, fail], 1),
        ([fail] * 20, 1),
        ([fail, fail, fail, quiet, fail, fail, fail], 2),
    ],
)
def test_a_service_that_gives_no_answers_is_complained_of_once(
    pipe: Pipe, polls: list[Callable[[], list[Notice]]], complaints: int
) -> None:
    told = Told(pipe, Provider(pipe, *polls, quiet))
    assert len(told.complaints) == complaints
    sentence = "Nobody's metadata service gives no usable answer (Connection refused); "
    assert all(said.startswith(sentence) for said in told.complaints)


def test_that_the_host_is_safe_is_passed_on_once(pipe: Pipe) -> None:
    def say() -> list[Notice]:
        pipe.say(b"nonsense\nsa")
        pipe.say(b"fe\n")
        return [NOTICE]

    provider = Provider(pipe, say, quiet, quiet)
    Told(pipe, provider)
    assert provider.calls == ["poll", "safe", "poll", "poll"]


@pytest.mark.usefixtures("impatient")
def test_what_was_not_taken_is_passed_on_again(pipe: Pipe) -> None:
    def say() -> list[Notice]:
        pipe.say(b"safe\n")
        return []

    provider = Provider(pipe, say, quiet, quiet)
    provider.refusals = 2
    Told(pipe, provider)
    assert provider.calls == ["poll", "safe", "safe", "safe", "poll", "poll"]


def test_what_was_not_taken_is_passed_on_a_last_time_when_the_input_ends(pipe: Pipe) -> None:
    pipe.say(b"safe\n")
    provider = Provider(pipe, lambda: [NOTICE])
    provider.refusals = 5
    Told(pipe, provider)
    assert provider.calls == ["poll", "safe", "safe"]


def test_nobody_reading_what_is_told_ends_it(pipe: Pipe) -> None:
    def tell(notice: Notice) -> None:
        raise BrokenPipeError

    watch(Provider(pipe, lambda: [NOTICE], quiet, quiet), pipe.input, tell, print)
    assert pipe.writing >= 0


def test_the_end_of_the_input_interrupts_a_wait_once(pipe: Pipe) -> None:
    reading, writing = os.pipe()
    try:
        pipe.close()
        with pytest.raises(ParentGone):
            pipe.input.wait(reading, 1, 30.0)
        assert not pipe.input.wait(reading, 1, 0.0)
        os.write(writing, b"x")
        assert pipe.input.wait(reading, 1, 30.0)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_word_ends_a_pause_and_no_wait(pipe: Pipe) -> None:
    pipe.say(b"safe\n")
    pipe.input.pause(300.0)
    assert pipe.input.safe
    pipe.input.safe = False
    pipe.say(b"safe\n")
    assert not pipe.input.wait(pipe.writing, 0, 0.05)
    assert pipe.input.safe


def test_an_endless_line_is_not_kept(pipe: Pipe) -> None:
    for _ in range(50):
        pipe.say(b"x" * 1000)
        assert not pipe.input.wait(pipe.writing, 0, 0.0)
        for _ in range(4):
            pipe.input.wait(pipe.writing, 0, 0.0)
    assert len(pipe.input._begun) <= 256
