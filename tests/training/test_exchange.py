"""What a worker brings to its rounds, and does before the next one."""

from __future__ import annotations

import numpy as np
import pytest

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.protocol.boundary import START
from spotmpi.training.exchange import TrainingExchange
from spotmpi.training.session import Session


@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_that_leaves_takes_its_arrays_along_before_the_others_go_on(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the plan is sealed they write to what all of them shared."""
    with spotmpi.Trainer([np.zeros(2)], optimizer=SGD(lr=0.1)) as trainer:
        session = trainer._participant
        assert isinstance(session, Session)
        rounds: TrainingExchange = session._rounds
        taken = list[bool]()
        monkeypatch.setattr(trainer._training.sync, "leave", lambda: taken.append(True))
        assert rounds.due() is None
        rounds.boundary = START._replace(changes=True)
        rounds.orders.leave = leaves
        plan = rounds.due()
        rounds.boundary, rounds.orders.leave = START, False
        assert plan is not None
        assert plan.leaving == ({0} if leaves else set())
        assert taken == [True] * leaves
