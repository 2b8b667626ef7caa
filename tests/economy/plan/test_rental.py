"""A cluster at a market's prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotmpi.economy.market import prices
from spotmpi.economy.market.prices import Offer
from spotmpi.economy.models import profiles
from spotmpi.economy.models.spotdnn import Instance, SpotDnn
from spotmpi.economy.plan.rental import Terms, rent
from spotmpi.economy.quantities import Cluster
from spotmpi.errors import UsageError


def test_what_is_left_of_a_cluster_may_be_outside_of_the_model_and_then_waits() -> None:
    model, market = profiles.shipped("spotdnn"), prices.shipped("2023")
    assert isinstance(model, SpotDnn)
    model = replace(model, instances={**model.instances, "huge": Instance(16, 2000, 1024)})
    market = replace(market, offers={**market.offers, "huge": Offer("huge", 1, 2, None, 0, None)})

    def iterations(cluster: Cluster) -> float:
        return model.iterations(cluster, 0.8)

    plan = rent(model, iterations, market, {"g3.8xl": 4, "huge": 1}, None, Terms())
    assert plan.speed((4, 1)) > 0
    assert plan.speed((4, 0)) > 0
    assert plan.speed((0, 1)) == 0
    with pytest.raises(UsageError, match="does not hold"):
        rent(model, iterations, market, {"huge": 1}, None, Terms())
