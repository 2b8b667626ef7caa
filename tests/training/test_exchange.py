"""What a worker brings to its rounds, and does before the next one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import spotmpi
from spotmpi.launcher_channel import Cause, LauncherChannel
from spotmpi.optimizers import SGD
from spotmpi.protocol.boundary import START
from spotmpi.trace import records
from spotmpi.training.exchange import TrainingExchange
from spotmpi.training.session import Session


@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_that_leaves_lets_go_of_what_it_shares_before_its_plan_is_told(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the plan is sealed the others write there. What letting go does: test_shared_state."""
    with spotmpi.Trainer([np.zeros(2)], optimizer=SGD(lr=0.1)) as trainer:
        session = trainer._participant
        assert isinstance(session, Session)
        exchange: TrainingExchange = session._exchange
        let_go = list[bool]()
        monkeypatch.setattr(trainer._training.sync.arena, "leave", lambda: let_go.append(True))
        assert exchange.due() is None
        exchange.boundary = START._replace(changes=True)
        exchange.orders.leave = leaves
        plan = exchange.due()
        exchange.boundary, exchange.orders.leave = START, False
        assert plan is not None
        assert plan.leaving == ({0} if leaves else set())
        assert let_go == [True] * leaves


class Told(LauncherChannel):
    """A launcher that says why a worker is gone only after a rest."""

    mute = False  # type: ignore[assignment]

    def __init__(self, rested: list[float]) -> None:
        self._rested = rested

    def cause_of(self, worker: int) -> Cause | None:
        """It takes a moment."""
        return Cause("silent", "host h2 was silent") if self._rested else None


def test_the_leader_waits_at_the_end_for_the_cause_of_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training may end right after it."""
    monkeypatch.setenv("SPOTMPI_TRACE", str(tmp_path / "trace.jsonl"))
    rested = list[float]()
    with spotmpi.Trainer([np.zeros(2)], optimizer=SGD(lr=0.1)) as trainer:
        trainer.step([np.ones(2)])
        session = trainer._participant
        assert isinstance(session, Session)
        journal = session._exchange.records.journal
        journal._channel = Told(rested)
        journal._unexplained.add(1)
        object.__setattr__(session.context, "rest", rested.append)  # it is frozen
    events = [record["event"] for record in records.read(tmp_path / "trace.jsonl")]
    assert events[-2:] == ["cause", "end"]
    assert len(rested) == 1
