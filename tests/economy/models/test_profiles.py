"""What is to be done, of a profile that may hold for some clusters only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotmpi.economy.models import profiles
from spotmpi.economy.models.spotdnn import Instance, SpotDnn
from spotmpi.errors import UsageError


def published(**more: Instance) -> SpotDnn:
    """The shipped profile, with types before its own."""
    model = profiles.shipped("spotdnn")
    assert isinstance(model, SpotDnn)
    return replace(model, instances={**more, **model.instances})


def test_a_type_that_the_loss_model_does_not_hold_for_is_no_reason_to_refuse_others() -> None:
    model = published(huge=Instance(16, 2000, 1024))
    iterations, _ = profiles.work(model, 0.8, None)
    assert iterations({"g3.8xl": 2}) == model.iterations({"g3.8xl": 2}, 0.8)
    with pytest.raises(UsageError, match="the floor of"):
        profiles.work(model, 0.5, None)


def test_a_loss_that_is_there_before_the_first_iteration_takes_one() -> None:
    iterations, _ = profiles.work(published(), 1.6, None)
    assert iterations({"p2.8xl": 1}) == 1
    with pytest.raises(UsageError, match="before its first iteration; ask for less"):
        profiles.work(published(), 100.0, None)
