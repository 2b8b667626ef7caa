"""Newcomers whose host is cut off while they join, again and again: nobody else is harmed.

Once a worker has died of SIGSEGV in such a run, in a receive beside the spawn of a newcomer.
"""

from __future__ import annotations

import random
import re

import pytest

from tests.hosts.training import Training
from tests.patience import FOUND_SILENT, FOUND_SILENT_S

CUTS = 10
"""In each run, with two newcomers before each and two after it."""

JOINED = r"worker (\d+) on h3 has joined"


def more(training: Training, pattern: str, many: int) -> None:
    """Wait until it was said so often more than now."""
    assert training.job.alive  # which reads what it has said by now
    training.job.until(pattern, times=many + len(re.findall(pattern, training.job.output)))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(6))
def test_a_host_is_killed_comes_back_and_is_cut_off_while_its_workers_join(
    train, seed: int
) -> None:
    chance = random.Random(seed)
    training = train(3, *FOUND_SILENT, slots=2).until_step(20)
    for _ in range(CUTS):
        training.network.kill("h3")
        more(training, r"worker \d+ on h3 was revoked", 2)
        training.network.start("h3")
        # Between their start and their training, or just after that.
        more(training, rf"on h3 {chance.choice(['was admitted', 'has joined'])}", 1)
        training.network.stutter(2 * FOUND_SILENT_S, "h3")
        more(training, JOINED, 2)
        training.until_step(training.steps + 200)
    assert "crash" not in training.job.output
    newest = sorted(map(int, re.findall(JOINED, training.job.output)))[-2:]
    training.check(*range(4), *newest)
