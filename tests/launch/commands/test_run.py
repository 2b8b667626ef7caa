"""`spotmpi run`: what it says before it starts anything."""

from __future__ import annotations

import argparse

import pytest

from spotmpi.errors import UsageError
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


@pytest.mark.parametrize(
    ("text", "strategy", "said"),
    [
        ("best/ssgd", "ssgd", "--policy best/ssgd and --strategy ssgd: give one of them"),
        ("quickest", None, "there is no policy 'quickest'"),
        ("best/quick", None, "there is no strategy 'quick'"),
    ],
)
def test_a_policy_that_cannot_be_followed_starts_nothing(
    text: str, strategy: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run._policy(text, strategy)


def test_a_policy_reaches_the_workers_as_it_was_named() -> None:
    assert run._policy("best:again=60/ssgd/diloco:h=16", None) == "best:again=60/ssgd/diloco:h=16"
    assert run._policy(None, "ssgd") is None
