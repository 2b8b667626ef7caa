"""`spotmpi.training.state.progress`: how many steps a training has in all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spotmpi.training.state.progress import Outlook, Progress


def test_the_steps_in_all_are_counted_again_only_after_a_round_or_a_change_of_workers() -> None:
    """In the middle of a round's steps, the steps to come still have those that are taken."""
    progress = Progress(7)
    position: Any = SimpleNamespace(left=lambda workers: 120 // workers)
    outlook = Outlook(progress, position)
    assert outlook.whole(4) == 30
    progress.steps = 2
    assert outlook.whole(4) == 30
    assert outlook.whole(3) == 42
    progress.rounds = 1
    assert outlook.whole(4) == 32
    position.left = lambda _workers: None
    assert outlook.whole(4) == 32
    progress.rounds = 2
    assert outlook.whole(4) is None
