"""A newcomer's life goes forward only, whatever is heard of it, and in whatever order."""

from __future__ import annotations

import random

import pytest

from spotmpi.protocol.joining import TABLE, Stage, after

IN_ORDER = (
    "begin",
    "waiting",
    "chosen",
    "spawning",
    "connected",
    "ready",
    "knocks",
    "admitted",
    "trains",
    "gone",
)
STAGES = list(Stage)


def test_each_event_leads_one_stage_further() -> None:
    stage, seen = Stage.ASKED, [Stage.ASKED]
    for event in IN_ORDER:
        stage = after(stage, event)
        seen.append(stage)
    assert seen == STAGES
    assert set(IN_ORDER) == set(TABLE)


@pytest.mark.parametrize("seed", range(50))
def test_nobody_goes_back_or_lives_again(seed: int) -> None:
    chance, stage = random.Random(seed), Stage.ASKED
    for _ in range(100):
        then = after(stage, chance.choice([*IN_ORDER[:-1], "recovery"]))
        assert STAGES.index(then) >= STAGES.index(stage)
        stage = then
    assert after(stage, "gone") is Stage.GONE
    assert all(after(Stage.GONE, event) is Stage.GONE for event in IN_ORDER)


@pytest.mark.parametrize("lost", IN_ORDER[3:9])
def test_a_word_that_is_lost_is_made_up_for_by_the_next(lost: str) -> None:
    stage = Stage.ASKED
    for event in IN_ORDER[: 1 + IN_ORDER.index("trains")]:
        if event != lost or lost == "trains":
            stage = after(stage, event)
    assert stage is Stage.TRAINING


def test_the_sponsor_s_word_may_come_after_the_newcomer_s() -> None:
    stage = after(Stage.CHOSEN, "connected")
    assert after(stage, "spawning") is stage


def test_nobody_is_brought_in_unless_somebody_was_chosen_to() -> None:
    for event in IN_ORDER[3:9]:
        assert after(Stage.READY, event) is Stage.READY
