"""An agent that knows the token, and sends what it likes, costs the job that host and no more."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi.launch import link, messages
from tests.launch.hostile import Hostile
from tests.running import Running

TRAINS_UNTIL_ENOUGH = """
import pathlib, numpy as np, spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

with spotmpi.Trainer({"w": np.zeros(8)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    while not pathlib.Path("enough").exists():
        trainer.step({"w": np.ones(8)})
        if trainer.steps % 500 == 1:
            print("STEP", trainer.steps, flush=True)
print("TRAINED", trainer.worker)
"""


class Job:
    """A job of one worker on one honest host, which trains until the test has seen enough."""

    def __init__(self, start: Callable[..., Running], folder: Path) -> None:
        self.folder, self.token = folder, folder / "token"
        (folder / "script.py").write_text(TRAINS_UNTIL_ENOUGH)
        self.running = start(
            *("run", "--listen", "127.0.0.1:0", "--token-file", self.token, "-n", 1),
            "script.py",
        )
        (told,) = self.running.until(r"waiting for 1 worker at 127\.0\.0\.1:(\d+)")
        self.port = int(told[1])
        self._agents: list[Running] = []

    def honest(self) -> None:
        """The honest host comes, and its worker trains."""
        command = [sys.executable, "-m", "spotmpi", "agent", "--head", f"127.0.0.1:{self.port}"]
        command += ["--token-file", str(self.token), "--name", "honest"]
        self._agents.append(Running(command, self.folder))
        self.running.until("STEP")

    def hostile(self, number: int = 9) -> Hostile:
        """One that connects from an address of its own."""
        return Hostile(self.port, self.token, f"127.0.1.{number}")

    def goes_on(self) -> None:
        """The worker takes further steps."""
        steps = self.running.output.count("STEP")
        self.running.until("STEP", steps + 2)

    def end(self) -> None:
        """The training ends as if nothing had been."""
        (self.folder / "enough").touch()
        assert self.running.wait() == 0, self.running.output
        assert "TRAINED 0" in self.running.output
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", self.running.output)

    def close(self) -> None:
        """End all."""
        for one in self._agents:
            one.close()


@pytest.fixture
def job(start, tmp_path: Path) -> Iterator[Job]:
    """A job that waits for its host."""
    made = Job(start, tmp_path)
    yield made
    made.close()


def said(event: str, **fields: object) -> bytes:
    return json.dumps({"event": event, **fields}).encode()


HELLO = said("hello", version="0.0.1", name="h", slots=1, problem=None)
OFFER = {"name": "evil", "slots": 1, "problem": None}
FIRST_WORDS = [
    ([said("hello")], "hello.version is missing"),
    ([HELLO], "it has spotmpi 0.0.1, and the head "),
    ([b"[" * 5000], "it is no JSON"),
    ([said("offer", **OFFER)], "it does not introduce itself"),
    ([said("ready")], "it does not introduce itself"),
    ([said("unfit")], "unfit.why is missing"),
    ([None, said("offer", **OFFER | {"slots": "many"})], "offer.slots is 'many'"),
    ([None, said("offer", **OFFER | {"slots": 10**9})], "offer.slots is 1000000000, not within"),
    ([None, said("offer", **OFFER | {"name": "\x1b[2J"})], "which is no name"),
    ([None, said("offer", **OFFER | {"problem": "\x07no\nway"})], "?no?way"),
]


@pytest.mark.matrix
def test_first_words_that_are_none_are_refused(job: Job) -> None:
    from spotmpi import __version__

    for number, (words, why) in enumerate(FIRST_WORDS, start=1):
        one = job.hostile(number)
        for word in words:
            one.send(link.MESSAGE, said("hello", version=__version__) if word is None else word)
        refusal = one.hear(messages.Refusal)
        assert isinstance(refusal, messages.Refusal)
        assert why in refusal.why
        job.running.until(f"refused a connection from 127.0.1.{number}: .*" + re.escape(why))
        one.close()
    job.honest()
    job.end()


LATER_WORDS = [
    (link.MESSAGE, said("hello")),
    (link.MESSAGE, said("heard", worker=0, said={"event": "done"})),  # of another host
    (link.MESSAGE, said("heard", worker=-1, said={"event": "done"})),
    (link.MESSAGE, said("heard", worker=1, said={"event": "ended", "status": "dead"})),
    (link.MESSAGE, said("heard", worker=1, said={"event": "lost", "how": "by me"})),
    (link.MESSAGE, said("heard", worker=1)),
    (link.MESSAGE, said("progress", entries=[[0, 1, 1, 1, 0.0]])),  # of another host
    (link.MESSAGE, said("progress", entries=[[1, 1, 1, 1, float("nan")]])),
    (link.MESSAGE, said("progress", entries={"1": 2})),
    (link.MESSAGE, said("claims", links=[["localhost:1", "localhost:2", 0]])),
    (link.MESSAGE, said("confirms", links=[[]])),
    (link.MESSAGE, said("noticed", source="ec2", seconds="soon", what="", advice=False)),
    (link.MESSAGE, said("says", text=None)),
    (link.MESSAGE, b"\xff"),
    (link.OUTPUT, b"\0\0"),
    (link.OUTPUT, b"\0\0\0\0\1not mine"),
    (link.RELAY, b"\0"),
    (77, b""),
]


@pytest.mark.matrix
def test_what_no_agent_says_costs_its_host_only(job: Job) -> None:
    job.honest()
    for number, (kind, payload) in enumerate(LATER_WORDS, start=1):
        one = job.hostile(number)
        one.join(f"evil{number}")
        one.hear(messages.Start)
        one.send(kind, payload)
        refusal = one.hear(messages.Refusal)
        assert isinstance(refusal, messages.Refusal)
        assert "it sent what no agent sends: " in refusal.why
        job.running.until(f"host evil{number} sent what no agent sends: ")
        one.close()
    job.goes_on()
    job.end()


def test_texts_of_an_agent_cannot_move_the_cursor(job: Job) -> None:
    job.honest()
    one = job.hostile()
    one.join("evil")
    one.tell(messages.Says("\x1b[2J\rspotmpi: all is well"))
    job.running.until(re.escape("evil: ?[2J?spotmpi: all is well"))
    one.close()
    job.end()


@pytest.mark.matrix
def test_connections_to_mpirun_that_nobody_takes_do_not_hold_the_head(job: Job) -> None:
    """mpirun is stopped, as one that hangs: what waits to be accepted there is soon full."""
    job.honest()
    one = job.hostile()
    one.join("evil")
    os.kill(job.running.mpirun, signal.SIGSTOP)
    try:
        for connection in range(5000):
            one.send(link.RELAY, connection.to_bytes(4, "big") + b"x")
        job.goes_on()
        one.tell(messages.Free())
        one.hear(messages.Leave)
    finally:
        os.kill(job.running.mpirun, signal.SIGCONT)
    one.close()
    job.goes_on()
    job.end()
