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
"""In each run, with two newcomers before each and, if its host is lost by it, two after it."""

SLOTS = 2
ADMITTED = r"worker \d+ on h3 was admitted"


def training_there(training: Training) -> set[int]:
    """Who of h3 trains, by what the job has said so far."""
    assert training.job.alive, training.job.output  # which reads it
    said = training.job.output
    lost = re.findall(r"worker (\d+) on h3 was revoked", said)
    joined = re.findall(r"worker (\d+) on h3 has joined", said)
    return {2 * SLOTS, 2 * SLOTS + 1, *map(int, joined)} - set(map(int, lost))


def until_there(training: Training, many: int) -> set[int]:
    """Wait until so many of h3 train, or more; who they are."""
    while len(there := training_there(training)) < many:
        pass
    return there


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("seconds", [2 * FOUND_SILENT_S, FOUND_SILENT_S / 3], ids=["lost", "kept"])
def test_a_host_is_killed_comes_back_and_is_cut_off_while_its_workers_join(
    train, seconds: float, seed: int
) -> None:
    chance = random.Random(seed)
    training = train(3, *FOUND_SILENT, slots=SLOTS).until_step(20)
    for _ in range(CUTS):
        training.network.kill("h3")
        while training_there(training):
            pass
        admitted = len(re.findall(ADMITTED, training.job.output))
        training.network.start("h3")
        match chance.randrange(3):
            case 0:  # while MPI connects it
                while not training.network.workers("h3"):
                    assert training.job.alive, training.job.output
            case 1:  # between that and its training
                training.job.until(ADMITTED, times=admitted + 1)
            case _:
                until_there(training, 1)
        training.network.stutter(seconds, "h3")
        there = until_there(training, SLOTS)
        training.until_step(training.steps + 200)
    assert "crash" not in training.job.output
    assert "does not reach" not in training.job.output
    training.check(*range(2 * SLOTS), *there)
