"""What is wrong with a wish for more workers is said before any job is asked."""

from __future__ import annotations

import argparse

import pytest

from spotmpi.errors import UsageError
from spotmpi.launch.commands import grow


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give --workers N, for more workers on the job's host; or --host NAME"),
        (["--workers", "0"], "--workers 0: give a number of workers, from 1 to 4096"),
        (["--workers", "-1"], "--workers -1: give a number of workers"),
        (["--workers", "two"], "--workers two: give a number of workers"),
        (["--workers", "4097"], "--workers 4097: give a number of workers"),
        (["--workers", "9" * 5000], "give a number of workers"),
        (["--workers", "1", "--slots", "2"], "--slots and --python are for a new host"),
        (["--workers", "1", "--host", "h1", "--python", "/py"], "are for a new host"),
        (["--workers", "1", "--host=-oProxyCommand=x"], "is no name of a host"),
        (["--host", "h1", "--slots", "0"], "slots=0 is not a whole number from 1 to 4096"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(words: list[str], why: str) -> None:
    parser = argparse.ArgumentParser()
    grow.add_arguments(parser)
    with pytest.raises(UsageError) as caught:
        grow.main(parser.parse_args(words))
    assert why in str(caught.value)
