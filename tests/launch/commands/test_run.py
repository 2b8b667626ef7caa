"""`spotmpi run`: what it says before it starts anything."""

from __future__ import annotations

import argparse

import pytest

from spotmpi.launch.commands import run


@pytest.mark.parametrize(
    ("words", "elsewhere", "replace", "asked"),
    [
        ([], False, False, False),
        (["--replace"], False, True, True),
        ([], True, True, False),
        (["--replace"], True, True, True),
        (["--no-replace"], True, False, False),
    ],
)
def test_who_is_replaced_where_and_whether_that_was_asked_for(
    words: list[str], elsewhere: bool, replace: bool, asked: bool
) -> None:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    manner = run._manner(parser.parse_args([*words, "script.py"]), elsewhere)
    assert (manner.replace, manner.replace_asked) == (replace, asked)


@pytest.mark.parametrize("workers", [1, 8, 32])
def test_a_usual_number_of_workers_is_not_worth_a_word(workers: int) -> None:
    assert run._crowd(workers, 2) == ""


@pytest.mark.parametrize(
    ("workers", "cores", "said"),
    [
        (
            300,
            2,
            "300 workers on 2 cores, 150 to each: to start them takes 1 min 15 s or more",
        ),
        (33, 2, "33 workers on 2 cores, 17 to each: to start them takes 8 s or more, and 1 GB of"),
        (40, 1, "40 workers on 1 core, 40 to each: to start them takes 20 s or more, and 2 GB of"),
    ],
)
def test_who_starts_a_crowd_is_told_what_that_takes(workers: int, cores: int, said: str) -> None:
    assert run._crowd(workers, cores).startswith(said)
