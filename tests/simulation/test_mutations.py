"""Each promise that is broken on purpose is broken in the code as it is now.

The searches for them are of the matrix: until it runs, nobody would see that a patched function has
another name now.
"""

from __future__ import annotations

import pytest

from spotmpi.simulation.schedules import Campaign
from tests.simulation import test_averages, test_changes, test_commons, test_quorum, test_shards
from tests.simulation.broken_promises import MUTATIONS, Patch
from tests.simulation.hunting import Mutation, campaign_of, check_that_it_fits, odds_of

Odds = dict[str, float]
DRAWN: list[tuple[Mutation, Campaign, Odds]] = [
    *((one, campaign_of(name), odds_of(name)) for name, one in MUTATIONS.items()),
    *(
        (one, Campaign(4, 4, 1, strategies=(name,)), test_averages.ODDS)
        for one, name in test_averages.BROKEN
    ),
    # More newcomers than it is searched with: some functions only run where one learns.
    *((one, test_changes.DRAWN, {"PLANS": 0.8}) for one in test_changes.BROKEN),
    *((one, test_commons.DRAWN, {}) for one in test_commons.BROKEN),
    *((one, test_quorum.DRAWN, test_quorum.ODDS) for one in test_quorum.BROKEN),
    *((one, test_shards.DRAWN, {}) for one in test_shards.BROKEN),
]
"""Each as it is searched for."""


@pytest.mark.parametrize(
    ("mutation", "drawn", "odds"),
    DRAWN,
    ids=[f"{n}_{one.__name__}" for n, (one, _, _) in enumerate(DRAWN)],
)
def test_what_is_broken_on_purpose_is_there(
    mutation: Mutation, drawn: Campaign, odds: Odds, monkeypatch: Patch
) -> None:
    check_that_it_fits(mutation, monkeypatch, drawn, odds)
