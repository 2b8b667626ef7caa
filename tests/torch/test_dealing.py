"""Samples are dealt to workers, and dealt again when some are lost."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from torch.utils.data import DistributedSampler

from spotmpi.torch.dealing import Deal, dealt


@given(st.integers(0, 40), st.integers(1, 9), st.booleans())
def test_samples_are_dealt_as_torch_does(many: int, workers: int, whole: bool) -> None:
    there = dealt(np.arange(many), workers, whole)
    for rank, mine in enumerate(there):
        how = {"num_replicas": workers, "rank": rank, "shuffle": False, "drop_last": not whole}
        theirs = DistributedSampler(range(many), **how)
        if whole or many >= workers:  # torch drops less than nothing of fewer samples than workers
            assert mine.tolist() == list(theirs)
    assert len({len(mine) for mine in there}) == 1


@given(st.data(), st.integers(0, 40), st.integers(1, 6), st.booleans())
def test_each_sample_is_used_once_whoever_is_lost(
    data: st.DataObject, many: int, workers: int, whole: bool
) -> None:
    """Or a few more often, or by nobody, where they do not go up evenly."""
    deal = Deal(np.arange(many), range(workers), whole)
    there = list(range(workers))
    used: Counter[int] = Counter()
    at, uneven = 0, workers
    while at < len(deal.of(there[0])):
        lost = data.draw(st.sets(st.sampled_from(there), max_size=len(there) - 1))
        there = [worker for worker in there if worker not in lost]
        until = min(len(deal.of(there[0])), at + data.draw(st.integers(1, 7)))
        for worker in there:
            used.update(deal.of(worker)[at:until].tolist())
        if lost:
            deal.lose(lost, at)
            assert deal.workers == tuple(there)
        at, uneven = until, uneven + len(there) * bool(lost)
        assert len({len(deal.of(worker)) for worker in there}) == 1
    if whole:
        assert used.keys() == set(range(many))
        assert used.total() - many <= uneven
    else:
        assert used.total() == len(used) >= many - uneven
