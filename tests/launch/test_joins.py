"""Many newcomers and sponsors, of which any may fail at any point: the launcher's side is real.

What a sponsor and a newcomer do is played by a model with a clock of its own, in which everything
takes a random time, and words from different hosts come in any order. MPI may hang in a spawn.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial

import pytest

from spotmpi.launch.head.job_state import JobState
from spotmpi.launch.head.membership_changes import MembershipChanges
from spotmpi.launch.limits import Limits
from spotmpi.launcher_channel import Cause, Order
from tests.saying import said

KILLED = 9
LIFE = ("begin", "waiting", "connected", "ready", "knocks", "admitted", "trains")
"""What a newcomer says, in this order."""


class World:
    """Three workers that train, each on a host of its own, and newcomers of other hosts.

    ``hangs``: how likely MPI never comes back from a spawn. ``dies``: how likely a worker dies
    within a second. Newcomers and sponsors go on by themselves until ``calm``.
    """

    def __init__(self, seed: int, hangs: float, dies: float) -> None:
        self.random = random.Random(seed)
        self.hangs, self.dies = hangs, dies
        self.now = 0.0
        self.mute = False
        self.verdict = JobState()
        self.turnover = MembershipChanges(
            self,
            self.verdict,
            self.later,
            spares=0,
            replace=False,
            keeps=True,
            least=1,
            limits=Limits(),
        )
        self.verdict.expect(["h0", "h1", "h2"])
        self.living = {0, 1, 2}
        self.said: dict[int, int] = {}
        """How much of LIFE a newcomer has said."""
        self.ordered: dict[int, int] = {}
        """Which newcomer each worker was told to bring in last, 0 for none."""
        self.sponsored: dict[int, int] = {}
        self.stuck: set[int] = set()
        """Workers with a spawn that never comes back."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = 0
        for worker in (0, 1, 2):
            self.verdict.told(worker, said("ready"))
        self.turnover.began()

    # Time.

    def later(self, seconds: float, name: str, action: Callable[[], None]) -> None:
        self._ticket += 1
        heapq.heappush(self._queue, (self.now + seconds, self._ticket, action))

    def soon(self, action: Callable[[], None], longest: float = 1.0) -> None:
        self.later(longest * self.random.random(), "", action)

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            self.turnover.tend()
            self.check()
        self.now = until

    # What a crew does.

    def revoke(self, worker: int) -> None:
        self.soon(partial(self.die, worker))

    def order(self, worker: int, order: Order) -> None:
        self.ordered[worker] = order.newcomer
        if order.newcomer:
            self.soon(partial(self.sponsor, worker, order.newcomer))

    def explain(self, worker: int, cause: Cause) -> None:
        """Nobody asks."""

    def recruit(self, host: str) -> int:
        return self.come(host)

    def bring(self, worker: int) -> None:
        assert self.verdict.learning(worker)

    # What workers do.

    def come(self, host: str) -> int:
        worker = self.turnover.newcomer(host, 1)
        self.living.add(worker)
        self.said[worker] = 0
        self.soon(partial(self.go_on, worker, "begin"))
        self.soon(partial(self.go_on, worker, "waiting"), 2.0)
        self.may_die(worker)
        return worker

    def go_on(self, worker: int, event: str) -> None:
        """The newcomer says this, once it has said all before it."""
        if worker not in self.living:
            return
        if LIFE.index(event) != self.said[worker]:
            if LIFE.index(event) > self.said[worker]:
                self.soon(partial(self.go_on, worker, event))
            return
        self.said[worker] += 1
        word = said(event, **({"step": 1} if event == "trains" else {}))
        self.verdict.told(worker, word)
        self.turnover.told(worker, word)
        if event in LIFE[2:-1]:  # until then it waits for its sponsor
            self.soon(partial(self.go_on, worker, LIFE[self.said[worker]]))

    def sponsor(self, worker: int, newcomer: int) -> None:
        """It finds its order, which may not hold any more."""
        if worker not in self.living or newcomer in self.sponsored:
            return
        self.sponsored[newcomer] = worker
        self.soon(partial(self.turnover.spawning, newcomer))  # the word travels
        if self.random.random() < self.hangs:
            self.stuck.add(worker)
        elif worker not in self.stuck and newcomer in self.living:
            self.soon(partial(self.go_on, newcomer, "connected"))

    def may_die(self, worker: int) -> None:
        if self.random.random() < self.dies:
            self.soon(partial(self.die, worker), 8.0)

    def die(self, worker: int) -> None:
        if worker in self.living:
            self.living.discard(worker)
            self.verdict.ended(worker, KILLED)
            self.turnover.gone(worker)

    # What must hold.

    def check(self) -> None:
        """One newcomer is brought in at a time, and nobody that trains is sacrificed for it."""
        assert sum(self.ordered.get(worker, 0) > 0 for worker in self.living) <= 1
        assert not any("MPI" in fate.how for fate in self.verdict.fates if fate.state == "revoked")

    def training(self) -> set[int]:
        return {w for w in self.living if self.verdict.fates[w].state == "training"}

    def between(self) -> set[int]:
        """Those that live and have not come to train."""
        return self.living - self.training()


@pytest.mark.parametrize("seed", range(300))
def test_newcomers_come_in_or_end_whoever_dies_and_whatever_hangs(seed: int) -> None:
    world = World(seed, hangs=0.3, dies=0.3)
    for number in range(6):
        world.soon(partial(world.come, f"n{number}"), 20.0)
    for worker in (0, 1, 2):
        world.may_die(worker)
    world.run(2000.0)
    assert not world.training() or not world.between()


@pytest.mark.parametrize("seed", range(100))
def test_as_long_as_one_sponsor_is_well_every_host_s_newcomer_comes_in(seed: int) -> None:
    """The other two hang for ever in their first spawn: each host has four tries."""
    world = World(seed, hangs=0.0, dies=0.0)
    world.stuck |= {0, 1}
    for number in range(5):
        world.soon(partial(world.come, f"n{number}"), 20.0)
    world.run(2000.0)
    assert not world.between()
    fates = world.verdict.fates
    assert {fate.host for fate in fates if fate.state == "training"} == {
        *("h0", "h1", "h2"),
        *(f"n{number}" for number in range(5)),
    }


@pytest.mark.parametrize("seed", range(50))
def test_with_nothing_that_hangs_all_come_in_at_the_first_try(seed: int) -> None:
    world = World(seed, hangs=0.0, dies=0.0)
    for number in range(5):
        world.soon(partial(world.come, f"n{number}"), 5.0)
    world.run(200.0)
    assert [fate.state for fate in world.verdict.fates] == ["training"] * 8
