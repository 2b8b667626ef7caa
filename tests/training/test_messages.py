"""Messages between two workers of a training, past the loss of any others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import PeersLost
from spotmpi.fabric import KEY, Message
from tests.simulated import Final, Job, bits, gradient, params
from tests.test_member import campaign, joined, left

WHAT = b"k" * KEY


def post(trainer: Any, to: int, number: int) -> None:
    """A number to a worker."""
    content = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
    trainer._run(trainer._connected("post").mail.post(to, WHAT, content))


def receive(trainer: Any, senders: Iterable[int], waits: bool = True) -> Message | None:
    """The next message of one of these."""
    there: Message | None = trainer._run(
        trainer._connected("receive").mail.receive([*senders], WHAT, waits)
    )
    return there


def number_of(message: Message) -> int:
    """What it says."""
    return int.from_bytes(message.content, "little")


@dataclass(frozen=True)
class Correspondence(Job):
    """Before each step each worker posts a number to all others, and gets one of each."""

    def script(self, worker: int) -> Final:
        """The numbers of each pair count up: none is lost, and none comes twice."""
        gradients: Counter[int] = Counter()
        sent: Counter[int] = Counter()
        got: Counter[int] = Counter()
        lost: set[int] = set()
        began = 0
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), seed=self.seed)
        with trainer:
            for batch in trainer.batches(self.samples, self.batch_size):
                rehearsal = trainer.worker not in trainer.workers
                gradients[trainer.steps] += not rehearsal
                others = [one for one in trainer.workers if one != trainer.worker]
                for other in others:
                    sent[other] += not rehearsal
                    post(trainer, other, sent[other])
                for other in others:
                    try:
                        waits = (trainer.steps + worker) % 3 > 0
                        while (message := receive(trainer, [other], waits)) is None:
                            if rehearsal:
                                break
                    except PeersLost:
                        assert other not in trainer.workers
                        lost.add(other)
                        continue
                    if rehearsal:
                        assert message is None
                    else:
                        got[other] += 1
                        assert (message.sender, number_of(message)) == (other, got[other])
                assert lost.isdisjoint(trainer.workers)
                trainer.step(gradient(trainer.params, batch), loss=1.0)
                began = trainer.steps if rehearsal else began
            mean = trainer.mean(2.0)
        final = bits(trainer.params)
        return Final(final, trainer.steps, gradients, (), False, (mean,), began, final)


def test_messages_of_those_who_live_come_once_whoever_dies_comes_and_leaves(
    tmp_path: Path,
) -> None:
    results = campaign(Correspondence(tmp_path / "calm", 4, samples=83, passes=1), runs=12)
    assert joined(results)
    assert left(results)
    assert any(result.of("recovery") for result in results)


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(1_000, 6_000, 1_000))
def test_a_long_campaign_of_messages(tmp_path: Path, first: int) -> None:
    calm = Correspondence(tmp_path / "calm", 4, samples=83, passes=1)
    assert joined(campaign(calm, runs=1_000, first=first))


def test_alone_a_message_can_only_be_to_oneself() -> None:
    with spotmpi.Group([np.zeros(2)]) as trainer:
        assert receive(trainer, [0], waits=False) is None
        post(trainer, 0, 7)
        message = receive(trainer, [0])
        assert message is not None
        assert number_of(message) == 7
