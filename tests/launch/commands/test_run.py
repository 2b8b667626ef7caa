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
