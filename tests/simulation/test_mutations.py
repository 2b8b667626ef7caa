"""Each promise that is broken on purpose is broken in the code as it is now.

The searches for them are of the matrix: until it runs, nobody would see that a patched function has
another name now.
"""

from __future__ import annotations

import pytest

from spotmpi.simulation.schedules import Campaign
from tests.simulation import test_averages, test_changes, test_commons, test_quorum, test_shards
from tests.simulation.broken_promises import MUTATIONS, WORKERS_OF, Patch
from tests.simulation.hunting import Mutation, check_that_it_fits

DRAWN: list[tuple[Mutation, Campaign]] = [
    *((one, Campaign(n := WORKERS_OF.get(name, 4), n, 1)) for name, one in MUTATIONS.items()),
    *((one, Campaign(4, 4, 1, strategies=(name,))) for one, name in test_averages.BROKEN),
    *((one, Campaign(4, 4, 1, strategies=test_changes.STRATEGIES)) for one in test_changes.BROKEN),
    *((one, test_commons.DRAWN) for one in test_commons.BROKEN),
    *((one, test_quorum.DRAWN) for one in test_quorum.BROKEN),
    *((one, test_shards.DRAWN) for one in test_shards.BROKEN),
]


@pytest.mark.parametrize(
    ("mutation", "drawn"), DRAWN, ids=[f"{n}_{one.__name__}" for n, (one, _) in enumerate(DRAWN)]
)
def test_what_is_broken_on_purpose_is_there(
    mutation: Mutation, drawn: Campaign, monkeypatch: Patch
) -> None:
    check_that_it_fits(mutation, monkeypatch, drawn)
