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
    "a_committed_round_is_tried_again",
    "the_survey_keeps_who_committed_first",
    "a_verdict_is_accepted_without_matching_the_view",
    "what_comes_in_pieces_is_not_brought_again_where_sums_came_in_its_place",
    "the_survey_keeps_its_first_source",
    "the_dealer_forgets_whose_deal_stands",
    "the_survey_keeps_the_first_deal",
}
"""Those that take long to be found."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.matrix if name in SLOW else ()) for name in RECOVERING],
)
def test_a_broken_promise_is_found(name: str, monkeypatch: Patch) -> None:
    check_that_it_is_found(name, monkeypatch)
