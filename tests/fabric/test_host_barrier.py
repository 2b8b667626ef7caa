"""`spotmpi.fabric.planes.host_barrier`: how long a worker looks for the others before it sleeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from spotmpi.errors import PeersLost
from spotmpi.fabric.neighbours.shared_header import SharedHeader
from spotmpi.fabric.planes import host_barrier
from spotmpi.fabric.planes.host_barrier import HostBarrier

Looked = list[tuple[int, int]]


def met_after(
    calls: int, hopeless: Callable[[], bool], headers: Sequence[SharedHeader]
) -> tuple[HostBarrier, Looked]:
    """A barrier of these, which is passed after this many calls; and how often they looked."""
    looked: Looked = []

    def meet(
        everybody: object, number: int, bell: int, looks: int, yields: int, nap: int, futex: int
    ) -> bool:
        looked.append((looks, yields))
        return len(looked) == calls

    made = HostBarrier(hopeless)
    made._loops = SimpleNamespace(meet=meet)
    made.join(headers)
    return made, looked


def test_who_has_a_core_looks_for_a_moment_and_who_waits_longer_only_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    made, looked = met_after(3, lambda: False, [SharedHeader.new(), SharedHeader.new()])
    made.all_ready(1)
    assert looked == [(host_barrier._LOOKS // 2, 0), (0, 0), (0, 0)]


def test_who_shares_a_core_has_others_run_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    made, looked = met_after(2, lambda: False, [SharedHeader.new(), SharedHeader.new()])
    made.all_done(1)
    assert looked == [(0, host_barrier._YIELDS), (0, 0)]


def test_who_waits_in_vain_leaves_off() -> None:
    made, looked = met_after(100, lambda: len(looked) == 2, [SharedHeader.new()])
    with pytest.raises(PeersLost):
        made.all_ready(1)
    assert len(looked) == 2


def test_what_was_told_to_be_done_stays_so() -> None:
    """The thread that sums may be ahead of who waits for an earlier part."""
    header, told = SharedHeader.new(), list[int]()
    made = HostBarrier(lambda: False)
    made._loops = SimpleNamespace(post=lambda where, number, *rest: told.append(number))
    for number in (3, 2, 4):
        made.done(header, number)
    assert told == [3, 4]
