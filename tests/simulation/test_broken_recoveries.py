"""What recoveries, steps and what is done once promise is broken on purpose, and found."""

from __future__ import annotations

import pytest

from tests.simulation.broken_promises import RECOVERING, Patch
from tests.simulation.hunting import check_that_it_is_found

SLOW = {
    "nobody_follows_into_the_build",
    "a_worker_gives_up_in_silence",
    "a_token_with_an_older_view_is_stamped",
    "a_step_is_published_before_it_is_stable",
    "a_value_that_was_lost_with_its_worker_counts",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.matrix if name in SLOW else ()) for name in RECOVERING],
)
def test_a_broken_promise_is_found(name: str, monkeypatch: Patch) -> None:
    check_that_it_is_found(name, monkeypatch)
