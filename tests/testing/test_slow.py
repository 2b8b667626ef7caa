"""A worker that is slower than it is."""

from __future__ import annotations

import time

import pytest

from spotmpi.errors import UsageError
from spotmpi.testing import slowed


def test_what_a_loop_computes_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, waited = [0.0], []
    monkeypatch.setattr(time, "thread_time", lambda: computed[0])
    monkeypatch.setattr(time, "sleep", waited.append)
    for number, seconds in zip(slowed(range(3), 5), (1.0, 0.25, 2.0), strict=True):
        assert len(waited) == number
        computed[0] += seconds
    assert waited == [4.0, 1.0, 8.0]
    assert list(slowed("abc", 1)) == ["a", "b", "c"]
    assert waited == [4.0, 1.0, 8.0]


@pytest.mark.parametrize("times", [0.5, 0, float("nan")])
def test_nobody_is_made_faster(times: float) -> None:
    with pytest.raises(UsageError, match="expected at least 1"):
        next(slowed([1], times))
